"""The load that guarded and unguarded runs share, and the record of what became of it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.board.guest import server
from tests.board.guest.load import Conversations, Recorder
from tests.board.guest.machine import Machine

LOOK_EVERY_S = 10


def serve(machine: Machine) -> float:
    """Configures and starts the model server as the step's parameters say; seconds until it was ready."""
    asked = machine.parameters
    server.configure(machine, asked["model"], asked["high_mib"], asked["max_mib"], asked["settings"])
    began = time.monotonic()
    server.start(machine)
    return round(time.monotonic() - began, 1)


def talk(machine: Machine, look: Callable[[], object] | None = None) -> dict[str, Any]:
    """Conversations for `seconds`; memory once a second, answers, kills. `look` is called every 10 s."""
    asked = machine.parameters
    client = Conversations(server.PORT, **asked["load"])
    recorder = Recorder(machine, server.UNIT, client.tally)
    idle = recorder.sample()
    recorder.start()
    client.start()
    began = time.monotonic()
    while (left := began + asked["seconds"] - time.monotonic()) > 0:
        time.sleep(min(LOOK_EVERY_S, left))
        seen = look() if look is not None else ""
        machine.note(f"{recorder.sample()} {seen}")
    tally = client.tally
    seconds = time.monotonic() - began
    points = recorder.stop()
    half = [point for point in points if point["at_s"] <= seconds / 2]
    result = {
        "seconds": round(seconds, 1),
        "idle": {"anon_mib": idle.anon, "file_mapped_mib": idle.file_mapped, "current_mib": idle.current},
        "answered": tally.answered,
        "answered_in_first_half": half[-1]["answered"] if half else 0,
        "failed": tally.failed,
        "failures": dict(tally.failures),
        "prompt_tokens": tally.prompt_tokens,
        "generated_tokens": tally.generated_tokens,
        "tokens_per_s": round((tally.prompt_tokens + tally.generated_tokens) / seconds, 2),
        "answer_seconds": list(tally.seconds),
        "silent_at_end_s": round(time.monotonic() - (tally.last_answer_s or began), 1),
        "oom_kills": recorder.oom_kills,
        "high_events": recorder.high_events,
        "unit": machine.show(server.UNIT, "ActiveState", "SubState", "Result", "NRestarts"),
        "points": points,
    }
    client.give_up()
    return result


def end_server(machine: Machine) -> None:
    """Ends the model server at once: a stalled one would not obey SIGTERM for a long time."""
    machine.systemctl("kill", "--signal=SIGKILL", server.UNIT, check=False)
    machine.systemctl("stop", server.UNIT, check=False)
    machine.systemctl("reset-failed", server.UNIT, check=False)
