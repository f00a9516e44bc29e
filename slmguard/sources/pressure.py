"""Pressure stall information (PSI): the totals, and a kernel trigger to be woken by instead of polling.

The totals are microseconds since boot; their differences are used, never the averages, which lag by seconds.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from slmguard.sources.kernel_text import whole_rows

HOST_PRESSURE = Path("/proc/pressure/memory")
# Without CAP_SYS_RESOURCE kernels from 6.5 on take windows of whole multiples of 2 s only, at most 10 s.
DEFAULT_STALL_US = 150_000
DEFAULT_WINDOW_US = 2_000_000
_MAX_WINDOW_US = 10_000_000


@dataclass(frozen=True, slots=True)
class Pressure:
    """Time stalled since boot in microseconds: `some` task, or `full`: all of them. None where not told."""

    some_us: int | None = None
    full_us: int | None = None


def parse_pressure(data: bytes) -> Pressure:
    """The totals of a pressure file; rows or fields that are not there are None."""
    totals: dict[bytes, int] = {}
    for row in whole_rows(data):
        kind, _, fields = row.partition(b" ")
        _, found, total = fields.partition(b"total=")
        if found and total.isdigit() and len(total) <= 20:
            totals.setdefault(kind, int(total))
    return Pressure(totals.get(b"some"), totals.get(b"full"))


class PressureTrigger:
    """A descriptor that shows EPOLLPRI when tasks have stalled on memory for `stall_us` within `window_us`.

    It fires at most once a window; the kernel takes the event off the descriptor when it has been polled.
    EPOLLERR means that the trigger's cgroup was removed: close it, for it stays set.
    Where there are no triggers `problem` says why, once, `fileno` is None, and polling has to do.
    """

    def __init__(
        self,
        path: Path = HOST_PRESSURE,
        *,
        kind: str = "some",
        stall_us: int = DEFAULT_STALL_US,
        window_us: int = DEFAULT_WINDOW_US,
    ) -> None:
        if kind not in ("some", "full") or not 0 < stall_us <= window_us <= _MAX_WINDOW_US:
            raise ValueError(f"no such PSI trigger: {kind} {stall_us} us in {window_us} us")
        self._fd: int | None = None
        self.problem: str | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            # The kernel overwrites the last byte with NUL: without one to spare, the window loses its last digit.
            os.write(self._fd, f"{kind} {stall_us} {window_us}\0".encode())
        except OSError as error:
            self.close()
            self.problem = f"no PSI trigger on {path} ({_reason(error)}): pressure is polled instead"

    def fileno(self) -> int | None:
        """The descriptor to wait on with EPOLLPRI; None when there is no trigger."""
        return self._fd

    def close(self) -> None:
        """Give the descriptor back, which also ends the trigger in the kernel."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "the kernel has no PSI, or it is off: psi=1 on the kernel command line turns it on where it is built in"
    if error.errno == errno.EOPNOTSUPP:
        return "PSI is off; psi=1 on the kernel command line turns it on"
    if error.errno in (errno.EPERM, errno.EACCES):
        return "not permitted: it needs write access and, before Linux 6.5, CAP_SYS_RESOURCE"
    if error.errno == errno.EINVAL:
        return "refused: without CAP_SYS_RESOURCE the window has to be a multiple of 2 s"
    return str(error.strerror)
