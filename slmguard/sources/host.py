"""The whole board: headroom for every decision, and a memory source of last resort."""

from __future__ import annotations

import os
import time
from pathlib import Path

from slmguard.core.model import HostReading, MemoryEvents, MemoryReading
from slmguard.sources.kept_file import KeptFile, Pread
from slmguard.sources.kernel_text import (
    find_keyed,
    in_4k_pages,
    parse_colon_rows,
    parse_keyed,
    parse_limit,
    parse_number,
    sum_known,
)
from slmguard.sources.pressure import parse_pressure

_MEMINFO_KEYS = frozenset(
    b"MemTotal MemFree MemAvailable Buffers Cached Active(file) Inactive(file) SwapTotal SwapFree AnonPages Mapped "
    b"Shmem SReclaimable SUnreclaim KernelStack PageTables SecPageTables Percpu CmaFree NvMapMemUsed".split()
)


class HostProbe:
    """Reads /proc/meminfo, /proc/vmstat and the host's PSI through kept descriptors.

    In a container /proc/meminfo shows the machine outside; where the container's own cgroup has a limit, total and
    available memory are cut down to it.
    """

    def __init__(
        self,
        proc_root: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        *,
        pread: Pread = os.pread,
    ) -> None:
        self._meminfo = KeptFile(proc_root / "meminfo", pread=pread)
        # The kernel hands out vmstat a page at a time, and it is longer than one.
        self._vmstat = KeptFile(proc_root / "vmstat", in_pieces=True, pread=pread)
        self._pressure = KeptFile(proc_root / "pressure" / "memory", pread=pread)
        # Only a container has these in its root: the root cgroup of a host has no limit of its own.
        self._container = {
            name: KeptFile(cgroup_root / name, pread=pread) for name in ("memory.max", "memory.current", "memory.stat")
        }
        self._low_watermark_bytes = _low_watermark_bytes(proc_root)
        self._meminfo_path = proc_root / "meminfo"
        self._notes: dict[str, str] = {}

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is not seen, in sentences."""
        return tuple(self._notes.values())

    def rows(self) -> dict[bytes, int]:
        """The known rows of /proc/meminfo in bytes; empty when it cannot be read."""
        return parse_colon_rows(self._meminfo.read() or b"", _MEMINFO_KEYS)

    def vmstat(self) -> bytes:
        """/proc/vmstat; empty when it cannot be read."""
        return self._vmstat.read() or b""

    def read(self) -> HostReading | None:
        """The figures of this instant; None when /proc/meminfo does not say how much memory there is."""
        return self.reading(self.rows(), find_keyed(self.vmstat(), b"oom_kill"))

    def reading(self, rows: dict[bytes, int], oom_kills: int | None) -> HostReading | None:
        """The reading that these files make, with PSI and the container's limit read now."""
        available = self._available(rows)
        if b"MemTotal" not in rows or available is None:
            self._note("meminfo", f"{self._meminfo_path} has no MemTotal or MemFree: the host's memory is not watched")
            return None
        self._note("meminfo", None)
        total, available = self._within_container(rows[b"MemTotal"], available)
        pressure = parse_pressure(self._pressure.read() or b"")
        self._note("psi", None if pressure.some_us is not None else _NO_PSI)
        self._note("oom_kill", None if oom_kills is not None else _NO_OOM_COUNT)
        return HostReading(
            total_bytes=total,
            available_bytes=available,
            cma_free_bytes=rows.get(b"CmaFree", 0),
            swap_total_bytes=rows.get(b"SwapTotal", 0),
            swap_free_bytes=rows.get(b"SwapFree", 0),
            psi_some_us=pressure.some_us,
            psi_full_us=pressure.full_us,
            oom_kills=oom_kills,
        )

    def _available(self, rows: dict[bytes, int]) -> int | None:
        if b"MemAvailable" in rows:
            return rows[b"MemAvailable"]
        if b"MemFree" not in rows:
            return None
        self._note("available", "this kernel has no MemAvailable (before 3.14): it is estimated from the page cache")
        return estimate_available(rows, self._low_watermark_bytes)

    def _within_container(self, total: int, available: int) -> tuple[int, int]:
        limit = parse_limit(self._container["memory.max"].read())
        current = parse_number(self._container["memory.current"].read())
        if limit is None or current is None or limit >= total:
            return total, available
        stat = parse_keyed(self._container["memory.stat"].read() or b"")
        cache = sum_known(stat, (b"inactive_file", b"active_file", b"slab_reclaimable"))
        self._note(
            "container",
            f"this is a container limited to {limit >> 20} MiB on a machine with {total >> 20} MiB: headroom is "
            "that of the container, swap and CMA are the machine's",
        )
        return limit, min(available, max(0, limit - current + cache))

    def _note(self, key: str, sentence: str | None) -> None:
        if sentence is None:
            self._notes.pop(key, None)
        elif key not in self._notes:
            self._notes[key] = sentence

    def close(self) -> None:
        """Give back all descriptors; for good."""
        for file in (self._meminfo, self._vmstat, self._pressure, *self._container.values()):
            file.close()


