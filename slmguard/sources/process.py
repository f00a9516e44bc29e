"""The process source: a process tree against a configured budget, for hosts without the memory controller.

What the tree uses is put together from /proc/PID/status of its processes:
anonymous memory, swap and page tables are summed; file pages (the weights) and shared memory are those of the process
that maps most of them, since processes that share a model map the same pages and /proc cannot tell pages apart.
Two processes with a model each are therefore told too low; `pss_interval_s` asks the kernel for the exact shares
instead, which costs a walk over all their pages.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import psutil

from slmguard.core.errors import UserError
from slmguard.core.model import MemoryReading
from slmguard.sources.driver_memory import DriverProbe
from slmguard.sources.kept_file import Pread
from slmguard.sources.kernel_text import parse_colon_rows
from slmguard.sources.process_finder import RootFinder
from slmguard.sources.process_target import ProcessTarget
from slmguard.sources.processes import MAX_PROCESSES, ProcessFigures, ProcessTable, parse_stat
from slmguard.sources.systemd_unit import UnitView, show_unit

# Listing children reads /proc/PID/stat of every process of the host: 2 ms for 74 of them on a desktop processor, some
# 20 ms for 150 on a small board. Every 5 s this stays below half a per cent of one core.
TREE_INTERVAL_S = 5.0
REFRESH_INTERVAL_S = 2.0


class ProcessSource:
    """Memory of a process and all its descendants; the budgets stand where a cgroup has memory.high and memory.max.

    `passed_over` says why no better source is used; it is part of `degraded`.
    """

    name = "process"

    def __init__(
        self,
        target: ProcessTarget,
        *,
        budget_bytes: int | None = None,
        max_bytes: int | None = None,
        proc_root: Path = Path("/proc"),
        passed_over: tuple[str, ...] = (),
        pss_interval_s: float | None = None,
        show: Callable[[str], UnitView] = show_unit,
        driver_probe: DriverProbe | None = None,
        clock: Callable[[], float] = time.monotonic,
        pread: Pread = os.pread,
    ) -> None:
        self._budget_bytes = budget_bytes
        self._max_bytes = max_bytes
        self._proc_root = proc_root
        self._passed_over = passed_over
        self._pss_interval_s = pss_interval_s
        self._driver_probe = driver_probe
        self._clock = clock
        self._finder = RootFinder(target, show)
        # `refresh` runs in the worker while `read` runs in the loop: the worker only ever swaps whole values.
        self._found: psutil.Process | None = None
        self._refresh_notes: tuple[str, ...] = ()
        self._refreshed_at_s: float | None = None
        self._root: psutil.Process | None = None
        self._instance = ""
        self._table = ProcessTable(proc_root, with_stat=True, pread=pread)
        self._listed_at_s: float | None = None
        self._pss_at_s: float | None = None
        self._pss_file_bytes: int | None = None
        self._driver_bytes = 0
        self._notes: dict[str, str] = {}

    @property
    def available(self) -> bool:
        """Whether the last `refresh` found a process."""
        return self._found is not None

    @property
    def main_pid(self) -> int | None:
        """The service's process as of now; looked for anew when the known one has ended. Not for the hot path."""
        if self._living_pid() is None:
            self.refresh()
        return self._living_pid()

    def _living_pid(self) -> int | None:
        found = self._found
        return None if found is None or _start_ticks(self._proc_root, found.pid) is None else found.pid

    @property
    def degraded(self) -> tuple[str, ...]:
        """What is not seen, in sentences."""
        return (*self._passed_over, *self._refresh_notes, *self._notes.copy().values())

    @property
    def refresh_wanted(self) -> bool:
        """True while there is no living process and none was looked for within the last two seconds."""
        if self._root is not None:
            return False
        asked_s = self._refreshed_at_s
        return asked_s is None or self._clock() - asked_s >= REFRESH_INTERVAL_S

    def refresh(self) -> None:
        """Find the root process by unit, pid, pid file, command line or port."""
        notes = [
            "only the memory of the process tree is seen: neither throttling nor OOM kills nor kernel memory of its own"
        ]
        if self._budget_bytes is None and self._max_bytes is None:
            notes.append("no memory budget is set for the guarded process: there is no limit to stay under")
        try:
            self._found = self._finder.find()
        except (UserError, psutil.Error, OSError) as error:
            self._found = None
            notes.append(str(error))
        notes.extend(self._finder.remarks)
        self._refresh_notes = tuple(notes)
        self._refreshed_at_s = self._clock()

    def read(self) -> MemoryReading | None:
        """The figures of this instant; None while there is no such process. One that ends meanwhile is left out."""
        root = self._current_root()
        if root is None:
            return None
        now_s = self._clock()
        if self._listed_at_s is None or now_s - self._listed_at_s >= TREE_INTERVAL_S:
            self._list_tree(root, now_s)
        figures = self._table.read()
        if not any(of_process.pid == root.pid for of_process in figures):
            self._forget()
            return None
        return self._reading(figures, now_s)

    def _current_root(self) -> psutil.Process | None:
        """The process that `refresh` found last, adopted when it is another than the one watched so far."""
        found = self._found
        if found is not None and found is not self._root and found != self._root:
            self._forget()
            started = _start_ticks(self._proc_root, found.pid)
            if started is None:
                return None
            self._root, self._instance, self._found = found, f"{found.pid}@{started}", found
        return self._root

    def _forget(self) -> None:
        if self._found == self._root:
            self._found = None
        self._root = None
        self._table.keep(())
        self._listed_at_s = self._pss_at_s = self._pss_file_bytes = None
        self._driver_bytes = 0
        self._notes = {}

    def _list_tree(self, root: psutil.Process, now_s: float) -> None:
        try:
            children = [child.pid for child in root.children(recursive=True)]
        except psutil.Error:
            children = []
        self._table.keep([root.pid, *children])
        if self._table.left_out:
            self._notes["processes"] = (
                f"process tree {root.pid} has {self._table.left_out} processes beyond the first {MAX_PROCESSES}; "
                "their memory is not counted"
            )
        else:
            self._notes.pop("processes", None)
        if self._driver_probe is not None:
            self._driver_bytes = self._driver_probe.read(self._table.pids) or 0
        self._listed_at_s = now_s

    def _reading(self, figures: list[ProcessFigures], now_s: float) -> MemoryReading:
        if not all(of_process.split_known for of_process in figures):
            self._notes["split"] = (
                "this kernel does not tell file pages from anonymous ones per process: mapped weights count as "
                "anonymous"
            )
        anon_bytes = sum(of_process.anon_bytes for of_process in figures)
        shmem_bytes = max(of_process.shmem_bytes for of_process in figures)
        file_bytes = max(of_process.file_bytes for of_process in figures)
        if self._pss_interval_s is not None and len(figures) > 1:
            file_bytes = max(file_bytes, self._file_share(now_s) or 0)
        page_table_bytes = sum(of_process.page_table_bytes for of_process in figures)
        return MemoryReading(
            source=self.name,
            instance=self._instance,
            current_bytes=anon_bytes + shmem_bytes + file_bytes + page_table_bytes,
            anon_bytes=anon_bytes,
            swap_bytes=sum(of_process.swap_bytes for of_process in figures),
            shmem_bytes=shmem_bytes,
            kernel_unreclaimable_bytes=page_table_bytes,
            file_mapped_bytes=file_bytes + shmem_bytes,  # as the kernel counts it in a cgroup
            rss_file_bytes=file_bytes,
            driver_bytes=self._driver_bytes,
            high_bytes=self._budget_bytes if self._budget_bytes is not None else self._max_bytes,
            max_bytes=self._max_bytes,
            major_faults=self._table.read_major_faults(),
            process_count=len(figures),
        )

    def _file_share(self, now_s: float) -> int | None:
        """The exact file pages of the tree from smaps_rollup, at most once per interval; None where not permitted.

        Anonymous memory is never taken from there: with huge pages it was seen 6 GiB too low.
        """
        if self._pss_at_s is None or now_s - self._pss_at_s >= (self._pss_interval_s or 0):
            self._pss_at_s = now_s
            shares = [_pss_file(self._proc_root, pid) for pid in self._table.pids]
            self._pss_file_bytes = None if None in shares else sum(share or 0 for share in shares)
        return self._pss_file_bytes

    def close(self) -> None:
        """Give back all descriptors; a later `refresh` finds the process again."""
        self._forget()
        self._table.close()


def _start_ticks(proc_root: Path, pid: int) -> int | None:
    """When a process started, in clock ticks since boot: with its pid it names one process for good."""
    try:
        stat = parse_stat((proc_root / str(pid) / "stat").read_bytes())
    except OSError:
        return None
    return None if stat is None or stat.state in ("Z", "X") else stat.start_ticks


def _pss_file(proc_root: Path, pid: int) -> int | None:
    """A process' share of the file pages it maps, from smaps_rollup (`Pss_File`: Linux 5.9 and later)."""
    try:
        rows = parse_colon_rows((proc_root / str(pid) / "smaps_rollup").read_bytes(), frozenset({b"Pss_File"}))
    except OSError:
        return None
    return rows.get(b"Pss_File")
