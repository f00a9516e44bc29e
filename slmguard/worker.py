"""A thread for what may block: HTTP calls, systemctl, writing the state file.

The loop hands over a job and gets the outcome back in its own thread; the queue is bounded and what does not fit is
counted. A job that hangs holds its own worker only.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
STACK_BYTES = 512 * 1024


@dataclass(slots=True)
class Job(Generic[T]):
    """What to do, and what to call in the loop's thread with what came out of it."""

    label: str
    work: Callable[[], T]
    done: Callable[[T], None]
    failed: Callable[[BaseException], None]


class Worker:
    """One thread and its bounded queue. `wake` is called (from the thread) when there is something to collect."""

    def __init__(self, name: str, wake: Callable[[], None], capacity: int = 8) -> None:
        self.name = name
        self.dropped = 0
        self.busy_with: str | None = None
        self._wake = wake
        self._jobs: queue.Queue[Job[object] | None] = queue.Queue(capacity)
        self._finished: deque[Callable[[], None]] = deque()
        previous = threading.stack_size(STACK_BYTES)
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()
        threading.stack_size(previous)

    def submit(self, job: Job[T]) -> bool:
        """Queue `job`; False (and counted) when the queue is full."""
        try:
            self._jobs.put_nowait(job)  # type: ignore[arg-type]  # the queue holds jobs of every type
        except queue.Full:
            self.dropped += 1
            return False
        return True

    def collect(self) -> None:
        """Run the callbacks of finished jobs, in the caller's thread."""
        while self._finished:
            self._finished.popleft()()

    def stop(self, timeout_s: float) -> bool:
        """Ask the thread to end after its current job; True when it did within `timeout_s`."""
        while True:
            try:
                self._jobs.put_nowait(None)
                break
            except queue.Full:
                try:
                    self._jobs.get_nowait()
                except queue.Empty:
                    continue
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while True:
            job = self._jobs.get()
            if job is None:
                return
            self.busy_with = job.label
            try:
                outcome = job.work()
            except BaseException as error:  # noqa: BLE001 - it is handed to the loop, which decides
                self._finish(job.failed, error)
            else:
                self._finish(job.done, outcome)
            self.busy_with = None
            self._wake()

    def _finish(self, callback: Callable[[T], None], value: T) -> None:
        self._finished.append(lambda: callback(value))