_NO_PSI = "this kernel has no PSI (/proc/pressure/memory): pressure is judged by headroom alone; psi=1 may turn it on"
_NO_OOM_COUNT = "/proc/vmstat has no oom_kill row (before Linux 4.13): kills are known from the kernel log alone"


def estimate_available(rows: dict[bytes, int], low_watermark_bytes: int) -> int:
    """MemAvailable as kernels from 3.14 on reckon it, for older ones.

    Free memory and what of cache and slab can go, less the low watermark that allocations may not use.
    """
    cache = rows.get(b"Active(file)", 0) + rows.get(b"Inactive(file)", 0)
    slab = rows.get(b"SReclaimable", 0)
    available = rows[b"MemFree"] - low_watermark_bytes
    available += cache - min(cache // 2, low_watermark_bytes)
    available += slab - min(slab // 2, low_watermark_bytes)
    return max(0, available)


def _low_watermark_bytes(proc_root: Path) -> int:
    """The low watermark: five quarters of min_free_kbytes; 0 when that cannot be read."""
    try:
        text = (proc_root / "sys" / "vm" / "min_free_kbytes").read_bytes()
    except OSError:
        return 0
    return (parse_number(text) or 0) * 1024 * 5 // 4


class HostSource:
    """The whole board as a memory source, where neither a cgroup nor a process can be told apart.

    Without a budget all of its RAM is the limit.
    """

    name = "host"

    def __init__(
        self,
        *,
        budget_bytes: int | None = None,
        passed_over: tuple[str, ...] = (),
        proc_root: Path = Path("/proc"),
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        pread: Pread = os.pread,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._passed_over = passed_over
        self._probe = HostProbe(proc_root, cgroup_root, pread=pread)
        self._instance = _boot_id(proc_root)

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is not seen, in sentences."""
        note = "the whole board is measured: memory of other programs counts as if the guarded service had taken it"
        return (*self._passed_over, note, *self._probe.degraded)

    @property
    def refresh_wanted(self) -> bool:
        """Never: there is nothing to find."""
        return False

    def refresh(self) -> None:
        """Nothing to find: the board is always there."""

    def read(self) -> MemoryReading | None:
        """The board's memory in the same terms as a service's; None when /proc/meminfo cannot be read."""
        rows, vmstat = self._probe.rows(), parse_keyed(self._probe.vmstat())
        oom_kills = vmstat.get(b"oom_kill")
        host = self._probe.reading(rows, oom_kills)
        if host is None or b"MemFree" not in rows or b"AnonPages" not in rows:
            return None
        return MemoryReading(
            source=self.name,
            instance=self._instance,
            current_bytes=rows[b"MemTotal"] - rows[b"MemFree"],
            anon_bytes=rows[b"AnonPages"],
            swap_bytes=max(0, host.swap_total_bytes - host.swap_free_bytes),
            shmem_bytes=rows.get(b"Shmem", 0),
            kernel_unreclaimable_bytes=sum_known(
                rows, (b"SUnreclaim", b"KernelStack", b"PageTables", b"SecPageTables", b"Percpu")
            ),
            file_mapped_bytes=rows.get(b"Mapped", 0),
            inactive_file_bytes=rows.get(b"Inactive(file)", 0),
            driver_bytes=rows.get(b"NvMapMemUsed", 0),
            high_bytes=self._budget_bytes if self._budget_bytes is not None else rows[b"MemTotal"],
            max_bytes=rows[b"MemTotal"],
            events=None if oom_kills is None else MemoryEvents(oom_kill=oom_kills),
            refault_pages=in_4k_pages(vmstat.get(b"workingset_refault_file", vmstat.get(b"workingset_refault"))),
            major_faults=vmstat.get(b"pgmajfault"),
            scanned_pages=in_4k_pages(_scanned(vmstat, b"pgscan")),
            stolen_pages=in_4k_pages(_scanned(vmstat, b"pgsteal")),
            psi_full_us=host.psi_full_us,
        )

    def close(self) -> None:
        """Give back all descriptors; for good."""
        self._probe.close()


def _scanned(vmstat: dict[bytes, int], kind: bytes) -> int | None:
    """Pages scanned or stolen by kswapd and by allocating tasks; older kernels count per zone (`pgscan_direct_dma`)."""
    prefixes = (kind + b"_kswapd", kind + b"_direct")
    rows = [number for key, number in vmstat.items() if key.startswith(prefixes) and not key.endswith(b"_throttle")]
    return sum(rows) if rows else None


def _boot_id(proc_root: Path) -> str:
    try:
        return (proc_root / "sys" / "kernel" / "random" / "boot_id").read_text("ascii", "replace").strip()
    except OSError:
        return f"board since {time.monotonic():.0f} s"
