"""The journal in place of /dev/kmsg, for hosts where reading the device is not permitted.

Degraded: journald rate-limits nothing of the kernel's but may be slower, killed or full, and lost records cannot be
counted. journald marks kernel records itself (`_TRANSPORT=kernel`), which no program can imitate.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from typing import IO, Protocol, cast

from slmguard.kernel_log.cursor import Cursor, CursorStore
from slmguard.kernel_log.health import BackOff, ReaderHealth
from slmguard.kernel_log.json_lines import journal_entry
from slmguard.kernel_log.record import Record

COMMAND = (
    "journalctl",
    "--no-pager",
    "--quiet",
    "--follow",
    "--output=json",
    "--output-fields=MESSAGE,_TRANSPORT,_SOURCE_MONOTONIC_TIMESTAMP",
)
MATCH = "_TRANSPORT=kernel"
CHUNK_BYTES = 64 * 1024
LONGEST_LINE_BYTES = 256 * 1024
STOP_S = 2.0


class Process(Protocol):
    """What is used of subprocess.Popen."""

    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        ...

    def terminate(self) -> None:
        """Ask it to end."""
        ...

    def kill(self) -> None:
        """End it."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end."""
        ...


def start_journalctl(arguments: list[str]) -> Process:
    """Journalctl as a child whose output is read through a pipe. Raises OSError when it cannot be started."""
    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        bufsize=0,
        close_fds=True,
    )


class JournalReader:
    """A KernelLog over `journalctl --follow`; a process that ends is started again with back-off, at the same place."""

    def __init__(
        self,
        store: CursorStore,
        *,
        start: Callable[[list[str]], Process] = start_journalctl,
    ) -> None:
        self._store = store
        self._start = start
        self._process: Process | None = None
        self._back_off = BackOff()
        self._buffer = b""
        self._is_skipping = False
        self._cursor: str | None = None
        self._committed: str | None = None
        self.health = ReaderHealth("journal")

    def fileno(self) -> int:
        """See KernelLog."""
        if self._process is None or self._process.stdout is None:
            return -1
        return self._process.stdout.fileno()

    def read(self, now_s: float, limit: int = 256) -> list[Record]:
        """See KernelLog."""
        if self._process is None and not self._open(now_s):
            return []
        records: list[Record] = []
        while len(records) < limit:
            line, newline, rest = self._buffer.partition(b"\n")
            if not newline:
                if not self._fill(now_s):
                    break
                continue
            self._buffer = rest
            record = self._accept(line)
            if record is not None:
                records.append(record)
        return records

    def has_more(self) -> bool:
        """Whether whole lines are waiting in memory: the descriptor will not become readable for them."""
        return b"\n" in self._buffer

    def commit(self) -> None:
        """See KernelLog. Raises OSError when the store cannot keep the place."""
        if self._cursor is not None and self._cursor != self._committed:
            self._store.save(Cursor("journal", self._cursor))
            self._committed = self._cursor

    def close(self) -> None:
        """See KernelLog."""
        process, self._process = self._process, None
        self._buffer = b""
        self.health.is_open = False
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(STOP_S)
        if process.stdout is not None:
            process.stdout.close()

    def _open(self, now_s: float) -> bool:
        if not self._back_off.is_due(now_s):
            return False
        if self._cursor is None:
            stored = self._store.load()
            self._cursor = self._committed = stored.position if stored and stored.boot_id == "journal" else None
        place = [f"--after-cursor={self._cursor}", "--lines=all"] if self._cursor else ["--lines=0"]
        try:
            self._process = self._start([*COMMAND, *place, MATCH])
            if self._process.stdout is not None:
                os.set_blocking(self._process.stdout.fileno(), False)
        except OSError as error:
            self._process = None
            self._fail(f"journalctl: {error.strerror or error}", now_s)
            return False
        self._buffer = b""
        self._is_skipping = False
        self.health.is_open = True
        self.health.opened += 1
        self.health.error = None
        return True

    def _fill(self, now_s: float) -> bool:
        """More bytes into the buffer; False when there are none now."""
        try:
            chunk = os.read(self.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self._fail(f"journalctl: {error.strerror or error}", now_s)
            return False
        if not chunk:
            code = self._process.poll() if self._process is not None else None
            self._fail(f"journalctl ended with exit code {code}", now_s)
            return False
        if self._is_skipping:
            _, newline, chunk = chunk.partition(b"\n")
            self._is_skipping = not newline
        self._buffer += chunk
        if len(self._buffer) > LONGEST_LINE_BYTES and b"\n" not in self._buffer:
            self._buffer = b""
            self._is_skipping = True
            self.health.lost_records += 1
        return True

    def _accept(self, line: bytes) -> Record | None:
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        record = journal_entry(cast("dict[str, object]", entry)) if isinstance(entry, dict) else None
        if record is None:
            self.health.malformed_records += 1
            return None
        cursor = entry.get("__CURSOR") if isinstance(entry, dict) else None
        self._cursor = cursor if isinstance(cursor, str) and "\n" not in cursor else self._cursor
        self._back_off.succeeded()
        if not record.from_kernel:
            self.health.foreign_records += 1
            return None
        self.health.records += 1
        return record

    def _fail(self, text: str, now_s: float) -> None:
        self.close()
        self._back_off.failed(now_s)
        self.health.error = text


def is_available(which: Callable[[str], str | None] | None = None) -> bool:
    """Whether this host has journalctl."""
    from shutil import which as find

    return (which or find)("journalctl") is not None
