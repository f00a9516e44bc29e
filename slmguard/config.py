"""The configuration file: TOML in, validated Options out. The only module that imports pydantic.

It runs in a short-lived stage before the daemon (pydantic costs 7 MiB that the daemon would carry for life).
"""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from slmguard.core.errors import UserError
from slmguard.core.model import Level
from slmguard.core.settings import (
    CadenceSettings,
    ForecastSettings,
    HostSettings,
    LadderSettings,
    LevelSettings,
    RestartSettings,
    RungSettings,
    Settings,
    StallSettings,
)
from slmguard.options import (
    DEFAULT_LISTEN,
    DEFAULT_SOCKET,
    DEFAULT_STATE,
    MemoryOptions,
    Options,
    RestartMethod,
    ServerChoice,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
MAX_FILE_BYTES = 1 << 20
UNIT_NAME = re.compile(r"[A-Za-z0-9_.:\\@][A-Za-z0-9_.:\\@-]*")
CREDENTIAL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
DEFAULTS = Settings()


def parse_size(value: object) -> object:
    """`"320M"`, `"2.5G"` or a number of bytes, as systemd writes sizes (powers of 1024).

    Raises ValueError when it is no size.
    """
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:iB|B)?\s*", value, re.IGNORECASE)
    if match is None:
        raise ValueError(f"{value!r} is no size; write for example 2600M, 2.5G or a number of bytes")
    return int(float(match[1]) * SIZE_UNITS[match[2].upper()])


Size = Annotated[int, BeforeValidator(parse_size), Field(gt=0)]
Ratio = Annotated[float, Field(gt=0, le=1)]
Seconds = Annotated[float, Field(ge=0, le=86400)]
Timeout = Annotated[float, Field(gt=0, le=3600)]
LevelWord = Literal["elevated", "high", "critical"]


class Section(BaseModel):
    """A table of the file: unknown keys are errors."""

    model_config = ConfigDict(extra="forbid", strict=False, allow_inf_nan=False)


class UnitSection(Section):
    """[unit]: what is guarded."""

    name: str


class MemorySection(Section):
    """[memory]: where the figures come from and what they are compared with."""

    source: Literal["auto", "cgroup", "process", "host"] = "auto"
    figure: Literal["demand", "working_set", "current"] = "demand"
    budget: Size | None = None
    budget_max: Size | None = None
    pid: Annotated[int, Field(gt=1)] | None = None
    pid_file: str | None = None
    match_argv: list[str] = []

    @model_validator(mode="after")
    def _check(self) -> MemorySection:
        if self.budget and self.budget_max and self.budget > self.budget_max:
            raise ValueError(f"budget ({self.budget} bytes) is above budget_max ({self.budget_max} bytes)")
        if self.source == "process" and self.budget is None and self.budget_max is None:
            raise ValueError('source = "process" has no limit of its own: set budget, for example "2600M"')
        return self


class ServerSection(Section):
    """[server]: the inference server."""

    kind: str = "llama-server"
    url: Annotated[str, Field(pattern=r"^https?://[^\s/@]+(/.*)?$")] = "http://127.0.0.1:8080"
    api_key_credential: str | None = None
    timeout_s: Timeout = 3.0
    probe_interval_s: Annotated[float, Field(ge=0.5, le=600)] = 5.0
    trim_path: Annotated[str, Field(pattern=r"^/[^\s]*$")] = "/api/v1/context/trim"
    trim_body: dict[str, Any] | None = None

    @model_validator(mode="after")
    def _check(self) -> ServerSection:
        from slmguard.servers.base import kinds

        if self.kind != "none" and self.kind not in kinds():
            raise ValueError(f"kind = {self.kind!r}: no such adapter; known are none, {', '.join(kinds())}")
        if self.api_key_credential is not None and not CREDENTIAL_NAME.fullmatch(self.api_key_credential):
            raise ValueError("api_key_credential names a file in the credentials directory; it is not the key itself")
        return self


