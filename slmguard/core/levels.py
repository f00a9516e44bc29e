"""From figures to a level: up at once, down slowly."""

from __future__ import annotations

from dataclasses import dataclass

from slmguard.core.model import HostReading, Level
from slmguard.core.settings import HostSettings, LevelSettings

UP = (Level.CRITICAL, Level.HIGH, Level.ELEVATED)


@dataclass(frozen=True, slots=True)
class LevelState:
    """The level in force, and since when the figures have asked for a lower one (None: they don't)."""

    level: Level = Level.NORMAL
    calm_since_s: float | None = None


def by_ratio(ratio: float | None, settings: LevelSettings, margin: float = 0.0) -> Level:
    """The level that `ratio` alone asks for; `margin` lowers every threshold. No ratio asks for nothing."""
    if ratio is None:
        return Level.NORMAL
    for level in UP:
        if ratio >= settings.threshold(level) - margin:
            return level
    return Level.NORMAL


def by_host(host: HostReading | None, settings: HostSettings, margin: float = 0.0) -> Level:
    """The level that the board's headroom asks for; `margin` raises every threshold by that share of it."""
    if host is None or not settings.enabled or host.total_bytes <= 0:
        return Level.NORMAL
    ratio = host.headroom_bytes / host.total_bytes
    for level, threshold in (
        (Level.CRITICAL, settings.critical_ratio),
        (Level.HIGH, settings.high_ratio),
        (Level.ELEVATED, settings.elevated_ratio),
    ):
        if ratio < threshold * (1 + margin):
            return level
    return Level.NORMAL


def settle(state: LevelState, wanted: Level, wanted_with_margin: Level, now_s: float, hold_s: float) -> LevelState:
    """The level after one more look.

    `wanted` is what the figures ask for, `wanted_with_margin` what they ask for with all thresholds lowered by the
    hysteresis. Rising happens at once. Falling waits until the figures have stayed below the band for `hold_s`,
    and then goes to what they ask for with the margin.
    """
    if wanted > state.level:
        return LevelState(wanted)
    if wanted_with_margin >= state.level:
        return LevelState(state.level)
    if state.calm_since_s is None:
        return LevelState(state.level, now_s)
    if now_s - state.calm_since_s < hold_s:
        return state
    return LevelState(wanted_with_margin)
