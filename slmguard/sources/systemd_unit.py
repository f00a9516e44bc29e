"""What systemd knows of a unit, read-only, through systemctl."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass

UNIT_NAME = re.compile(r"[A-Za-z0-9_.:\\@][A-Za-z0-9_.:\\@-]*")
PROPERTIES = (
    "ControlGroup,LoadState,ActiveState,SubState,NRestarts,Result,MemoryHigh,MemoryMax,MainPID,InvocationID,Restart"
)
TIMEOUT_S = 5.0
MAX_OUTPUT = 64 * 1024

Runner = Callable[[Sequence[str], float], tuple[int, str]]


@dataclass(frozen=True, slots=True)
class UnitView:
    """One unit as systemd shows it. `problem` is a sentence when it cannot be guarded as it is."""

    name: str
    load_state: str = ""
    active_state: str = ""
    control_group: str | None = None
    main_pid: int | None = None
    high_bytes: int | None = None
    max_bytes: int | None = None
    restart: str = ""
    result: str = ""
    problem: str | None = None


def show(unit: str, run: Runner | None = None) -> UnitView:
    """The unit as systemd shows it. Never raises: what went wrong is in `problem`."""
    if not UNIT_NAME.fullmatch(unit):
        return UnitView(unit, problem=f"{unit!r} is no unit name")
    try:
        code, output = (run or run_program)(["systemctl", "show", f"--property={PROPERTIES}", "--", unit], TIMEOUT_S)
    except FileNotFoundError:
        return UnitView(unit, problem="there is no systemctl here: units cannot be looked up")
    except (OSError, subprocess.TimeoutExpired) as error:
        return UnitView(unit, problem=f"systemctl did not answer for {unit}: {error}")
    if code != 0:
        reason = " ".join(output.split())[:200] or f"exit code {code}"
        return UnitView(unit, problem=f"systemd cannot show {unit}: {reason}")
    values = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
    return UnitView(
        name=unit,
        load_state=values.get("LoadState", ""),
        active_state=values.get("ActiveState", ""),
        control_group=values.get("ControlGroup") or None,
        main_pid=_positive(values.get("MainPID")),
        high_bytes=_limit(values.get("MemoryHigh")),
        max_bytes=_limit(values.get("MemoryMax")),
        restart=values.get("Restart", ""),
        result=values.get("Result", ""),
        problem=_problem(unit, values),
    )


def _problem(unit: str, values: dict[str, str]) -> str | None:
    load, active = values.get("LoadState"), values.get("ActiveState")
    if load == "not-found":
        return f"systemd has no unit {unit}; is [unit] name right? (systemctl list-units --type=service)"
    if load == "masked":
        return f"{unit} is masked; systemctl unmask {unit}"
    if active in {"inactive", "failed"}:
        return f"{unit} is not running (ActiveState={active}, Result={values.get('Result', '?')})"
    return None


def _positive(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() and int(text) > 0 else None


def _limit(text: str | None) -> int | None:
    # systemd writes `infinity`, or 2^64-1 in older versions, for no limit.
    value = _positive(text)
    return None if value is None or value >= 1 << 62 else value


def run_program(command: Sequence[str], timeout_s: float) -> tuple[int, str]:
    """Exit code and output (both streams, bounded) of a programme, without a shell."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout[:MAX_OUTPUT].decode("utf-8", "replace")
