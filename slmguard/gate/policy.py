"""What is in force right now: the level that the daemon pushed, or one fixed on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slmguard.core.model import Level
from slmguard.gate.settings import GateSettings


@dataclass(frozen=True, slots=True)
class Policy:
    """One state line of the control socket (docs/reference/control-socket.md)."""

    level: Level = Level.NORMAL
    clamp_max_tokens: int | None = None
    keep_recent_tokens: int | None = None
    refuse: bool = False
    retry_after_s: int = 10
    hold: bool = False
    hold_deadline_s: float | None = None
    cut: bool = False
    unit: str = ""


def policy_for_level(level: Level, settings: GateSettings) -> Policy:
    """What a level means when no daemon says it: clamp and trim from elevated, refuse from high."""
    if level is Level.NORMAL:
        return Policy(retry_after_s=settings.retry_after_s)
    return Policy(
        level=level,
        clamp_max_tokens=settings.clamp_max_tokens,
        keep_recent_tokens=settings.keep_recent_tokens or None,
        refuse=level >= Level.HIGH,
        retry_after_s=settings.retry_after_s,
    )


def policy_from_line(line: Mapping[str, Any]) -> Policy:
    """The policy in a state line; raises ValueError when a field has a wrong type or an impossible value."""
    try:
        level = Level[str(line["level"]).upper()]
    except KeyError as error:
        raise ValueError("state line without a known level") from error
    return Policy(
        level=level,
        clamp_max_tokens=_positive(line, "clamp_max_tokens"),
        keep_recent_tokens=_positive(line, "keep_recent_tokens"),
        refuse=line.get("refuse") is True,
        retry_after_s=int(min(max(_number(line, "retry_after_s") or 10, 1), 3600)),
        hold=line.get("hold") is True,
        hold_deadline_s=_number(line, "hold_deadline_s"),
        cut=line.get("cut") is True,
        unit=str(line.get("unit") or "")[:256],
    )


def _number(line: Mapping[str, Any], key: str) -> float | None:
    value = line.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e12:
        raise ValueError(f"state line: `{key}` is no number that makes sense")
    return value


def _positive(line: Mapping[str, Any], key: str) -> int | None:
    value = _number(line, key)
    return None if value is None else max(1, int(value))
