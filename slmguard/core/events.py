"""What the guard has to tell: one kind for each thing that a person or a programme may wait for."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from slmguard.core.ladder import RungRecord
from slmguard.core.model import Outcome, RungRequest


class EventKind(str, enum.Enum):
    """The kinds of event; the value is the word in logs and JSON."""

    LEVEL_CHANGED = "level_changed"
    RUNG_STARTED = "rung_started"
    RUNG_FINISHED = "rung_finished"
    STALL_SUSPECTED = "stall_suspected"
    OOM_KILL = "oom_kill"
    UNEXPECTED_RESTART = "unexpected_restart"
    BASELINE_OVER = "baseline_over"
    BUDGET_SPENT = "budget_spent"
    SOURCE_LOST = "source_lost"
    SOURCE_REGAINED = "source_regained"


@dataclass(frozen=True, slots=True)
class GuardEvent:
    """One thing that happened; `count` is how many of it at once, `level` the new level of a level change."""

    kind: EventKind
    wall_s: float
    text: str
    count: int = 1
    level: str = ""


class LifeEvents:
    """Collects the events of one step, all with the same time."""

    def __init__(self, wall_s: float) -> None:
        self._wall_s = wall_s
        self._events: list[GuardEvent] = []

    def add(self, kind: EventKind, text: str, count: int = 1, level: str = "") -> None:
        """Note one event."""
        self._events.append(GuardEvent(kind, self._wall_s, text, count, level))

    def rung_started(self, request: RungRequest) -> None:
        """Note that a rung was handed out."""
        mode = " (dry run)" if request.dry_run else ""
        self.add(EventKind.RUNG_STARTED, f"{request.rung.value}{mode}: {request.reason}")

    def rung_finished(self, record: RungRecord) -> None:
        """Note how a rung ended and what it freed."""
        result = record.result
        text = f"{result.rung.value} {result.outcome.value} after {result.seconds:.1f} s"
        freed = record.freed_bytes
        if freed is not None and result.outcome in {Outcome.OK, Outcome.TIMEOUT, Outcome.FAILED}:
            verb = "freed" if freed >= 0 else "grew by"
            text += f", {verb} {abs(freed) / (1 << 20):.1f} MiB"
        if result.detail:
            text += f" ({result.detail})"
        self.add(EventKind.RUNG_FINISHED, text)

    def all(self) -> tuple[GuardEvent, ...]:
        """Everything noted, in order."""
        return tuple(self._events)
