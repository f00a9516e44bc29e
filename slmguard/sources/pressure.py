"""PSI triggers: the kernel wakes the guard when tasks wait for memory, instead of the guard looking all the time."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

# Since 6.5 an unprivileged trigger must use a window that is a multiple of 2 s.
DEFAULT_TRIGGER = b"some 150000 2000000"


class PressureTrigger:
    """One registered trigger. `fileno` is None, and `problem` a sentence, where this kernel has none."""

    def __init__(self, path: Path = Path("/proc/pressure/memory"), trigger: bytes = DEFAULT_TRIGGER) -> None:
        self._fd: int | None = None
        self.problem: str | None = None
        try:
            self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            os.read(self._fd, 256)  # a kernel with PSI switched off opens the file and answers EOPNOTSUPP
            # The kernel overwrites the last byte with NUL, so there must be one to spare.
            os.write(self._fd, trigger + b"\0")
        except OSError as error:
            self.problem = _reason(error)
            self.close()

    def fileno(self) -> int | None:
        """The descriptor to wait on with EPOLLPRI, None without a trigger."""
        return self._fd

    def close(self) -> None:
        """Unregister the trigger."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.close(self._fd)
            self._fd = None


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "this kernel has no PSI: pressure is polled for, not told (boot with psi=1 where the kernel knows it)"
    if error.errno == errno.EOPNOTSUPP:
        return "PSI is switched off: boot with psi=1"
    return f"PSI triggers cannot be used ({error.strerror}): pressure is polled for, not told"
