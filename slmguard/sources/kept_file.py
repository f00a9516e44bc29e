"""A kernel pseudo-file held open and read again and again from its start."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

Pread = Callable[[int, int, int], bytes]

# What a kept descriptor answers once its object is gone: a removed cgroup (ENODEV), an ended process (ESRCH).
GONE_ERRNOS = frozenset({errno.ENODEV, errno.ESRCH, errno.ESTALE})
_CHUNK_BYTES = 8192
_MAX_FILE_BYTES = 1 << 20


class KeptFile:
    """Opens once, then only `pread`s: no open and no path look-up on the hot path.

    `read` returns None when the file is not there or cannot be read, and leaves the reason in `problem`. It is not
    tried again until `reopen` is called, so that an optional file that this kernel lacks costs nothing per reading.
    `in_pieces` is for lists (cgroup.procs, vmstat), which the kernel hands out a page of 4 KiB at a time.
    """

    __slots__ = ("_dir_fd", "_fd", "_in_pieces", "_path", "_pread", "problem")

    def __init__(
        self, path: Path | str, *, dir_fd: int | None = None, in_pieces: bool = False, pread: Pread = os.pread
    ) -> None:
        self._path = path
        self._dir_fd = dir_fd
        self._in_pieces = in_pieces
        self._pread = pread
        self._fd: int | None = None
        self.problem: OSError | None = None
        self.reopen()

    @property
    def gone(self) -> bool:
        """True when the object behind the descriptor has ended, as opposed to a file that was never readable."""
        return self.problem is not None and self.problem.errno in GONE_ERRNOS

    def reopen(self) -> None:
        """Open the path anew, whatever it now names."""
        self.close()
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self._dir_fd)
        except OSError as error:
            self.problem = error
        else:
            self.problem = None

    def read(self) -> bytes | None:
        """The whole file, at most 1 MiB of it; None when it cannot be read."""
        if self._fd is None:
            return None
        try:
            chunk = self._pread(self._fd, _CHUNK_BYTES, 0)
            if not self._in_pieces and len(chunk) < _CHUNK_BYTES:
                return chunk
            return self._read_rest(self._fd, chunk)
        except OSError as error:
            self.close()
            self.problem = error
            return None

    def _read_rest(self, fd: int, first: bytes) -> bytes:
        chunks, total, chunk = [first], len(first), first
        while chunk and total < _MAX_FILE_BYTES:
            chunk = self._pread(fd, _CHUNK_BYTES, total)
            chunks.append(chunk)
            total += len(chunk)
        return b"".join(chunks)

    def close(self) -> None:
        """Give the descriptor back; harmless when it was already."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
