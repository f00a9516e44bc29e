"""Keeping what must survive: loads the state file at start, saves it in the worker when something has changed."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slmguard.core import ladder
from slmguard.core.baseline import BaselineState
from slmguard.core.ladder import LadderState
from slmguard.core.model import Sample
from slmguard.core.policy import State
from slmguard.ledger import Ledger
from slmguard.store import Store
from slmguard.worker import Job, Worker

SAVE_INTERVAL_S = 5.0
RETRY_INTERVAL_S = 60.0


class Keeper:
    """The ledger and its file. `problem` is a sentence while the file cannot be written or was damaged."""

    def __init__(
        self,
        directory: Path,
        unit: str,
        worker: Worker,
        clock: Callable[[], float],
        tell: Callable[[str], None],
        boot_id_path: Path = Path("/proc/sys/kernel/random/boot_id"),
    ) -> None:
        self._store = Store(directory)
        self._unit = unit
        self._worker = worker
        self._clock = clock
        self._tell = tell
        self._boot_id = _read_boot_id(boot_id_path)
        self._saving = False
        self._next_save_s = 0.0
        self._kept_instance: str | None = None
        self._kept_restarts: tuple[float, ...] = ()
        self.write_failures = 0
        self.problem: str | None = None
        loaded, complaint = self._store.load()
        if complaint is not None:
            self.problem = complaint
            tell(complaint)
        units = loaded.get("units")
        mine = units.get(unit) if isinstance(units, dict) else None
        self._loaded: dict[str, Any] = mine if isinstance(mine, dict) else {}
        self._others: dict[str, Any] = (
            {key: value for key, value in (units or {}).items() if key != unit} if isinstance(units, dict) else {}
        )
        self.ledger = Ledger.from_json(self._loaded.get("ledger"))

    def resume(self, first: Sample) -> State:
        """The state to begin with: what was known of this very life of the service, restarts of the last hour."""
        loaded, same_boot = self._loaded, self._loaded.get("boot_id") == self._boot_id
        restarts = loaded.get("restarts_s") if same_boot else None
        now_s = self._clock()
        known = tuple(
            float(at_s)
            for at_s in (restarts if isinstance(restarts, list) else [])
            if isinstance(at_s, (int, float)) and 0 <= now_s - at_s < ladder.HOUR_S
        )
        state = State(ladder=LadderState(restarts_s=known))
        if not loaded or first.memory is None:
            return state if not loaded else _with_kills(state, 0)
        if not same_boot or loaded.get("instance") != first.memory.instance:
            return _with_kills(state, 0)
        baseline, kills = loaded.get("baseline_bytes"), loaded.get("oom_kills_seen")
        return State(
            instance=first.memory.instance,
            baseline=BaselineState(baseline_bytes=baseline if isinstance(baseline, int) and baseline >= 0 else None),
            ladder=state.ladder,
            oom_kills_seen=kills if isinstance(kills, int) and kills >= 0 else None,
        )

    def keep(self, state: State) -> None:
        """Save in the worker when something has changed, at most every 5 s."""
        now_s = self._clock()
        changed = (
            self.ledger.changed
            or state.instance != self._kept_instance
            or state.ladder.restarts_s != self._kept_restarts
        )
        if not changed or self._saving or now_s < self._next_save_s:
            return
        data = self._document(state)
        self._kept_instance, self._kept_restarts = state.instance, state.ladder.restarts_s
        self.ledger.changed = False
        self._next_save_s = now_s + SAVE_INTERVAL_S
        self._saving = self._worker.submit(
            Job("save", lambda: self._store.save(data), self._saved, lambda error: self._saved(str(error)))
        )

    def save_now(self, state: State) -> None:
        """Save at once, in the caller's thread (at the end)."""
        self._saved(self._store.save(self._document(state)))

    def _saved(self, complaint: str | None) -> None:
        self._saving = False
        if complaint is None:
            self.problem = None
            return
        self.write_failures += 1
        self.ledger.changed = True
        self._next_save_s = self._clock() + RETRY_INTERVAL_S
        if complaint != self.problem:
            self._tell(complaint)
        self.problem = complaint

    def _document(self, state: State) -> dict[str, Any]:
        mine = {
            "boot_id": self._boot_id,
            "saved_wall_s": time.time(),
            "instance": state.instance,
            "oom_kills_seen": state.oom_kills_seen,
            "baseline_bytes": state.baseline.baseline_bytes,
            "restarts_s": list(state.ladder.restarts_s),
            "ledger": self.ledger.to_json(),
        }
        return {"version": 1, "units": {**self._others, self._unit: mine}}


def _with_kills(state: State, kills: int) -> State:
    return State(ladder=state.ladder, oom_kills_seen=kills)


def _read_boot_id(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return "unknown"
