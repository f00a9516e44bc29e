"""What a memory source offers to the daemon."""

from __future__ import annotations

from typing import Protocol

from slmguard.core.model import MemoryReading


class MemorySource(Protocol):
    """Reads the memory of the guarded service. Opens nothing on the hot path once it is warm.

    `read` is called at every tick from the decision loop: it must not fork, block or allocate much.
    It returns None when there is nothing to read now (unit stopped, cgroup gone); that is data, not an error.
    `refresh` may block for up to a few seconds (it asks systemd); the daemon calls it in the worker, at start and
    whenever `read` has returned None for a while or `refresh_wanted` is true.
    """

    name: str

    def read(self) -> MemoryReading | None:
        """The figures of this instant, or None."""
        ...

    def refresh(self) -> None:
        """Find the service anew (unit to cgroup, process tree). Never raises; what is wrong goes to `degraded`."""
        ...

    @property
    def refresh_wanted(self) -> bool:
        """True when the source knows that what it holds is stale."""
        ...

    @property
    def degraded(self) -> tuple[str, ...]:
        """What this source cannot see here, each as a sentence for people with what it means."""
        ...

    def close(self) -> None:
        """Give back all descriptors."""
        ...
