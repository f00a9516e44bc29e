"""How a reader of the live kernel log is doing, and what every such reader offers the daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from slmguard.kernel_log.record import Record

FIRST_RETRY_S = 1.0
LONGEST_RETRY_S = 60.0


@dataclass(slots=True)
class ReaderHealth:
    """Counters and state for status and metrics. A reader that died must not look alive: `is_open`, `error`."""

    source: str
    is_open: bool = False
    error: str | None = None
    is_forbidden: bool = False
    records: int = 0
    foreign_records: int = 0
    malformed_records: int = 0
    lost_records: int = 0
    opened: int = 0
    last_seq: int | None = None


class KernelLog(Protocol):
    """A live kernel log. All methods but `close` return at once."""

    health: ReaderHealth

    def fileno(self) -> int:
        """The descriptor to poll for readability, or -1 while it is not open. It changes when `health.opened` does."""
        ...

    def read(self, now_s: float, limit: int = 256) -> list[Record]:
        """Up to `limit` new records; opens, or opens again after an error, when it is time.

        When it gives `limit` records there may be more, though the descriptor need not become readable for them.
        """
        ...

    def commit(self) -> None:
        """What has been read is dealt with: a restart begins after it."""
        ...

    def close(self) -> None:
        """Give up the descriptor or process; a process that does not end is killed after 2 s."""
        ...


class BackOff:
    """When to try again: 1 s after the first failure, doubled up to 60 s."""

    def __init__(self) -> None:
        self._next_s: float | None = None
        self._wait_s = FIRST_RETRY_S

    def is_due(self, now_s: float) -> bool:
        """Whether an attempt may be made now."""
        return self._next_s is None or now_s >= self._next_s

    def failed(self, now_s: float) -> None:
        """An attempt failed, or what had been opened broke."""
        self._next_s = now_s + self._wait_s
        self._wait_s = min(self._wait_s * 2, LONGEST_RETRY_S)

    def succeeded(self) -> None:
        """Something was read: the next failure is a new one."""
        self._next_s = None
        self._wait_s = FIRST_RETRY_S
