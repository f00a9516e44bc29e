"""Where reading stopped: kept across restarts so that no record is told twice and none is missed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a log: `position` counts within `boot_id` (kmsg sequence number) or is the journal's own cursor."""

    boot_id: str
    position: str


class CursorStore(Protocol):
    """Keeps one cursor."""

    def load(self) -> Cursor | None:
        """The cursor, or None when there is none or it cannot be read."""
        ...

    def save(self, cursor: Cursor) -> None:
        """Keep it; raises OSError when the disk does not take it."""
        ...


class FileCursorStore:
    """One small file, replaced as a whole: after a power cut it holds the old cursor or the new one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Cursor | None:
        """See CursorStore. A damaged file counts as none."""
        try:
            words = self._path.read_text("utf-8", "replace").split("\n")
        except OSError:
            return None
        return Cursor(words[0], words[1]) if len(words) == 3 and words[0] and words[1] and not words[2] else None

    def save(self, cursor: Cursor) -> None:
        """See CursorStore."""
        new = self._path.with_name(self._path.name + ".new")
        fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, f"{cursor.boot_id}\n{cursor.position}\n".encode())
            os.fdatasync(fd)
        finally:
            os.close(fd)
        new.replace(self._path)


class NoCursorStore:
    """Forgets: for one-off reading and for tests."""

    def load(self) -> Cursor | None:
        """None."""
        return None

    def save(self, cursor: Cursor) -> None:
        """Nothing is kept."""
