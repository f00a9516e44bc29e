"""Held-open /proc files of the processes that belong to the guarded service."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slmguard.sources.kept_file import KeptFile, Pread
from slmguard.sources.kernel_text import parse_colon_rows

# Two descriptors a process at most: far below the usual limit of 1024 open files.
MAX_PROCESSES = 64

_STATUS_KEYS = frozenset({b"VmRSS", b"RssAnon", b"RssFile", b"RssShmem", b"VmSwap", b"VmPTE"})
_STAT_MAJOR_FAULTS = 9  # fields of /proc/PID/stat after the ")" that ends the name, from 0: state, ppid, …
_STAT_START_TICKS = 19


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """Memory of one process, from /proc/PID/status.

    `split_known` is False on kernels before 4.5, which do not tell anonymous from file pages; all resident memory is
    then given as anonymous.
    """

    pid: int
    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    swap_bytes: int
    page_table_bytes: int
    split_known: bool = True


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The parts of /proc/PID/stat that are of use here."""

    state: str
    parent_pid: int
    major_faults: int
    start_ticks: int


def parse_status(pid: int, data: bytes) -> ProcessFigures | None:
    """The figures of a status file; None for a process without memory of its own (zombie, kernel thread)."""
    rows = parse_colon_rows(data, _STATUS_KEYS)
    split_known = b"RssAnon" in rows
    if not split_known and b"VmRSS" not in rows:
        return None
    return ProcessFigures(
        pid=pid,
        anon_bytes=rows.get(b"RssAnon", 0) if split_known else rows[b"VmRSS"],
        file_bytes=rows.get(b"RssFile", 0),
        shmem_bytes=rows.get(b"RssShmem", 0),
        swap_bytes=rows.get(b"VmSwap", 0),
        page_table_bytes=rows.get(b"VmPTE", 0),
        split_known=split_known,
    )


def parse_stat(data: bytes) -> ProcessStat | None:
    """The stat row of a process. Its name may hold blanks and brackets, so fields are counted from the last `)`."""
    fields = data[data.rfind(b")") + 1 :].split() if b")" in data else []
    if len(fields) <= _STAT_START_TICKS:
        return None
    numbers = (fields[1], fields[_STAT_MAJOR_FAULTS], fields[_STAT_START_TICKS])
    if not all(number.isdigit() and len(number) <= 20 for number in numbers):
        return None
    parent, faults, start = (int(number) for number in numbers)
    return ProcessStat(fields[0].decode("ascii", "replace"), parent, faults, start)


class ProcessTable:
    """The processes of the service and their kept status (and, if wanted, stat) files.

    A descriptor of /proc/PID stays bound to the very process it was opened for, so a reused pid is never mistaken for
    it: reading after its end gives ESRCH, and the process is dropped.
    """

    def __init__(self, proc_root: Path = Path("/proc"), *, with_stat: bool = False, pread: Pread = os.pread) -> None:
        self._proc_root = proc_root
        self._with_stat = with_stat
        self._pread = pread
        self._status: dict[int, KeptFile] = {}
        self._stat: dict[int, KeptFile] = {}
        self._faults: dict[int, int] = {}
        self._past_faults = 0
        self.left_out = 0

    @property
    def pids(self) -> tuple[int, ...]:
        """The processes that are watched."""
        return tuple(self._status)

    def keep(self, pids: Iterable[int]) -> None:
        """Watch exactly these processes; those after the first 64 are counted in `left_out` instead."""
        listed = list(dict.fromkeys(pids))
        wanted = listed[:MAX_PROCESSES]
        self.left_out = len(listed) - len(wanted)
        for pid in self._status.keys() - set(wanted):
            self._drop(pid)
        for pid in wanted:
            if pid not in self._status:
                self._add(pid)

    def _add(self, pid: int) -> None:
        status = KeptFile(self._proc_root / str(pid) / "status", pread=self._pread)
        if status.problem is not None:
            return
        self._status[pid] = status
        if self._with_stat:
            self._stat[pid] = KeptFile(self._proc_root / str(pid) / "stat", pread=self._pread)

    def _drop(self, pid: int) -> None:
        self._status.pop(pid).close()
        stat = self._stat.pop(pid, None)
        if stat is not None:
            stat.close()
        self._past_faults += self._faults.pop(pid, 0)

    def read(self) -> list[ProcessFigures]:
        """Figures of the processes that still live; those that have ended meanwhile are dropped."""
        figures = []
        for pid, file in list(self._status.items()):
            data = file.read()
            if data is None:
                self._drop(pid)
                continue
            of_process = parse_status(pid, data)
            if of_process is not None:
                figures.append(of_process)
        return figures

    def read_major_faults(self) -> int:
        """Major faults of all processes seen since the table began, those of ended ones included: it only grows."""
        for pid, file in self._stat.items():
            data = file.read()
            stat = None if data is None else parse_stat(data)
            if stat is not None:
                self._faults[pid] = stat.major_faults
        return self._past_faults + sum(self._faults.values())

    def close(self) -> None:
        """Give back all descriptors."""
        for file in (*self._status.values(), *self._stat.values()):
            file.close()
        self._status.clear()
        self._stat.clear()
        self._faults.clear()
