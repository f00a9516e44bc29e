"""Memory of a unit from its cgroup v2.

Nothing is forked or opened while the unit lives. When it restarts its cgroup gets a new inode under the same path and
the old descriptors answer ENODEV: that ends one reading, the next opens the path again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from slmguard.core.model import MemoryEvents, MemoryReading
from slmguard.sources.files import KeptFile, parse_colon_kb, parse_keyed, parse_number, parse_pressure_total
from slmguard.sources.systemd_unit import UnitView, show

FILES = (
    "memory.current",
    "memory.stat",
    "memory.high",
    "memory.max",
    "memory.events",
    "cgroup.procs",
)
OPTIONAL_FILES = ("memory.swap.current", "memory.pressure")  # absent without swap accounting or PSI
MAX_PROCESSES = 64
PROCESS_LIST_AGE_S = 1.0
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
CONTROLLER_HINT = (
    "no cgroup v2 memory controller here; on a Raspberry Pi add cgroup_enable=memory to /boot/firmware/cmdline.txt,"
    " elsewhere boot with systemd.unified_cgroup_hierarchy=1"
)


class CgroupSource:
    """The cgroup of one systemd unit (see MemorySource). `look_up` finds the unit; it may block."""

    name = "cgroup"

    def __init__(
        self,
        unit: str,
        *,
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        proc_root: Path = Path("/proc"),
        look_up: Callable[[str], UnitView] = show,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._unit = unit
        self._root = cgroup_root
        self._proc = proc_root
        self._look_up = look_up
        self._clock = clock
        self._problem: str | None = f"{unit} has not been looked up yet"
        self._folder: Path | None = None
        self._files: dict[str, KeptFile] = {}
        self._parents: list[tuple[KeptFile, KeptFile]] = []
        self._inode: int | None = None
        self._processes: dict[int, KeptFile] = {}
        self._listed_at_s = float("-inf")
        self._too_many = False
        self._has_pressure: bool | None = None

    @property
    def available(self) -> bool:
        """True when this host has cgroup v2 with the memory controller."""
        try:
            return b"memory" in (self._root / "cgroup.controllers").read_bytes().split()
        except OSError:
            return False

    @property
    def refresh_wanted(self) -> bool:
        """True until the unit's cgroup is known."""
        return self._folder is None

    @property
    def degraded(self) -> tuple[str, ...]:
        """What cannot be seen, in words."""
        sentences = []
        if self._problem is not None:
            sentences.append(self._problem)
        if self._has_pressure is False:
            sentences.append(
                "this kernel has no PSI for cgroups: a stall is judged by memory.events and refaults alone"
            )
        if self._too_many:
            sentences.append(f"the unit has more than {MAX_PROCESSES} processes: mapped files of the first are counted")
        return tuple(sentences)

    @property
    def main_pid(self) -> int | None:
        """The first process of the unit, None when it has none."""
        return min(self._processes, default=None)

    def refresh(self) -> None:
        """Ask systemd where the unit is. Never raises."""
        if not self.available:
            self._problem = CONTROLLER_HINT
            return
        view = self._look_up(self._unit)
        if view.control_group is None:
            self._problem = view.problem or f"{self._unit} has no cgroup now"
            return
        folder = self._root / view.control_group.lstrip("/")
        if folder != self._folder:
            self._close_files()
            self._folder = folder
        self._problem = None

    def read(self) -> MemoryReading | None:
        """The figures of this instant; None when the unit has no cgroup now."""
        if self._folder is None:
            return None
        if not self._files and not self._open(self._folder):
            return None
        current = parse_number(self._files["memory.current"].read())
        stat_data, events_data = self._files["memory.stat"].read(), self._files["memory.events"].read()
        if current is None or stat_data is None or events_data is None:
            self._close_files()  # the cgroup is gone (ENODEV); whatever is under this path next is another life
            return None
        stat, events = parse_keyed(stat_data), parse_keyed(events_data)
        high, maximum = self._limits()
        pressure = self._read_optional("memory.pressure")
        return MemoryReading(
            source=self.name,
            instance=f"cgroup:{self._inode}",
            current_bytes=current,
            anon_bytes=stat.get(b"anon", 0),
            swap_bytes=parse_number(self._read_optional("memory.swap.current")) or 0,
            shmem_bytes=stat.get(b"shmem", 0),
            kernel_unreclaimable_bytes=kernel_unreclaimable(stat),
            file_mapped_bytes=stat.get(b"file_mapped", 0),
            rss_file_bytes=self._rss_file(),
            inactive_file_bytes=stat.get(b"inactive_file", 0),
            high_bytes=high,
            max_bytes=maximum,
            events=MemoryEvents(
                high=events.get(b"high", 0),
                max=events.get(b"max", 0),
                oom=events.get(b"oom", 0),
                oom_kill=events.get(b"oom_kill", 0),
                oom_group_kill=events.get(b"oom_group_kill", 0),
            ),
            refault_pages=_in_4k_pages(stat.get(b"workingset_refault_file", stat.get(b"workingset_refault"))),
            major_faults=stat.get(b"pgmajfault"),
            scanned_pages=stat.get(b"pgscan"),
            stolen_pages=stat.get(b"pgsteal"),
            psi_full_us=parse_pressure_total(pressure, b"full"),
            process_count=len(self._processes),
        )

    def close(self) -> None:
        """Give back all descriptors."""
        self._close_files()

    def _open(self, folder: Path) -> bool:
        try:
            self._inode = folder.stat().st_ino
        except OSError:
            return False
        self._files = {name: KeptFile(folder / name) for name in FILES}
        self._files.update({name: KeptFile(folder / name) for name in OPTIONAL_FILES if (folder / name).exists()})
        self._has_pressure = self._read_optional("memory.pressure") is not None
        self._parents = []
        parent = folder.parent
        while parent != self._root and self._root in parent.parents:
            self._parents.append((KeptFile(parent / "memory.high"), KeptFile(parent / "memory.max")))
            parent = parent.parent
        self._listed_at_s = float("-inf")
        return True

    def _read_optional(self, name: str) -> bytes | None:
        file = self._files.get(name)
        return file.read() if file is not None else None

    def _limits(self) -> tuple[int | None, int | None]:
        """The lowest MemoryHigh and MemoryMax that bind the unit, its slices included."""
        highs = [parse_number(self._files["memory.high"].read())]
        maxima = [parse_number(self._files["memory.max"].read())]
        for high, maximum in self._parents:
            highs.append(parse_number(high.read()))
            maxima.append(parse_number(maximum.read()))
        return _lowest(highs), _lowest(maxima)

    def _rss_file(self) -> int:
        """Mapped file pages of the unit's processes: the largest, since they map the same weights."""
        now_s = self._clock()
        if now_s - self._listed_at_s >= PROCESS_LIST_AGE_S:
            self._listed_at_s = now_s
            self._list_processes()
        largest = 0
        for status in self._processes.values():
            data = status.read()
            if data is not None:
                largest = max(largest, parse_colon_kb(data).get(b"RssFile", 0))
        return largest

    def _list_processes(self) -> None:
        data = self._files["cgroup.procs"].read() or b""
        pids = [int(word) for word in data.split()[: MAX_PROCESSES + 1] if word.isdigit() and word != b"0"]
        self._too_many = len(pids) > MAX_PROCESSES
        pids = pids[:MAX_PROCESSES]
        for pid in [pid for pid in self._processes if pid not in pids]:
            self._processes.pop(pid).close()
        for pid in pids:
            if pid not in self._processes:
                self._processes[pid] = KeptFile(self._proc / str(pid) / "status")

    def _close_files(self) -> None:
        for file in (*self._files.values(), *self._processes.values()):
            file.close()
        for high, maximum in self._parents:
            high.close()
            maximum.close()
        self._files, self._processes, self._parents = {}, {}, []


def kernel_unreclaimable(stat: dict[bytes, int]) -> int:
    """Kernel memory of a cgroup that reclaim cannot give back, from memory.stat.

    Since 5.18 `kernel` is the sum; before, the parts are added up.
    """
    if b"kernel" in stat:
        return max(0, stat[b"kernel"] - stat.get(b"slab_reclaimable", 0)) + stat.get(b"sock", 0)
    parts = (b"slab_unreclaimable", b"kernel_stack", b"pagetables", b"percpu", b"sock")
    return sum(stat.get(part, 0) for part in parts)


def _lowest(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return min(known) if known else None


def _in_4k_pages(pages: int | None) -> int | None:
    """Pages as the kernel counts them (16 KiB on a Raspberry Pi 5) in units of 4 KiB."""
    return None if pages is None else pages * (PAGE_BYTES // 4096)
