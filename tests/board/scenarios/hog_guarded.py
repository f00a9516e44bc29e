"""The MemoryHigh livelock of a hog under the guard: found and restarted by force within its deadline."""

from __future__ import annotations

import time
from typing import Any

from tests.board.guest import guard, hog_unit
from tests.board.guest.load import Recorder
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Waits until the throttled hog was restarted; how long that took."""
    asked = machine.parameters
    hog_unit.install(machine, asked["high_mib"], asked["max_mib"], asked["wanted_mib"])
    recorder = Recorder(machine, hog_unit.UNIT).start()
    try:
        machine.systemctl("start", hog_unit.UNIT)
        guard.enable(machine, asked["config"])
        pid = machine.show(hog_unit.UNIT, "MainPID")["MainPID"]
        throttled_at = machine.wait_until(lambda: recorder.throttled_since_s, "the hog to reach MemoryHigh", 60)
        stalled = guard.wait_for(machine, lambda told: told["stalled_for_s"] is not None, "the stall to be found", 60)
        found_at = time.monotonic()
        machine.wait_until(
            lambda: machine.show(hog_unit.UNIT, "MainPID")["MainPID"] not in ("0", pid), "a new hog", asked["limit_s"]
        )
        restarted_at = time.monotonic()
        told = guard.wait_for(
            machine, lambda status: any(run["rung"] == "forced_restart" for run in status["rungs"]), "the rung's record"
        )
        return {
            "found_after_s": round(found_at - throttled_at, 1),
            "restarted_after_s": round(restarted_at - throttled_at, 1),
            "restarted_after_found_s": round(restarted_at - found_at, 1),
            "stalled_status": stalled,
            "status": told,
            "metrics": guard.own_metrics(),
            "oom_kills": recorder.oom_kills,
            "high_events": recorder.high_events,
            "unit": machine.show(hog_unit.UNIT, "ActiveState", "SubState", "Result", "NRestarts"),
            "journal": guard.journal(machine),
            "points": recorder.stop(),
        }
    finally:
        guard.disable(machine)
        hog_unit.remove(machine)