class LevelsSection(Section):
    """[levels]: shares of the limit at which the levels begin."""

    elevated: Ratio = DEFAULTS.levels.elevated_ratio
    high: Ratio = DEFAULTS.levels.high_ratio
    critical: Ratio = DEFAULTS.levels.critical_ratio
    hysteresis: Annotated[float, Field(ge=0, lt=0.5)] = DEFAULTS.levels.hysteresis_ratio
    hold_s: Seconds = DEFAULTS.levels.hold_s

    @model_validator(mode="after")
    def _check(self) -> LevelsSection:
        if not self.elevated < self.high < self.critical:
            raise ValueError(
                f"the order must be elevated < high < critical; found {self.elevated}, {self.high}, {self.critical}"
            )
        if self.hysteresis >= self.elevated:
            raise ValueError("hysteresis must be smaller than elevated")
        return self


class HostSection(Section):
    """[host]: headroom of the whole board, as shares of its RAM."""

    enabled: bool = DEFAULTS.host.enabled
    elevated: Ratio = DEFAULTS.host.elevated_ratio
    high: Ratio = DEFAULTS.host.high_ratio
    critical: Ratio = DEFAULTS.host.critical_ratio

    @model_validator(mode="after")
    def _check(self) -> HostSection:
        if not self.elevated > self.high > self.critical:
            raise ValueError("these are shares of RAM that are left: the order must be elevated > high > critical")
        return self


class ForecastSection(Section):
    """[forecast]: seeing the limit come."""

    enabled: bool = DEFAULTS.forecast.enabled
    window_s: Annotated[float, Field(ge=10, le=600)] = DEFAULTS.forecast.window_s
    lead_s: Seconds = DEFAULTS.forecast.lead_s


class StallSection(Section):
    """[stall]: throttled, alive, and useless."""

    enabled: bool = DEFAULTS.stall.enabled
    window_s: Annotated[float, Field(ge=5, le=600)] = DEFAULTS.stall.window_s
    deadline_s: Seconds = DEFAULTS.stall.deadline_s
    high_events_per_s: Annotated[float, Field(gt=0)] = DEFAULTS.stall.high_events_per_s
    psi_full_ratio: Ratio = DEFAULTS.stall.psi_full_ratio
    refault_bytes_per_s: Annotated[float, BeforeValidator(parse_size), Field(gt=0)] = DEFAULTS.stall.refault_bytes_per_s
    crawl_tokens_per_s: Annotated[float, Field(ge=0)] = DEFAULTS.stall.crawl_tokens_per_s


class RungSection(Section):
    """[ladder.RUNG]: when one rung is used."""

    enabled: bool | None = None
    at: LevelWord | None = None
    cooldown_s: Seconds | None = None
    deadline_s: Timeout | None = None

    def over(self, default: RungSettings) -> RungSettings:
        """The settings, with `default` where the file is silent."""
        return RungSettings(
            enabled=default.enabled if self.enabled is None else self.enabled,
            at=default.at if self.at is None else Level[self.at.upper()],
            cooldown_s=default.cooldown_s if self.cooldown_s is None else self.cooldown_s,
            deadline_s=default.deadline_s if self.deadline_s is None else self.deadline_s,
        )


class LadderSection(Section):
    """[ladder]: the rungs and what they are used with."""

    clamp: RungSection = Field(default_factory=RungSection)
    trim: RungSection = Field(default_factory=RungSection)
    drop_caches: RungSection = Field(default_factory=RungSection)
    refuse: RungSection = Field(default_factory=RungSection)
    planned_restart: RungSection = Field(default_factory=RungSection)
    forced_restart: RungSection = Field(default_factory=RungSection)
    settle_s: Annotated[float, Field(ge=0, le=60)] = DEFAULTS.ladder.settle_s
    ineffective_after: Annotated[int, Field(ge=1, le=100)] = DEFAULTS.ladder.ineffective_after
    clamp_max_tokens: Annotated[int, Field(ge=1)] = DEFAULTS.ladder.clamp_max_tokens
    keep_recent_tokens: Annotated[int, Field(ge=1)] = DEFAULTS.ladder.keep_recent_tokens
    retry_after_s: Annotated[float, Field(ge=1, le=120)] = DEFAULTS.ladder.retry_after_s


