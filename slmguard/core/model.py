"""The values that flow through the guard: readings, samples, levels and what is done about them.

Times named `now_s` are monotonic seconds, times named `wall_s` are seconds since the epoch.
A figure that cannot be read is None, never a silent zero.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.IntEnum):
    """How close the guarded service is to its limit."""

    NORMAL = 0
    ELEVATED = 1
    HIGH = 2
    CRITICAL = 3

    @property
    def word(self) -> str:
        """The level as it is written in status, metrics and configuration."""
        return self.name.lower()


class Rung(str, enum.Enum):
    """The steps of the ladder, from mildest to hardest (docs/reference/ladder.md)."""

    CLAMP = "clamp"
    TRIM = "trim"
    DROP_CACHES = "drop_caches"
    REFUSE = "refuse"
    PLANNED_RESTART = "planned_restart"
    FORCED_RESTART = "forced_restart"


class Outcome(str, enum.Enum):
    """How a run of a rung ended."""

    OK = "ok"  # it ran; what it freed is measured afterwards
    ABSENT = "absent"  # the server does not have it (404, 501): not tried again in this life
    FAILED = "failed"  # it was tried and did not work
    TIMEOUT = "timeout"  # its deadline passed
    SKIPPED = "skipped"  # recovered before it ran
    DRY_RUN = "dry_run"  # it would have run


@dataclass(frozen=True, slots=True)
class MemoryEvents:
    """Counters of cgroup `memory.events`; all of them only ever grow within one cgroup's life."""

    high: int = 0
    max: int = 0
    oom: int = 0
    oom_kill: int = 0
    oom_group_kill: int = 0


@dataclass(frozen=True, slots=True)
class MemoryReading:
    """Memory of the guarded service at one instant, whatever the source.

    `instance` names one life of the service (cgroup inode, or pid and start time); when it changes,
    baselines, peaks and ineffective marks start anew. Pages are counted in units of 4 KiB, whatever the kernel's are.
    """

    source: str
    instance: str
    current_bytes: int
    anon_bytes: int
    swap_bytes: int = 0
    shmem_bytes: int = 0
    kernel_unreclaimable_bytes: int = 0
    file_mapped_bytes: int = 0
    rss_file_bytes: int = 0
    inactive_file_bytes: int = 0
    driver_bytes: int = 0
    high_bytes: int | None = None
    max_bytes: int | None = None
    events: MemoryEvents | None = None
    refault_pages: int | None = None
    major_faults: int | None = None
    scanned_pages: int | None = None
    stolen_pages: int | None = None
    psi_full_us: int | None = None
    process_count: int | None = None


@dataclass(frozen=True, slots=True)
class HostReading:
    """Memory of the whole board. `cma_free_bytes` is free memory that unmovable allocations cannot use."""

    total_bytes: int
    available_bytes: int
    cma_free_bytes: int = 0
    swap_total_bytes: int = 0
    swap_free_bytes: int = 0
    psi_some_us: int | None = None
    psi_full_us: int | None = None
    oom_kills: int | None = None

    @property
    def headroom_bytes(self) -> int:
        """MemAvailable less free CMA: what a new allocation of any kind can still get."""
        return max(0, self.available_bytes - self.cma_free_bytes)


@dataclass(frozen=True, slots=True)
class ServerReading:
    """What the inference server last said of itself; `asked_at_s` tells how old that is.

    `progress_tokens` counts prompt and generated tokens since the server started; it not moving while
    `busy_slots` > 0 is what a stall looks like. `reachable` False means that the health call failed.
    """

    asked_at_s: float
    reachable: bool
    ready: bool
    progress_tokens: int | None = None
    busy_slots: int | None = None
    total_slots: int | None = None
    queued_requests: int | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """Everything that was read for one decision."""

    now_s: float
    wall_s: float
    memory: MemoryReading | None = None
    host: HostReading | None = None
    server: ServerReading | None = None
    gate_connected: bool = False
    degraded: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RungRequest:
    """An order to run one rung; `reason` is a sentence for people."""

    request_id: int
    rung: Rung
    level: Level
    figure_bytes: int
    asked_at_s: float
    deadline_s: float
    reason: str
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class RungResult:
    """How one run of a rung ended, as its edge saw it; bytes freed are measured by the core afterwards."""

    request_id: int
    rung: Rung
    outcome: Outcome
    finished_at_s: float
    seconds: float
    detail: str = ""
