"""Memory of the whole board, from /proc/meminfo and /proc/vmstat."""

from __future__ import annotations

from pathlib import Path

from slmguard.core.model import HostReading, MemoryReading
from slmguard.sources.files import KeptFile, parse_colon_kb, parse_keyed, parse_pressure_total


class HostProbe:
    """Reads the board's figures through kept descriptors."""

    def __init__(self, proc_root: Path = Path("/proc")) -> None:
        self._meminfo = KeptFile(proc_root / "meminfo")
        self._vmstat = KeptFile(proc_root / "vmstat")
        self._pressure = KeptFile(proc_root / "pressure" / "memory")
        self._sentences: tuple[str, ...] = ()

    @property
    def degraded(self) -> tuple[str, ...]:
        """What cannot be seen of the board, in words."""
        return self._sentences

    def read(self) -> HostReading | None:
        """The figures of this instant; None when /proc/meminfo cannot be read."""
        data = self._meminfo.read()
        if data is None:
            self._sentences = ("/proc/meminfo cannot be read: the board's headroom is not guarded",)
            return None
        info = parse_colon_kb(data)
        total = info.get(b"MemTotal", 0)
        available = info.get(b"MemAvailable")
        sentences = []
        if available is None:  # kernels before 3.14
            available = info.get(b"MemFree", 0) + info.get(b"Cached", 0) - info.get(b"Shmem", 0)
            sentences.append("this kernel has no MemAvailable: it is estimated from free memory and page cache")
        pressure = self._pressure.read()
        self._sentences = tuple(sentences)
        return HostReading(
            total_bytes=total,
            available_bytes=max(0, available),
            cma_free_bytes=info.get(b"CmaFree", 0),
            swap_total_bytes=info.get(b"SwapTotal", 0),
            swap_free_bytes=info.get(b"SwapFree", 0),
            psi_some_us=parse_pressure_total(pressure, b"some"),
            psi_full_us=parse_pressure_total(pressure, b"full"),
            oom_kills=parse_keyed(self._vmstat.read() or b"").get(b"oom_kill"),
        )

    def close(self) -> None:
        """Give back all descriptors."""
        for file in (self._meminfo, self._vmstat, self._pressure):
            file.close()


class HostSource:
    """The whole board as the guarded service (see MemorySource): its RAM is the limit."""

    name = "host"
    refresh_wanted = False

    def __init__(
        self, proc_root: Path = Path("/proc"), high_bytes: int | None = None, reasons: tuple[str, ...] = ()
    ) -> None:
        self.degraded: tuple[str, ...] = (
            *reasons,
            "source host: the figures are those of the whole board, not of the service alone; a stall cannot be seen",
        )
        self._meminfo = KeptFile(proc_root / "meminfo")
        self._high_bytes = high_bytes

    def refresh(self) -> None:
        """Nothing to look up."""

    def read(self) -> MemoryReading | None:
        """The board's figures; None when they cannot be read."""
        data = self._meminfo.read()
        if data is None:
            return None
        info = parse_colon_kb(data)
        kernel = (b"SUnreclaim", b"KernelStack", b"PageTables", b"Percpu")
        total = info.get(b"MemTotal", 0)
        return MemoryReading(
            source=self.name,
            instance="host",
            current_bytes=max(0, total - info.get(b"MemFree", 0)),
            anon_bytes=info.get(b"AnonPages", 0),
            swap_bytes=max(0, info.get(b"SwapTotal", 0) - info.get(b"SwapFree", 0)),
            shmem_bytes=info.get(b"Shmem", 0),
            kernel_unreclaimable_bytes=sum(info.get(name, 0) for name in kernel),
            file_mapped_bytes=info.get(b"Mapped", 0),
            inactive_file_bytes=info.get(b"Inactive(file)", 0),
            high_bytes=self._high_bytes or total or None,
        )

    def close(self) -> None:
        """Give the descriptor back."""
        self._meminfo.close()
