"""The one loop: waits on descriptors with epoll and calls who is meant.

The selectors module cannot ask for EPOLLPRI, which pressure triggers and cgroup event files need.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable

Callback = Callable[[int], None]


class Reactor:
    """Descriptors and their callbacks. Single-threaded but for `wake`, which any thread may call."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._wake_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.add(self._wake_fd, select.EPOLLIN, self._drain)

    def add(self, fd: int, mask: int, callback: Callback) -> None:
        """Call `callback(events)` whenever `fd` shows one of `mask`."""
        self._epoll.register(fd, mask)
        self._callbacks[fd] = callback

    def modify(self, fd: int, mask: int) -> None:
        """Wait for something else on a known descriptor."""
        self._epoll.modify(fd, mask)

    def remove(self, fd: int) -> None:
        """Forget `fd`; it must still be open. Unknown descriptors are ignored."""
        if self._callbacks.pop(fd, None) is not None:
            try:
                self._epoll.unregister(fd)
            except OSError:
                return  # closed already: the kernel has forgotten it by itself

    def wake(self) -> None:
        """Make a running `wait` return at once."""
        os.eventfd_write(self._wake_fd, 1)

    def wait(self, timeout_s: float) -> None:
        """Wait for at most `timeout_s` seconds and run the callbacks of what happened."""
        for fd, events in self._epoll.poll(max(0.0, timeout_s), 32):
            callback = self._callbacks.get(fd)
            if callback is not None:
                callback(events)

    def close(self) -> None:
        """Give back the loop's own descriptors."""
        self._callbacks.clear()
        self._epoll.close()
        os.close(self._wake_fd)

    def _drain(self, _events: int) -> None:
        os.eventfd_read(self._wake_fd)
