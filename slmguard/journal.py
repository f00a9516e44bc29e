"""Log lines to stderr, with systemd's priority prefix, without ever blocking the loop.

Under memory pressure journald itself may hang; a line that cannot be written at once is dropped and counted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

ERROR, WARNING, NOTICE, INFO, DEBUG = 3, 4, 5, 6, 7
MAX_LINE = 1000


def printable(text: str) -> str:
    """`text` as one line: control characters, which a hostile name may hold, are shown as escapes."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class Journal:
    """Writes lines; `dropped` counts those that could not be written."""

    def __init__(self, fd: int = 2, *, prefix: bool = False, blocking: bool = True) -> None:
        self._fd = fd
        self._prefix = prefix
        self.dropped = 0
        if not blocking:
            os.set_blocking(fd, False)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> Journal:
        """For systemd's journal when stderr leads there (JOURNAL_STREAM), for a person otherwise."""
        under_systemd = "JOURNAL_STREAM" in environment and not sys.stderr.isatty()
        return cls(prefix=under_systemd, blocking=not under_systemd)

    def log(self, priority: int, text: str) -> None:
        """One line of at most 1000 characters. Never raises."""
        line = printable(text)[:MAX_LINE]
        data = (f"<{priority}>{line}\n" if self._prefix else f"slmguard: {line}\n").encode("utf-8", "replace")
        try:
            os.write(self._fd, data)
        except OSError:
            self.dropped += 1
