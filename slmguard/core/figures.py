"""The four memory figures, and what they are compared with.

`memory.current` sits at MemoryHigh whether the true need is 100 % or 115 % of it, because the kernel then evicts
the mapped weights. Demand counts what the service needs to run well: what cannot be reclaimed, plus its weights.
"""

from __future__ import annotations

from dataclasses import dataclass

from slmguard.core.model import MemoryReading


@dataclass(frozen=True, slots=True)
class Figures:
    """All figures of one instant, in bytes. `limit_bytes` is None when nothing limits the service."""

    current_bytes: int
    working_set_bytes: int
    unreclaimable_bytes: int
    demand_bytes: int
    hot_weights_bytes: int
    chosen_bytes: int
    limit_bytes: int | None

    @property
    def ratio(self) -> float | None:
        """The chosen figure over the limit, None without a limit."""
        if not self.limit_bytes:
            return None
        return self.chosen_bytes / self.limit_bytes


def hot_weights_now(reading: MemoryReading) -> int:
    """Bytes of mapped files now in use: the larger of what the cgroup is charged and what the processes map.

    The page cache of the weights may be charged to an older cgroup (measured: 84 MB instead of 126 MB after a
    restart), so RssFile of the processes is looked at too. `file_mapped` includes mapped shared memory, which
    demand counts apart.
    """
    return max(0, reading.file_mapped_bytes - reading.shmem_bytes, reading.rss_file_bytes)


def limit_of(reading: MemoryReading) -> int | None:
    """The lower of MemoryHigh and MemoryMax; None without either. (A MemoryHigh above MemoryMax never throttles.)"""
    limits = [limit for limit in (reading.high_bytes, reading.max_bytes) if limit is not None]
    return min(limits) if limits else None


def compute(reading: MemoryReading, hot_weights_peak_bytes: int, figure: str) -> Figures:
    """All figures of `reading`; `hot_weights_peak_bytes` is the most seen in this life of the service."""
    hot = max(hot_weights_peak_bytes, hot_weights_now(reading))
    unreclaimable = reading.anon_bytes + reading.shmem_bytes + reading.kernel_unreclaimable_bytes
    demand = unreclaimable + reading.swap_bytes + reading.driver_bytes + hot
    working_set = max(0, reading.current_bytes - reading.inactive_file_bytes)
    chosen = {"demand": demand, "working_set": working_set, "current": reading.current_bytes}[figure]
    return Figures(
        current_bytes=reading.current_bytes,
        working_set_bytes=working_set,
        unreclaimable_bytes=unreclaimable,
        demand_bytes=demand,
        hot_weights_bytes=hot,
        chosen_bytes=chosen,
        limit_bytes=limit_of(reading),
    )
