"""The daemon's side of the gate: what the gate is told, and what it last told.

The loop pushes state lines; the worker that runs a planned restart holds and releases. Hence the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slmguard.core.policy import GateState

REPORT_STALE_S = 15.0


@dataclass(slots=True)
class GateReport:
    """What one gate last said of itself; `at_s` is monotonic."""

    in_flight: int = 0
    held: int = 0
    queued: int = 0
    progress_tokens: int | None = None
    at_s: float = 0.0


class GateHub:
    """Implements `GateLink` of slmguard.actions.base. `wake` makes the loop push the new state at once."""

    def __init__(self, clock: Callable[[], float], wake: Callable[[], None], unit: str) -> None:
        self._clock = clock
        self._wake = wake
        self._unit = unit
        self._lock = threading.Lock()
        self._state = GateState()
        self._hold_until_s: float | None = None
        self._cut = False
        self._reports: dict[int, GateReport] = {}
        self._version = 0

    # -- the worker's side (GateLink) ------------------------------------------------------------------------------

    def connected(self) -> bool:
        """True when a gate is subscribed."""
        with self._lock:
            return bool(self._reports)

    def hold(self, deadline_s: float) -> None:
        """Let new requests wait, for at most `deadline_s` seconds from now."""
        with self._lock:
            self._hold_until_s = self._clock() + deadline_s
            self._cut = False
            for report in self._reports.values():
                report.at_s = 0.0  # what was told before the hold says nothing about the drain
            self._version += 1
        self._wake()

    def in_flight(self) -> int | None:
        """Requests now upstream of all gates, None when no gate has told since the hold began."""
        now_s = self._clock()
        with self._lock:
            fresh = [report for report in self._reports.values() if now_s - report.at_s < REPORT_STALE_S]
            if not self._reports or len(fresh) < len(self._reports):
                return None
            return sum(report.in_flight for report in fresh)

    def cut(self) -> None:
        """Have the upstream sockets of what is still in flight closed."""
        with self._lock:
            self._cut = True
            self._version += 1
        self._wake()

    def release(self) -> None:
        """Let the held requests go through."""
        with self._lock:
            self._hold_until_s = None
            self._cut = False
            self._version += 1
        self._wake()

    # -- the loop's side -------------------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """Grows whenever the state line has changed."""
        with self._lock:
            return self._version

    def set_state(self, state: GateState) -> None:
        """Take over what the last decision says."""
        with self._lock:
            if state != self._state:
                self._state = state
                self._version += 1

    def subscribe(self, key: int) -> None:
        """A gate has connected."""
        with self._lock:
            self._reports[key] = GateReport()

    def unsubscribe(self, key: int) -> None:
        """A gate has gone."""
        with self._lock:
            self._reports.pop(key, None)

    def report(self, key: int, message: dict[str, Any]) -> None:
        """Take a gate's report; values that are no sensible counts are taken as 0."""
        with self._lock:
            if key not in self._reports:
                return
            if self._hold_until_s is not None and message.get("hold") is False:
                return  # written before the hold reached the gate: its count is of another time
            self._reports[key] = GateReport(
                in_flight=_count(message.get("in_flight")),
                held=_count(message.get("held")),
                queued=_count(message.get("queued")),
                progress_tokens=_count(message.get("progress_tokens")) if "progress_tokens" in message else None,
                at_s=self._clock(),
            )

    def state_line(self) -> dict[str, Any]:
        """The line that subscribed gates get."""
        now_s = self._clock()
        with self._lock:
            hold = self._hold_until_s is not None and self._hold_until_s > now_s
            deadline_s = round(self._hold_until_s - now_s, 1) if hold and self._hold_until_s is not None else None
            return {
                "type": "state",
                "level": self._state.level.word,
                "clamp_max_tokens": self._state.clamp_max_tokens,
                "keep_recent_tokens": self._state.keep_recent_tokens,
                "refuse": self._state.refuse,
                "retry_after_s": self._state.retry_after_s,
                "hold": hold,
                "hold_deadline_s": deadline_s,
                "cut": self._cut and hold,
                "unit": self._unit,
            }


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 53 else 0
