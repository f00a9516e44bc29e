"""The settings that decisions depend on, with their defaults.

The configuration file is validated elsewhere (slmguard.config); what arrives here is already sound.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slmguard.core.model import Level, Rung

MIB = 1 << 20

FIGURES = ("demand", "working_set", "current")


@dataclass(frozen=True, slots=True)
class LevelSettings:
    """Where the levels begin, as ratios of the limit, and how slowly they are left.

    A level is left when the figure has been `hysteresis_ratio` below its threshold for `hold_s`.
    """

    elevated_ratio: float = 0.85
    high_ratio: float = 0.92
    critical_ratio: float = 0.97
    hysteresis_ratio: float = 0.03
    hold_s: float = 15.0

    def threshold(self, level: Level) -> float:
        """The ratio at which `level` begins; 0 for normal."""
        return {
            Level.NORMAL: 0.0,
            Level.ELEVATED: self.elevated_ratio,
            Level.HIGH: self.high_ratio,
            Level.CRITICAL: self.critical_ratio,
        }[level]


@dataclass(frozen=True, slots=True)
class HostSettings:
    """When the whole board counts as short of memory: headroom below these ratios of its RAM."""

    enabled: bool = True
    elevated_ratio: float = 0.08
    high_ratio: float = 0.05
    critical_ratio: float = 0.03


@dataclass(frozen=True, slots=True)
class ForecastSettings:
    """How the time until the limit is foreseen.

    `lead_s`: an elevated service that would cross its limit within this time counts as critical.
    """

    enabled: bool = True
    window_s: float = 60.0
    lead_s: float = 5.0
    min_slope_bytes_per_s: float = 16 * 1024.0
    step_memory_s: float = 600.0


@dataclass(frozen=True, slots=True)
class StallSettings:
    """When a service counts as stalled, though nothing was killed.

    It is stalled when, over `window_s`, it was throttled by memory.high and made no progress:
    less than `crawl_tokens_per_s` while a slot is busy. `deadline_s` after that it is restarted by force.
    Throttled means `high` events at `high_events_per_s` or more, together with one of: PSI full at
    `psi_full_ratio`, refaults at `refault_bytes_per_s`, or a demand at the limit (nothing left to reclaim).
    """

    enabled: bool = True
    window_s: float = 10.0
    deadline_s: float = 30.0
    high_events_per_s: float = 0.5
    psi_full_ratio: float = 0.4
    refault_bytes_per_s: float = 4.0 * MIB
    crawl_tokens_per_s: float = 0.5


@dataclass(frozen=True, slots=True)
class RungSettings:
    """When one rung is used. `deadline_s` bounds one run, `cooldown_s` is the least time between two."""

    enabled: bool = True
    at: Level = Level.ELEVATED
    cooldown_s: float = 30.0
    deadline_s: float = 20.0


@dataclass(frozen=True, slots=True)
class RestartSettings:
    """How often and for what a restart may be used."""

    budget_per_hour: int = 12
    min_interval_s: float = 60.0
    min_freeable_ratio: float = 0.05


@dataclass(frozen=True, slots=True)
class LadderSettings:
    """All rungs, and what they are used with."""

    clamp: RungSettings = RungSettings(at=Level.ELEVATED)
    trim: RungSettings = RungSettings(at=Level.ELEVATED, cooldown_s=60.0, deadline_s=10.0)
    drop_caches: RungSettings = RungSettings(at=Level.ELEVATED, cooldown_s=60.0, deadline_s=20.0)
    refuse: RungSettings = RungSettings(at=Level.HIGH)
    planned_restart: RungSettings = RungSettings(at=Level.HIGH, cooldown_s=0.0, deadline_s=300.0)
    forced_restart: RungSettings = RungSettings(at=Level.CRITICAL, cooldown_s=0.0, deadline_s=240.0)
    settle_s: float = 3.0
    ineffective_after: int = 2
    clamp_max_tokens: int = 256
    keep_recent_tokens: int = 512
    retry_after_s: float = 10.0

    def rung(self, rung: Rung) -> RungSettings:
        """The settings of one rung."""
        settings: RungSettings = getattr(self, rung.value)
        return settings


@dataclass(frozen=True, slots=True)
class CadenceSettings:
    """How often the guard looks.

    `fill_bytes_per_s` is the fastest growth that the interval must still catch: llama.cpp filled its prompt cache
    at no more than this on a 2-core x86 (26 MB copied in well under 0.2 s); boards are slower.
    """

    min_s: float = 0.1
    max_s: float = 2.0
    fill_bytes_per_s: float = 200.0 * MIB


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything that the pure core needs to decide."""

    figure: str = "demand"
    levels: LevelSettings = field(default_factory=LevelSettings)
    host: HostSettings = field(default_factory=HostSettings)
    forecast: ForecastSettings = field(default_factory=ForecastSettings)
    stall: StallSettings = field(default_factory=StallSettings)
    ladder: LadderSettings = field(default_factory=LadderSettings)
    restart: RestartSettings = field(default_factory=RestartSettings)
    cadence: CadenceSettings = field(default_factory=CadenceSettings)
    dry_run: bool = False
