"""Request bodies that are kept in memory, so that they can be edited, held and sent again; bounded in total."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slmguard.gate import refusal
from slmguard.gate.settings import GateSettings

if TYPE_CHECKING:
    from typing_extensions import Self


class BufferPool:
    """Counts the bytes of all bodies that are kept at the same time."""

    def __init__(self, settings: GateSettings) -> None:
        self.limit_bytes = settings.max_buffered_bytes
        self.used_bytes = 0

    def lease(self) -> BufferLease:
        """A share of the pool that grows with one body."""
        return BufferLease(self)


class BufferLease:
    """One body's share; a context manager that gives it back."""

    __slots__ = ("_pool", "_taken_bytes")

    def __init__(self, pool: BufferPool) -> None:
        self._pool = pool
        self._taken_bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._pool.used_bytes -= self._taken_bytes
        self._taken_bytes = 0

    def grow(self, count_bytes: int) -> None:
        """Take more; raises RefusedError (503) when all bodies together would exceed the bound."""
        if self._pool.used_bytes + count_bytes > self._pool.limit_bytes:
            raise refusal.refuse(503, "gate_busy", "slmguard: too many large requests at the same time", 5)
        self._pool.used_bytes += count_bytes
        self._taken_bytes += count_bytes