class RestartSection(Section):
    """[restart]: how, and how often."""

    method: Literal["systemd", "signal", "command", "none"] = "systemd"
    command: list[str] = []
    budget_per_hour: Annotated[int, Field(ge=0, le=720)] = DEFAULTS.restart.budget_per_hour
    min_interval_s: Seconds = DEFAULTS.restart.min_interval_s
    min_freeable: Annotated[float, Field(ge=0, le=1)] = DEFAULTS.restart.min_freeable_ratio
    drain_s: Annotated[float, Field(ge=0, le=600)] = 30.0
    stop_timeout_s: Timeout = 30.0
    ready_timeout_s: Timeout = 180.0

    @model_validator(mode="after")
    def _check(self) -> RestartSection:
        if self.method == "command" and not self.command:
            raise ValueError('method = "command" needs command = ["/path/to/programme", "argument", …]')
        if self.command and not self.command[0].startswith("/"):
            raise ValueError(f"command[0] = {self.command[0]!r} must be an absolute path; no shell looks it up")
        return self


class MetricsSection(Section):
    """[metrics]: the Prometheus endpoint."""

    enabled: bool = True
    listen: Annotated[str, Field(pattern=r"^(\[[0-9a-fA-F:]+\]|[A-Za-z0-9_.-]*):\d{1,5}$")] = DEFAULT_LISTEN


class RunSection(Section):
    """[run]: the daemon itself."""

    dry_run: bool = False
    lock_memory: bool = True
    interval_min_s: Annotated[float, Field(ge=0.05, le=10)] = DEFAULTS.cadence.min_s
    interval_max_s: Annotated[float, Field(ge=0.1, le=60)] = DEFAULTS.cadence.max_s
    fill_rate: Annotated[float, BeforeValidator(parse_size), Field(gt=0)] = DEFAULTS.cadence.fill_bytes_per_s
    record: str | None = None

    @model_validator(mode="after")
    def _check(self) -> RunSection:
        if self.interval_min_s > self.interval_max_s:
            raise ValueError("interval_min_s is above interval_max_s")
        return self


AbsolutePath = Annotated[str, Field(pattern=r"^/")]


class ControlSection(Section):
    """[control]: the socket that status, top and the gate talk to."""

    socket: AbsolutePath = DEFAULT_SOCKET


class StateSection(Section):
    """[state]: where counters are kept over restarts."""

    directory: AbsolutePath = DEFAULT_STATE


