"""Reads the server's memory ten times a second, and plays the kernel when it passes the limit."""

from __future__ import annotations

import threading

from slmguard.demo.memory import read_memory
from slmguard.demo.story import Story
from slmguard.demo.supervisor import Supervisor
from slmguard.ui import words

INTERVAL_S = 0.1
KEEP_EVERY = 4
HONEST = "simulated OOM kill: there is no cgroup here, so the demo itself sent SIGKILL"


class Watch:
    """The demo's own eyes, and its stand-in for the OOM killer: the same with and without the guard.

    In a cgroup the kernel kills when memory that it cannot take back passes MemoryMax. Here the demo compares the
    server's anonymous memory with `budget_max_bytes` and sends SIGKILL, which is also what the kernel sends.
    """

    def __init__(self, story: Story, supervisor: Supervisor) -> None:
        self._story = story
        self._supervisor = supervisor
        self._stopping = threading.Event()
        self._life: int | None = None
        self._file_peak_bytes = 0
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(2.0)

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(INTERVAL_S):
            self.look(keep=number % KEEP_EVERY == 0)
            number += 1

    def look(self, keep: bool) -> None:
        """One reading, and the kill when it is due."""
        pid = self._supervisor.pid
        memory = read_memory(pid) if pid is not None else None
        if memory is None:
            self._story.note_memory(None, None, keep)
            return
        if pid != self._life:
            self._life, self._file_peak_bytes = pid, 0
        # The guard's own figure: what cannot be reclaimed plus the most that was ever mapped from files.
        self._file_peak_bytes = max(self._file_peak_bytes, memory.file_bytes)
        unreclaimable = memory.unreclaimable_bytes
        self._story.note_memory(unreclaimable + self._file_peak_bytes, unreclaimable, keep)
        limit = self._story.settings.budget_max_bytes
        if unreclaimable > limit and self._supervisor.kill_at_limit():
            held = words.short_size(unreclaimable)
            self._story.tell(f"KILLED: {held} is above the {words.short_size(limit)} limit ({HONEST})", "kill")
