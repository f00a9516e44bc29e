"""How the process to guard is named (slmguard.sources.process_finder finds it)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessTarget:
    """The ways to name a process, tried in this order: pid, pid file, command line, listening port, unit.

    `match_argv` are texts that must all be found in one process' command line.
    """

    unit: str | None = None
    pid: int | None = None
    pid_file: Path | None = None
    match_argv: tuple[str, ...] = ()
    port: int | None = None

    @property
    def named(self) -> bool:
        """Whether there is any way at all to find the process."""
        return bool(self.unit or self.pid or self.pid_file or self.match_argv or self.port)
