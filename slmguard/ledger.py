"""What the guard has seen and done so far: counters that only grow, and the last runs of rungs."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from slmguard.core.events import EventKind, GuardEvent
from slmguard.core.ladder import HISTORY, RungRecord
from slmguard.core.model import Level, Outcome, Rung

LEVELS = tuple(level.word for level in Level)


@dataclass(slots=True)
class Ledger:
    """Counters (persisted), rung history (persisted) and tick statistics (of this process only)."""

    oom_kills: int = 0
    stalls: int = 0
    unexpected_restarts: int = 0
    level_changes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(LEVELS, 0))
    rung_runs: dict[str, int] = field(default_factory=dict)
    rung_freed_bytes: dict[str, int] = field(default_factory=dict)
    rungs: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=HISTORY))
    ticks: int = 0
    late_ticks: int = 0
    changed: bool = False

    def note_event(self, event: GuardEvent) -> None:
        """Count one event."""
        if event.kind is EventKind.OOM_KILL:
            self.oom_kills += event.count
        elif event.kind is EventKind.STALL_SUSPECTED:
            self.stalls += 1
        elif event.kind is EventKind.UNEXPECTED_RESTART:
            self.unexpected_restarts += 1
        elif event.kind is EventKind.LEVEL_CHANGED:
            self.level_changes[event.level] = self.level_changes.get(event.level, 0) + 1
        else:
            return
        self.changed = True

    def note_rung(self, record: RungRecord) -> None:
        """Keep one complete run of a rung."""
        request, result = record.request, record.result
        key = run_key(request.rung, result.outcome)
        self.rung_runs[key] = self.rung_runs.get(key, 0) + 1
        freed = record.freed_bytes
        if freed is not None and freed > 0:
            self.rung_freed_bytes[request.rung.value] = self.rung_freed_bytes.get(request.rung.value, 0) + freed
        self.rungs.append(
            {
                "rung": request.rung.value,
                "level": request.level.word,
                "at_wall_s": round(record.at_wall_s, 3),
                "reason": request.reason,
                "outcome": result.outcome.value,
                "seconds": round(result.seconds, 3),
                "before_bytes": record.before_bytes,
                "after_bytes": record.after_bytes,
                "freed_bytes": freed,
                "detail": result.detail,
            }
        )
        self.changed = True

    def to_json(self) -> dict[str, Any]:
        """What is persisted."""
        return {
            "oom_kills": self.oom_kills,
            "stalls": self.stalls,
            "unexpected_restarts": self.unexpected_restarts,
            "level_changes": dict(self.level_changes),
            "rung_runs": dict(self.rung_runs),
            "rung_freed_bytes": dict(self.rung_freed_bytes),
            "rungs": list(self.rungs),
        }

    @classmethod
    def from_json(cls, data: object) -> Ledger:
        """The persisted ledger; whatever in it does not fit counts as absent."""
        ledger = cls()
        if not isinstance(data, dict):
            return ledger
        ledger.oom_kills = _count(data.get("oom_kills"))
        ledger.stalls = _count(data.get("stalls"))
        ledger.unexpected_restarts = _count(data.get("unexpected_restarts"))
        ledger.level_changes.update({key: n for key, n in _counts(data.get("level_changes")).items() if key in LEVELS})
        known_runs = {run_key(rung, outcome) for rung in Rung for outcome in Outcome}
        ledger.rung_runs = {key: n for key, n in _counts(data.get("rung_runs")).items() if key in known_runs}
        rungs = {rung.value for rung in Rung}
        ledger.rung_freed_bytes = {key: n for key, n in _counts(data.get("rung_freed_bytes")).items() if key in rungs}
        history = data.get("rungs")
        if isinstance(history, list):
            ledger.rungs.extend(item for item in history if isinstance(item, dict) and item.get("rung") in rungs)
        return ledger


def run_key(rung: Rung, outcome: Outcome) -> str:
    """The key of `rung_runs`: `planned_restart/ok`."""
    return f"{rung.value}/{outcome.value}"


def _count(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else 0


def _counts(value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    return {str(key): _count(number) for key, number in value.items()}
