"""Debian's llama-server under MemoryHigh/MemoryMax with conversations and no guard: what happens to it."""

from __future__ import annotations

import time
from typing import Any

from tests.board.guest import server
from tests.board.guest.load import Conversations, Recorder
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Talks for `seconds`; the record of memory and answers."""
    asked = machine.parameters
    server.configure(machine, asked["model"], asked["high_mib"], asked["max_mib"], asked["settings"])
    began = time.monotonic()
    server.start(machine)
    ready_s = time.monotonic() - began
    client = Conversations(server.PORT, **asked["load"])
    recorder = Recorder(machine, server.UNIT, client.tally)
    idle = recorder.sample()
    machine.note(f"ready after {ready_s:.1f} s: {idle}")
    recorder.start()
    client.start()
    began = time.monotonic()
    while time.monotonic() - began < asked["seconds"]:
        time.sleep(min(10, asked["seconds"]))
        machine.note(str(recorder.sample()))
    tally = client.tally
    last = tally.last_answer_s
    result = {
        "ready_s": round(ready_s, 1),
        "seconds": round(time.monotonic() - began, 1),
        "answered": tally.answered,
        "failed": tally.failed,
        "failures": tally.failures,
        "prompt_tokens": tally.prompt_tokens,
        "generated_tokens": tally.generated_tokens,
        "answer_seconds": tally.seconds,
        "silent_at_end_s": round(time.monotonic() - (last or began), 1),
        "unit": machine.show(server.UNIT, "ActiveState", "SubState", "Result", "NRestarts"),
        "oom_kills": recorder.oom_kills,
        "high_events": recorder.high_events,
        "points": recorder.stop(),
    }
    machine.systemctl("kill", "--signal=SIGKILL", server.UNIT, check=False)
    machine.systemctl("stop", server.UNIT, check=False)
    return result
