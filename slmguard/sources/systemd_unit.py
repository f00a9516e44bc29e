"""What systemd says of a unit, asked with `systemctl show`; nothing here changes anything."""

from __future__ import annotations

import os
import re
import selectors
import time
from collections.abc import Callable
from dataclasses import dataclass

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.sources.kernel_text import UNLIMITED_BYTES, printable

PROPERTIES = (
    "ControlGroup,LoadState,ActiveState,SubState,NRestarts,Result,MemoryHigh,MemoryMax,"
    "MainPID,InvocationID,Restart,TimeoutStopUSec"
)
TIMEOUT_S = 5.0
MAX_OUTPUT_BYTES = 64 * 1024

# The characters and suffixes that systemd allows (systemd.unit(5)); the length is its UNIT_NAME_MAX.
_UNIT_NAME = re.compile(r"[A-Za-z0-9:_.\\@-]+")
_UNIT_SUFFIXES = (".service", ".scope", ".slice", ".socket", ".target", ".timer", ".mount", ".path", ".swap")
_UNIT_NAME_MAX = 255

_SPAN_PART = re.compile(r"(\d+(?:\.\d+)?)(us|ms|s|min|h|d|w|month|y)")
_SPAN_UNIT_S = {
    "us": 1e-6,
    "ms": 1e-3,
    "s": 1.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
    "w": 604800.0,
    "month": 2629800.0,  # systemd's 30.4375 days
    "y": 31557600.0,
}


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command printed and how it ended; `exit_code` None means that its time ran out."""

    exit_code: int | None
    text: str


Runner = Callable[[list[str], float], CommandOutput]


@dataclass(frozen=True, slots=True)
class UnitView:
    r"""A unit at one instant. None stands for what systemd did not say; limits of `infinity` are None.

    `control_group` is the path below the cgroup root exactly as it is on disk, escapes such as `\x2d` included; it is
    None while the unit has no processes.
    """

    name: str
    load_state: str
    active_state: str
    sub_state: str = ""
    control_group: str | None = None
    main_pid: int | None = None
    invocation_id: str = ""
    restarts: int | None = None
    result: str = ""
    restart_policy: str = ""
    memory_high_bytes: int | None = None
    memory_max_bytes: int | None = None
    stop_timeout_s: float | None = None

    @property
    def problem(self) -> str | None:
        """Why this unit cannot be guarded now, as a sentence; None when it can."""
        if self.load_state == "not-found":
            return f"systemd knows no unit {self.name}: check the name with `systemctl list-units --all`"
        if self.load_state == "masked":
            return f"{self.name} is masked: `systemctl unmask {self.name}` before it can be guarded"
        if self.load_state not in ("loaded", "merged"):
            return f"systemd could not load {self.name} ({self.load_state}): see `systemctl status {self.name}`"
        if self.control_group is None:
            return f"{self.name} is not running ({self.active_state}): there is nothing to read until it starts"
        return None


def valid_unit_name(name: str) -> str:
    """The name with `.service` added when it has no suffix; raises UserError for a name systemd refuses."""
    if not _UNIT_NAME.fullmatch(name) or name.startswith(("-", ".")) or len(name) > _UNIT_NAME_MAX:
        raise UserError(
            f"unit name {printable(name, 80)!r} is not valid: letters, digits and :-_.\\@ only, no - or . first"
        )
    return name if name.endswith(_UNIT_SUFFIXES) else name + ".service"


def show_unit(name: str, *, runner: Runner | None = None, timeout_s: float = TIMEOUT_S) -> UnitView:
    """Ask systemd about one unit; blocks for at most `timeout_s` seconds.

    Raises UserError for an impossible name, EnvironmentLacksError when there is no systemctl, no running systemd, or
    no answer in time. A unit that does not exist is an answer (`load_state` not-found), not an error.
    """
    unit = valid_unit_name(name)
    output = (runner or run_bounded)(["systemctl", "show", "--no-pager", "-p", PROPERTIES, "--", unit], timeout_s)
    if output.exit_code is None:
        raise EnvironmentLacksError(f"systemctl gave no answer about {unit} within {timeout_s:g} s")
    properties = parse_properties(output.text)
    if "LoadState" not in properties:
        said = next((row.strip() for row in output.text.splitlines() if row.strip()), "nothing")
        raise EnvironmentLacksError(
            f"systemctl could not be asked about {unit}; it said: {printable(said)} (exit code {output.exit_code})"
        )
    return view_of(unit, properties)


def parse_properties(text: str) -> dict[str, str]:
    """`Key=value` rows; the first of equal keys counts."""
    properties: dict[str, str] = {}
    for row in text.splitlines():
        key, equals, value = row.partition("=")
        if equals and key.isalnum():
            properties.setdefault(key, value.strip())
    return properties


def view_of(unit: str, properties: dict[str, str]) -> UnitView:
    """The typed view of what `systemctl show` printed."""
    return UnitView(
        name=unit,
        load_state=properties.get("LoadState", ""),
        active_state=properties.get("ActiveState", ""),
        sub_state=properties.get("SubState", ""),
        control_group=_control_group(properties.get("ControlGroup", "")),
        main_pid=_number(properties.get("MainPID", "")) or None,
        invocation_id=properties.get("InvocationID", ""),
        restarts=_number(properties.get("NRestarts", "")),
        result=properties.get("Result", ""),
        restart_policy=properties.get("Restart", ""),
        memory_high_bytes=_limit(properties.get("MemoryHigh", "")),
        memory_max_bytes=_limit(properties.get("MemoryMax", "")),
        stop_timeout_s=parse_time_span_s(properties.get("TimeoutStopUSec", "")),
    )


def _control_group(value: str) -> str | None:
    """A path below the cgroup root, or None. A path that climbs out is not one that systemd can have given."""
    if not value.startswith("/") or value == "/" or ".." in value.split("/"):
        return None
    return value


def _number(value: str) -> int | None:
    return int(value) if value.isascii() and value.isdigit() and len(value) <= 20 else None


def _limit(value: str) -> int | None:
    number = _number(value)
    return None if number is None or number >= UNLIMITED_BYTES else number


def parse_time_span_s(value: str) -> float | None:
    """Seconds of a span as systemctl prints it (`1min 30s`); None for `infinity` and for what is no span."""
    parts = value.split()
    seconds = 0.0
    for part in parts:
        match = _SPAN_PART.fullmatch(part)
        if match is None:
            return None
        seconds += float(match[1]) * _SPAN_UNIT_S[match[2]]
    return seconds if parts else None


def run_bounded(arguments: list[str], timeout_s: float) -> CommandOutput:
    """Run a command without a shell; at most 64 KiB of its output are kept, and it is killed when its time is up.

    Raises EnvironmentLacksError when the command is not installed.
    """
    import subprocess  # here, since a guard of a plain process never needs it

    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
    try:
        process = subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment
        )
    except OSError as error:
        raise EnvironmentLacksError(
            f"{arguments[0]} could not be started ({error.strerror}): without systemd, guard a process instead (pid, "
            "pid file, command line or port)"
        ) from error
    deadline_s = time.monotonic() + timeout_s
    with process:
        output, in_time = _collect(process.stdout.fileno() if process.stdout else -1, deadline_s)
        if in_time:
            try:
                process.wait(max(0.1, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                in_time = False
        if not in_time:
            process.kill()
        process.wait()
    return CommandOutput(process.returncode if in_time else None, output.decode("utf-8", "replace"))


def _collect(fd: int, deadline_s: float) -> tuple[bytes, bool]:
    """Output until its end, the bound or the deadline; the flag says that it was not the deadline."""
    output = b""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, selectors.EVENT_READ)
        while len(output) < MAX_OUTPUT_BYTES:
            if not selector.select(max(0.0, deadline_s - time.monotonic())):
                return output, False
            chunk = os.read(fd, MAX_OUTPUT_BYTES - len(output))
            if not chunk:
                break
            output += chunk
    return output, True
