"""The cgroup source: the v2 files of one systemd unit, read at every tick without opening anything."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slmguard.core.errors import UserError
from slmguard.core.model import MemoryEvents, MemoryReading
from slmguard.sources.cgroup_files import CgroupFiles, CgroupGoneError, LimitChain
from slmguard.sources.driver_memory import DriverProbe
from slmguard.sources.hierarchy import memory_controller_problem
from slmguard.sources.kept_file import Pread
from slmguard.sources.kernel_text import in_4k_pages, parse_keyed, parse_limit, parse_number, sum_known
from slmguard.sources.pressure import parse_pressure
from slmguard.sources.processes import MAX_PROCESSES, ProcessTable
from slmguard.sources.systemd_unit import UnitView, show_unit

LIST_INTERVAL_S = 1.0  # processes and their RssFile are looked at no more often than this
REFRESH_INTERVAL_S = 2.0  # systemd is not asked more often than this while the unit is away

_FILES = (
    "memory.current",
    "memory.stat",
    "memory.high",
    "memory.max",
    "memory.events",
    "memory.swap.current",
    "memory.pressure",
    "cgroup.procs",
)
# Before 5.18 memory.stat has no `kernel` row; these are its parts. `sock` is never part of `kernel`.
_KERNEL_PARTS = (b"slab", b"kernel_stack", b"pagetables", b"sec_pagetables", b"percpu", b"vmalloc")


@dataclass(slots=True)
class _Life:
    """What is held while one cgroup exists, and what is known of its processes since the last listing."""

    files: CgroupFiles
    limits: LimitChain
    listed_at_s: float | None = None
    pids: frozenset[int] = frozenset()
    generation: int = 0
    complete: bool = True
    rss_file_bytes: int = 0
    driver_bytes: int = 0
    process_count: int | None = None

    def close(self) -> None:
        self.files.close()
        self.limits.close()


def kernel_unreclaimable(stat: dict[bytes, int]) -> int:
    """Kernel memory of a cgroup that reclaim cannot get back, from memory.stat in bytes.

    A memory.stat without `slab_reclaimable` has nothing subtracted: too much is the careful side.
    """
    kernel = stat[b"kernel"] if b"kernel" in stat else sum_known(stat, _KERNEL_PARTS)
    if b"kernel" not in stat and b"slab" not in stat:
        kernel += sum_known(stat, (b"slab_reclaimable", b"slab_unreclaimable"))
    return max(0, kernel - stat.get(b"slab_reclaimable", 0)) + stat.get(b"sock", 0)


def parse_events(data: bytes | None) -> MemoryEvents | None:
    """The counters of memory.events; those that this kernel does not have yet are 0, an absent file is None."""
    rows = parse_keyed(data) if data is not None else {}
    if not rows:
        return None
    return MemoryEvents(
        high=rows.get(b"high", 0),
        max=rows.get(b"max", 0),
        oom=rows.get(b"oom", 0),
        oom_kill=rows.get(b"oom_kill", 0),
        oom_group_kill=rows.get(b"oom_group_kill", 0),
    )


class CgroupSource:
    """Memory of a unit from its cgroup v2 files. Cheap to make; `refresh` finds the cgroup, `read` opens and reads it.

    When the unit restarts, its path stays and its inode changes: `read` notices by itself and gives a new `instance`.
    So it does when every process of the cgroup has been replaced, for systemd may keep the cgroup over a restart.
    `cgroup_path`, a path below the root such as `/system.slice/x.service`, spares asking systemd.
    """

    name = "cgroup"

    def __init__(
        self,
        unit: str,
        *,
        cgroup_root: Path = Path("/sys/fs/cgroup"),
        proc_root: Path = Path("/proc"),
        cgroup_path: str | None = None,
        show: Callable[[str], UnitView] = show_unit,
        driver_probe: DriverProbe | None = None,
        clock: Callable[[], float] = time.monotonic,
        pread: Pread = os.pread,
    ) -> None:
        self.unit = unit
        self._cgroup_root = cgroup_root
        self._proc_root = proc_root
        self._fixed_path = cgroup_path
        self._show = show
        self._driver_probe = driver_probe
        self._clock = clock
        self._pread = pread
        # `refresh` runs in the worker while `read` runs in the loop: the worker only ever swaps whole values.
        self._target: Path | None = None
        self._refresh_notes: tuple[str, ...] = ()
        self._refreshed_at_s: float | None = None
        self._life: _Life | None = None
        self._life_notes: dict[str, str] = {}
        self._retry_incomplete = False
        self._processes = ProcessTable(proc_root, pread=pread)
        self._located = cgroup_path is not None

    @property
    def available(self) -> bool:
        """False when this host's cgroups cannot tell memory at all. Opens a file: not for the hot path."""
        return memory_controller_problem(self._cgroup_root, self._proc_root) is None

    @property
    def main_pid(self) -> int | None:
        """The first process of the unit as of the last reading, None when it has none."""
        return min(self._processes.pids, default=None)

    @property
    def located(self) -> bool:
        """True when the unit exists, running or not; False when no systemd could be asked or it knows no such unit."""
        return self._located

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is not seen, in sentences."""
        return (*self._refresh_notes, *self._life_notes.copy().values())

    @property
    def refresh_wanted(self) -> bool:
        """True while there is nothing to read and systemd was not asked within the last two seconds."""
        if self._life is not None and self._life.complete:
            return False
        asked_s = self._refreshed_at_s
        return asked_s is None or self._clock() - asked_s >= REFRESH_INTERVAL_S

    def refresh(self) -> None:
        """Ask systemd where the unit's cgroup is. A unit that cannot be asked about keeps the path it had."""
        problem = memory_controller_problem(self._cgroup_root, self._proc_root)
        self._refresh_notes = (problem,) if problem is not None else self._locate()
        self._retry_incomplete = True  # e.g. accounting was switched on meanwhile: same cgroup, new files
        self._refreshed_at_s = self._clock()

    def _locate(self) -> tuple[str, ...]:
        """Set the path of the unit's cgroup where systemd knows one; what is wrong with the unit, in sentences."""
        control_group, problem = self._fixed_path, None
        if control_group is None:
            try:
                view = self._show(self.unit)
            except UserError as error:
                return (str(error),)
            control_group, problem = view.control_group, view.problem
            self._located = view.load_state != "not-found"
        if control_group is not None:
            self._target = self._cgroup_root / control_group.lstrip("/")
        return () if problem is None else (problem,)

    def read(self) -> MemoryReading | None:
        """The figures of this instant; None while the unit has no cgroup or the cgroup is just being removed."""
        life = self._current_life()
        if life is None:
            return None
        try:
            if life.listed_at_s is None or self._clock() - life.listed_at_s >= LIST_INTERVAL_S:
                self._list_processes(life)
            return self._take(life)
        except CgroupGoneError:
            self._forget()
            return None

    def _current_life(self) -> _Life | None:
        target = self._target
        life = self._life
        if life is not None and (
            life.files.path != target or not life.files.current() or (self._retry_incomplete and not life.complete)
        ):
            self._forget()
        self._retry_incomplete = False
        if self._life is None and target is not None:
            try:
                files = CgroupFiles(target, _FILES, pread=self._pread)
            except OSError:
                return None
            self._life = _Life(files, LimitChain(self._cgroup_root, target, pread=self._pread))
        return self._life

    def _forget(self) -> None:
        if self._life is not None:
            self._life.close()
        self._life = None
        self._life_notes = {}
        self._processes.keep(())

    def _list_processes(self, life: _Life) -> None:
        pids = life.files.pids()
        seen = frozenset(pids)
        if life.pids and seen and not (life.pids & seen):
            life.generation += 1
        life.pids = seen or life.pids
        life.process_count = len(seen) if life.files.why_unreadable("cgroup.procs") is None else None
        self._processes.keep(pids)
        # The largest, not the sum: processes that share weights or libraries map the same pages, and 16 workers with
        # 150 MiB of shared libraries each would look like 2.4 GiB. Pages charged here are in file_mapped exactly.
        life.rss_file_bytes = max((figures.file_bytes for figures in self._processes.read()), default=0)
        if self._driver_probe is not None:
            life.driver_bytes = self._driver_probe.read(pids) or 0
        life.listed_at_s = self._clock()
        self._note(
            "processes",
            f"{self.unit} has {life.process_count} processes: RssFile is looked at in the first {MAX_PROCESSES} only"
            if self._processes.left_out
            else None,
        )

    def _take(self, life: _Life) -> MemoryReading | None:
        files = life.files
        current = parse_number(files.read("memory.current"))
        stat = parse_keyed(files.read("memory.stat") or b"")
        life.complete = self._complete(files, current, stat)
        if current is None or not life.complete:
            return None
        pressure = parse_pressure(files.read("memory.pressure") or b"")
        self._note("psi", self._psi_note(files, pressure.full_us))
        high_bytes, max_bytes = self._limits(life)
        return MemoryReading(
            source=self.name,
            instance=f"{files.inode}.{life.generation}" if life.generation else str(files.inode),
            current_bytes=current,
            anon_bytes=stat[b"anon"],
            swap_bytes=parse_number(files.read("memory.swap.current")) or 0,
            shmem_bytes=stat.get(b"shmem", 0),
            kernel_unreclaimable_bytes=kernel_unreclaimable(stat),
            file_mapped_bytes=stat.get(b"file_mapped", 0),
            rss_file_bytes=life.rss_file_bytes,
            inactive_file_bytes=stat.get(b"inactive_file", 0),
            driver_bytes=life.driver_bytes,
            high_bytes=high_bytes,
            max_bytes=max_bytes,
            events=parse_events(files.read("memory.events")),
            # Before 5.9 file and anonymous refaults were one counter, and only file pages had it.
            refault_pages=in_4k_pages(stat.get(b"workingset_refault_file", stat.get(b"workingset_refault"))),
            major_faults=stat.get(b"pgmajfault"),
            scanned_pages=in_4k_pages(stat.get(b"pgscan")),
            stolen_pages=in_4k_pages(stat.get(b"pgsteal")),
            psi_full_us=pressure.full_us,
            process_count=life.process_count,
        )

    def _complete(self, files: CgroupFiles, current: int | None, stat: dict[bytes, int]) -> bool:
        """Whether the two files without which nothing can be decided say what they must; notes it when not."""
        note = None
        why = files.why_unreadable("memory.current")
        if why is not None:
            note = (
                f"{files.path}/memory.current cannot be read ({why}): is memory accounting off for {self.unit}? "
                f"`systemctl set-property {self.unit} MemoryAccounting=yes` turns it on"
            )
        elif current is None:
            note = f"{files.path}/memory.current holds no number: {self.unit} is not measured"
        elif b"anon" not in stat:
            note = f"{files.path}/memory.stat has no whole `anon` row: {self.unit} is not measured"
        self._note("files", note)
        return note is None

    def _psi_note(self, files: CgroupFiles, full_us: int | None) -> str | None:
        if full_us is not None:
            return None
        why = files.why_unreadable("memory.pressure") or "no `full` row in it"
        return f"no PSI for {self.unit} (memory.pressure: {why}): a stall is judged by memory.events and refaults alone"

    def _limits(self, life: _Life) -> tuple[int | None, int | None]:
        """memory.high and memory.max that apply: the unit's own or, where smaller, an ancestor's, which is noted."""
        effective: list[int | None] = []
        for name in ("memory.high", "memory.max"):
            own = parse_limit(life.files.read(name))
            above, owner = life.limits.smallest(name)
            from_above = above is not None and (own is None or above < own)
            effective.append(above if from_above else own)
            self._note(
                name,
                f"the {name} that binds {self.unit} is that of {owner} ({(above or 0) >> 20} MiB), shared with all "
                "that runs there: it can be reached before the unit alone fills it"
                if from_above
                else None,
            )
        self._note(
            "limits",
            f"{self.unit} has neither MemoryHigh nor MemoryMax: it has no limit to stay under "
            f"(`systemctl set-property {self.unit} MemoryHigh=… MemoryMax=…` sets them)"
            if effective == [None, None]
            else None,
        )
        return effective[0], effective[1]

    def _note(self, key: str, sentence: str | None) -> None:
        if sentence is None:
            self._life_notes.pop(key, None)
        elif self._life_notes.get(key) != sentence:
            self._life_notes[key] = sentence

    def close(self) -> None:
        """Give back all descriptors; a later `read` opens them again."""
        self._forget()
        self._processes.close()
