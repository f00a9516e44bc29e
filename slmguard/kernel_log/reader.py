"""Following /dev/kmsg.

As the kernel behaves (Documentation/ABI/testing/dev-kmsg, printk.c, tried on 6.18): one read() gives one record; a
buffer that is too small loses the record with EINVAL, so 8 KiB; when the ring has overwritten unread records the next
read fails once with EPIPE and goes on at the oldest that is left, the gap shows in the sequence numbers; nothing new
is EAGAIN. The kernel's clock stands still during suspend: records get the wall clock's time when they are read.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from dataclasses import replace

from slmguard.kernel_log.cursor import Cursor, CursorStore
from slmguard.kernel_log.health import BackOff, ReaderHealth
from slmguard.kernel_log.kmsg_record import parse_kmsg
from slmguard.kernel_log.record import KERNEL_FACILITY, Record

KMSG_PATH = "/dev/kmsg"
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
RECORD_BYTES = 8192
FORBIDDEN = (errno.EPERM, errno.EACCES, errno.ENOENT, errno.ENXIO, errno.ENODEV)


def open_kmsg(path: str) -> int:
    """A descriptor that never blocks. Raises OSError: EPERM with kernel.dmesg_restrict=1 and without CAP_SYSLOG."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)


def read_boot_id(path: str = BOOT_ID_PATH) -> str:
    """The id of this boot, or "unknown"."""
    try:
        with open(path, encoding="ascii") as file:  # noqa: PTH123 (the daemon does without pathlib on this path)
            return file.read(64).strip() or "unknown"
    except (OSError, ValueError):
        return "unknown"


def iso_time(wall_s: float) -> str:
    """UTC, to the millisecond."""
    milliseconds = round(wall_s * 1000)
    seconds, rest = divmod(milliseconds, 1000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest:03d}Z"


class KmsgReader:
    """Reads the kernel's own records (facility 0), from where the last run stopped.

    After a reboot everything in the ring is new. On the very first start, without a stored cursor, old records are
    left alone unless `from_oldest`. A descriptor that fails is opened again with back-off and the records in between
    are not lost as long as the ring holds them.
    """

    def __init__(
        self,
        store: CursorStore,
        *,
        boot_id: str,
        path: str = KMSG_PATH,
        from_oldest: bool = False,
        opener: Callable[[str], int] = open_kmsg,
        read: Callable[[int, int], bytes] = os.read,
        wall_clock: Callable[[], float] = time.time,
        kernel_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._boot_id = boot_id
        self._path = path
        self._from_oldest = from_oldest
        self._opener = opener
        self._read = read
        self._wall_clock = wall_clock
        self._kernel_clock = kernel_clock
        self._fd = -1
        self._back_off = BackOff()
        self._seq: int | None = None
        self._committed: int | None = None
        self._is_backlog = False
        self._started = False
        self.health = ReaderHealth("kmsg")

    def fileno(self) -> int:
        """See KernelLog."""
        return self._fd

    def read(self, now_s: float, limit: int = 256) -> list[Record]:
        """See KernelLog. A call makes at most `limit` reads, whatever they give."""
        if self._fd < 0 and not self._open(now_s):
            return []
        records = []
        for _ in range(limit):
            raw = self._read_one(now_s)
            if raw is None:
                break
            record = self._accept(raw) if raw else None
            if record is not None:
                records.append(record)
        return records

    def commit(self) -> None:
        """See KernelLog. Raises OSError when the store cannot keep the place."""
        if self._seq is not None and self._seq != self._committed:
            self._store.save(Cursor(self._boot_id, str(self._seq)))
            self._committed = self._seq

    def close(self) -> None:
        """See KernelLog."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
        self.health.is_open = False

    def _open(self, now_s: float) -> bool:
        if not self._back_off.is_due(now_s):
            return False
        try:
            self._fd = self._opener(self._path)
            if not self._started:
                self._find_start()
        except OSError as error:
            self._fail(error, now_s)
            return False
        self._started = True
        self._is_backlog = True
        self.health.is_open = True
        self.health.opened += 1
        self.health.error = None
        self.health.is_forbidden = False
        return True

    def _find_start(self) -> None:
        cursor = self._store.load()
        if cursor is not None and cursor.boot_id == self._boot_id and cursor.position.isdecimal():
            self._seq = self._committed = int(cursor.position)
        elif cursor is None and not self._from_oldest:
            os.lseek(self._fd, 0, os.SEEK_END)

    def _read_one(self, now_s: float) -> bytes | None:
        """One raw record; empty when this read gave none but the next may; None when there is nothing more."""
        try:
            raw = self._read(self._fd, RECORD_BYTES)
        except BlockingIOError:
            self._is_backlog = False
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:
                return b""  # overwritten before they were read; the gap is counted at the next record
            if error.errno == errno.EINVAL:
                self.health.lost_records += 1  # larger than the buffer: consumed by the failed read
                if self._seq is not None:
                    self._seq += 1
                return b""
            self._fail(error, now_s)
            return None
        if not raw:
            self._fail(OSError(errno.EIO, "end of file"), now_s)
            return None
        return raw

    def _accept(self, raw: bytes) -> Record | None:
        record = parse_kmsg(raw.decode("ascii", "replace"))
        if record is None or record.seq is None:
            self.health.malformed_records += 1
            return None
        if self._seq is not None:
            if record.seq <= self._seq:
                return None  # read before the restart, or before the descriptor was opened again
            self.health.lost_records += record.seq - self._seq - 1
        self._seq = self.health.last_seq = record.seq
        self._back_off.succeeded()
        if record.facility != KERNEL_FACILITY:
            self.health.foreign_records += 1
            return None
        self.health.records += 1
        return replace(record, time=iso_time(self._wall_s(record)))

    def _wall_s(self, record: Record) -> float:
        """Now; for what was printed before reading began, now less the record's age by the kernel's clock."""
        wall_s = self._wall_clock()
        if not self._is_backlog or record.uptime_s is None:
            return wall_s
        return wall_s - max(0.0, self._kernel_clock() - record.uptime_s)

    def _fail(self, error: OSError, now_s: float) -> None:
        self.close()
        self._back_off.failed(now_s)
        self.health.is_forbidden = error.errno in FORBIDDEN
        self.health.error = f"{self._path}: {error.strerror or error}"
