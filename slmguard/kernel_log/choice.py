"""Which live kernel log this host lets us read, and what is said when it is not the best one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from slmguard.kernel_log.health import KernelLog
from slmguard.kernel_log.record import Record

FULL = "full"
JOURNAL_ONLY = "journal"
COUNTERS_ONLY = "counters"


@dataclass(frozen=True, slots=True)
class Choice:
    """The log that is read, or None; `mode` and `reason` are for status."""

    log: KernelLog | None
    mode: str
    reason: str


def choose_log(kmsg: KernelLog, journal: Callable[[], KernelLog | None], now_s: float) -> tuple[Choice, list[Record]]:
    """The kernel's own device; where that is not permitted the journal; else none, and memory.events must do.

    `journal` is called only when it is needed (it needs more modules). Also returns the records already read.
    """
    records = kmsg.read(now_s)
    if not kmsg.health.is_forbidden:
        return Choice(kmsg, FULL, "reading /dev/kmsg"), records
    error = kmsg.health.error
    kmsg.close()
    log = journal()
    if log is not None:
        return Choice(log, JOURNAL_ONLY, f"{error}; following the journal instead"), []
    return Choice(None, COUNTERS_ONLY, f"{error}; kills are known from memory.events alone, without their cause"), []
