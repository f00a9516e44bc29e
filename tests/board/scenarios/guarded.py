"""The same server, limits and conversations as `unguarded`, with `systemctl enable --now slmguard` before them."""

from __future__ import annotations

from typing import Any

from tests.board.guest import guard, server, talk
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Talks for `seconds`; the record, and what status, metrics and journal of the guard tell of it."""
    ready_s = talk.serve(machine)
    first = guard.enable(machine, machine.parameters["config"])

    def look() -> str:
        told = guard.ask()
        words = ("level", "ratio", "baseline_bytes", "freeable_bytes", "forecast_s", "stalled_for_s")
        return " ".join(f"{word}={told[word]}" for word in words)

    record = talk.talk(machine, look)
    result = {
        "ready_s": ready_s,
        **record,
        "first_status": first,
        "status": guard.ask(),
        "metrics": guard.own_metrics(),
        "journal": guard.journal(machine),
        "enabled": machine.systemctl("is-enabled", guard.UNIT, check=False).strip(),
        "guard_resident_kb": guard.resident_kb(guard.main_pid(machine)),
        "command": guard.command(machine, "status", "--json"),
    }
    machine.wait_until(server.ready, "the server to be ready for the next scenario", 90, 1)
    return result