class ConfigFile(Section):
    """The whole file."""

    unit: UnitSection
    memory: MemorySection = Field(default_factory=MemorySection)
    server: ServerSection = Field(default_factory=ServerSection)
    levels: LevelsSection = Field(default_factory=LevelsSection)
    host: HostSection = Field(default_factory=HostSection)
    forecast: ForecastSection = Field(default_factory=ForecastSection)
    stall: StallSection = Field(default_factory=StallSection)
    ladder: LadderSection = Field(default_factory=LadderSection)
    restart: RestartSection = Field(default_factory=RestartSection)
    metrics: MetricsSection = Field(default_factory=MetricsSection)
    run: RunSection = Field(default_factory=RunSection)
    control: ControlSection = Field(default_factory=ControlSection)
    state: StateSection = Field(default_factory=StateSection)
    gate: dict[str, Any] = Field(default_factory=dict)  # the gate validates its own table

    @model_validator(mode="after")
    def _check(self) -> ConfigFile:
        name = self.unit.name
        if self.memory.source in {"auto", "cgroup"} and not UNIT_NAME.fullmatch(name):
            raise ValueError(f"unit.name = {name!r} is no unit name; write for example llama-server.service")
        return self

    def options(self) -> Options:
        """The values that the daemon works with."""
        ladder, restart, run = self.ladder, self.restart, self.run
        default = DEFAULTS.ladder
        core = Settings(
            figure=self.memory.figure,
            levels=LevelSettings(
                self.levels.elevated, self.levels.high, self.levels.critical, self.levels.hysteresis, self.levels.hold_s
            ),
            host=HostSettings(self.host.enabled, self.host.elevated, self.host.high, self.host.critical),
            forecast=ForecastSettings(self.forecast.enabled, self.forecast.window_s, self.forecast.lead_s),
            stall=StallSettings(**self.stall.model_dump()),
            ladder=LadderSettings(
                **{name: getattr(ladder, name).over(getattr(default, name)) for name in RUNG_NAMES},
                **ladder.model_dump(exclude=RUNG_NAMES),
            ),
            restart=RestartSettings(restart.budget_per_hour, restart.min_interval_s, restart.min_freeable),
            cadence=CadenceSettings(run.interval_min_s, run.interval_max_s, run.fill_rate),
            dry_run=run.dry_run,
        )
        name = self.unit.name
        return Options(
            unit=name if "." in name or self.memory.source in {"process", "host"} else f"{name}.service",
            memory=MemoryOptions(
                source=self.memory.source,
                budget_bytes=self.memory.budget,
                budget_max_bytes=self.memory.budget_max,
                pid=self.memory.pid,
                pid_file=self.memory.pid_file,
                match_argv=tuple(self.memory.match_argv),
            ),
            server=ServerChoice(**self.server.model_dump()),
            restart=RestartMethod(
                restart.method, tuple(restart.command), restart.drain_s, restart.stop_timeout_s, restart.ready_timeout_s
            ),
            metrics_listen=self.metrics.listen if self.metrics.enabled else None,
            control_socket=self.control.socket,
            state_directory=self.state.directory,
            lock_memory=run.lock_memory,
            record_path=run.record,
            core=core,
        )


RUNG_NAMES = {"clamp", "trim", "drop_caches", "refuse", "planned_restart", "forced_restart"}


def load(path: Path) -> Options:
    """The validated configuration in `path`.

    Raises UserError with one line: what is wrong, in which file and key, and what to do.
    """
    return parse(read_text(path), str(path))


def read_text(path: Path) -> str:
    """The text of a configuration file.

    Raises UserError when it cannot be read, is not UTF-8, or is larger than 1 MiB.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; copy the example that was installed with slmguard") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise UserError(f"{path}: larger than 1 MiB, so it is no configuration file")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}: not UTF-8 at byte {error.start}; save it as UTF-8") from None


def parse(text: str, where: str) -> Options:
    """The validated configuration in `text`; `where` names it in messages.

    Raises UserError as `load` does.
    """
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{where}: not valid TOML: {_one_line(error)}") from None
    except RecursionError:
        raise UserError(f"{where}: nested too deeply to be a configuration") from None
    try:
        return ConfigFile.model_validate(data).options()
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False)
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise UserError(f"{where}: {_explain(problems[0])}{more}") from None


def _one_line(value: object) -> str:
    return " ".join(str(value).split())


def _explain(problem: Any) -> str:
    place = ".".join(str(part) for part in problem["loc"])
    if problem["type"] == "extra_forbidden":
        return f"unknown key {place!r}{_nearest(problem['loc'])}"
    if problem["type"] == "missing":
        return f"{place} is missing; it is required"
    message = _one_line(problem["msg"].removeprefix("Value error, "))
    found = problem.get("input")
    shown = f" (found {found!r})" if isinstance(found, (str, int, float, bool)) else ""
    return f"{place + ': ' if place else ''}{message}{shown}"


def _nearest(loc: tuple[Any, ...]) -> str:
    """`; did you mean …?` for an unknown key, from the keys that its table has."""
    model: Any = ConfigFile
    for part in loc[:-1]:
        annotation = model.model_fields[part].annotation if part in model.model_fields else None
        candidates = [annotation, *get_args(annotation)]
        model = next((one for one in candidates if isinstance(one, type) and issubclass(one, BaseModel)), None)
        if model is None:
            return ""
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(loc[-1]), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
