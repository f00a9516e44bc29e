"""A server that outgrows MemoryMax without MemoryHigh is killed by the kernel; the guard (dry run) counts it."""

from __future__ import annotations

import time
from typing import Any

from tests.board.guest import guard, server, talk
from tests.board.guest.load import Conversations
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Talks to the tiny model (64 KiB of cache a token) until its unit is dead."""
    asked = machine.parameters
    server.configure(machine, asked["model"], None, asked["max_mib"], asked["settings"])
    server.start(machine)
    client = Conversations(server.PORT, **asked["load"])
    try:
        guard.enable(machine, asked["config"])
        client.start()
        machine.wait_until(
            lambda: machine.show(server.UNIT, "ActiveState")["ActiveState"] == "failed", "the kill", asked["limit_s"]
        )
        unit = machine.show(server.UNIT, "ActiveState", "Result")
        client.give_up()
        time.sleep(asked["count_within_s"])
        told = guard.ask()
        return {
            "unit": unit,
            "answered": client.tally.answered,
            "status": told,
            "metrics": guard.own_metrics(),
            "journal": guard.journal(machine),
            "kernel": [line for line in machine.run("dmesg").stdout.splitlines() if "oom" in line.lower()],
        }
    finally:
        client.give_up()
        guard.disable(machine)
        talk.end_server(machine)
