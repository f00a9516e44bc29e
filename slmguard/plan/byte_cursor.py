"""A reader over an untrusted binary file: every length is checked against the file before a byte is read."""

from __future__ import annotations

import struct
from typing import BinaryIO

# Small enough to stay in the memory budget, large enough that a vocabulary of 262,144 tokens takes some 60 reads.
_CHUNK_BYTES = 256 * 1024


class MalformedError(Exception):
    """The file contradicts its own format; the text says what is wrong and at which byte."""


class ByteCursor:
    """A position in a file of known size, with buffered little- or big-endian reads."""

    def __init__(self, file: BinaryIO, size_bytes: int) -> None:
        self._file = file
        self._size = size_bytes
        self._buffer = b""
        self._buffer_start = 0
        self._position = 0
        self._order = "<"

    @property
    def position(self) -> int:
        """Bytes from the start of the file."""
        return self._position

    @property
    def remaining_bytes(self) -> int:
        """Bytes from the position to the end of the file."""
        return self._size - self._position

    @property
    def byte_order(self) -> str:
        """`<` or `>`, as in the struct module."""
        return self._order

    @byte_order.setter
    def byte_order(self, order: str) -> None:
        self._order = order

    def take(self, length: int, what: str) -> bytes:
        """The next `length` bytes; raises MalformedError when the file ends before them."""
        self._require(length, what)
        start = self._position - self._buffer_start
        if start < 0 or start + length > len(self._buffer):
            self._refill(length)
            start = 0
        self._position += length
        return self._buffer[start : start + length]

    def skip(self, length: int, what: str) -> None:
        """Passes over `length` bytes without reading them."""
        self._require(length, what)
        self._position += length

    def number(self, code: str, what: str) -> int:
        """The next integer, by its struct code (`I`, `Q`, …)."""
        fmt = self._order + code
        (value,) = struct.unpack(fmt, self.take(struct.calcsize(fmt), what))
        return int(value)

    def skip_strings(self, count: int, longest: int, what: str) -> None:
        """Passes over `count` strings, each led by its 64-bit length of at most `longest`."""
        length_of = struct.Struct(self._order + "Q").unpack_from
        buffer, offset = self._buffer, self._position - self._buffer_start
        for _ in range(count):
            if offset + 8 > len(buffer):
                self._position = self._buffer_start + offset
                self._require(8, what)
                self._refill(8)
                buffer, offset = self._buffer, 0
            (length,) = length_of(buffer, offset)
            offset += 8 + length
            if length > longest or self._buffer_start + offset > self._size:
                self._position = self._buffer_start + offset - length - 8
                raise MalformedError(f"{what}: string of {length} bytes at byte {self._position}")
        self._position = self._buffer_start + offset

    def _require(self, length: int, what: str) -> None:
        if length > self.remaining_bytes:
            raise MalformedError(
                f"{what} at byte {self._position} needs {length} bytes, the file has {self.remaining_bytes} more"
            )

    def _refill(self, at_least: int) -> None:
        self._file.seek(self._position)
        self._buffer = self._file.read(max(_CHUNK_BYTES, at_least))
        self._buffer_start = self._position
        if len(self._buffer) < at_least:
            raise MalformedError(f"the file became shorter while it was read (byte {self._position})")
