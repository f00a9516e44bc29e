"""The MemoryHigh livelock: a hog without swap is throttled for good, never killed, and its unit stays `active`."""

from __future__ import annotations

import time
from typing import Any

from tests.board.guest import hog_unit
from tests.board.guest.load import Recorder
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Watches the hog for `seconds` after it was throttled first."""
    asked = machine.parameters
    hog_unit.install(machine, asked["high_mib"], asked["max_mib"], asked["wanted_mib"])
    recorder = Recorder(machine, hog_unit.UNIT).start()
    try:
        machine.systemctl("start", hog_unit.UNIT)
        machine.wait_until(lambda: recorder.high_events > 0, "the hog to reach MemoryHigh", 60)
        throttled_at, beats = time.monotonic(), hog_unit.beats(machine)
        time.sleep(asked["seconds"] / 2)
        half = hog_unit.beats(machine)
        time.sleep(asked["seconds"] / 2)
        return {
            "throttled_for_s": round(time.monotonic() - throttled_at, 1),
            "beats_in_first_half": half - beats,
            "beats_in_second_half": hog_unit.beats(machine) - half,
            "oom_kills": recorder.oom_kills,
            "high_events": recorder.high_events,
            "unit": machine.show(hog_unit.UNIT, "ActiveState", "SubState", "Result", "NRestarts"),
            "points": recorder.stop(),
        }
    finally:
        hog_unit.remove(machine)
