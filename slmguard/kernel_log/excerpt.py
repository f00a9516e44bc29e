"""The kernel's own words around a kill, for the incident report: bounded, and always kept while the log is followed."""

from __future__ import annotations

from collections import deque

from slmguard.kernel_log.messages import INVOKED
from slmguard.kernel_log.record import Record

MAX_RECORDS = 600  # one OOM of a small board is 80 to 250 records on 6.x
MAX_TEXT_CHARS = 300


class Excerpt:
    """The newest records of the kernel. 600 records of 300 characters are at most about 200 KiB."""

    def __init__(self, max_records: int = MAX_RECORDS) -> None:
        self._lines: deque[str] = deque(maxlen=max_records)

    def add(self, record: Record) -> None:
        """Keep the record's text; what is no kernel record is left out."""
        if record.from_kernel:
            self._lines.append(record.text[:MAX_TEXT_CHARS])

    def since_invocation(self) -> list[str]:
        """The lines from the newest `invoked oom-killer` on; all that are kept when its start is lost."""
        lines = list(self._lines)
        for index in range(len(lines) - 1, -1, -1):
            if INVOKED.match(lines[index]):
                return lines[index:]
        return lines
