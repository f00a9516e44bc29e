"""Every rung that the daemon runs itself, from inside its sandbox, against a server that has them all."""

from __future__ import annotations

import time
from typing import Any

from tests.board.guest import guard
from tests.board.guest.load import get, post
from tests.board.guest.machine import UNIT_DIR, Machine

UNIT = "scripted-server.service"
PORT = 8090
STEP_MIB = 3


def run(machine: Machine) -> dict[str, Any]:
    """Grows the server past each level; the rungs' records and what the server says that it was told."""
    machine.write(
        UNIT_DIR / UNIT,
        "[Service]\n"
        f"ExecStart=/usr/bin/python3 -m tests.board.guest.scripted_server {PORT}\n"
        "Environment=PYTHONPATH=/host/payload PYTHONDONTWRITEBYTECODE=1 MALLOC_ARENA_MAX=1\n"
        "DynamicUser=yes\nMemoryHigh=120M\nMemoryMax=140M\nMemorySwapMax=0\nTimeoutStopSec=5\n",
    )
    machine.systemctl("daemon-reload")
    guard.disable(machine)
    machine.systemctl("start", UNIT)
    try:
        machine.wait_until(lambda: get(PORT, "/health")[0] == 200, "the scripted server", 30)
        guard.enable(machine, machine.parameters["config"])
        wanted = {"trim", "drop_caches"}
        guard.wait_for(machine, lambda told: wanted <= set(told["server"]["capabilities"]), "the server's rungs")
        # Past elevated by what trim gives back, by what erase gives back, then past high by what only a restart does.
        _grow(machine, "history", until="elevated")
        _ran(machine, "trim")
        _grow(machine, "cache", until="elevated")
        _ran(machine, "drop_caches")
        _grow(machine, "leak", until="high")
        _ran(machine, "planned_restart")
        told = guard.ask()
        return {
            "status": told,
            "metrics": guard.own_metrics(),
            "journal": guard.journal(machine),
            "server_log": machine.run("journalctl", "-b", "-u", UNIT, "--no-pager", "-o", "cat").stdout.splitlines(),
        }
    finally:
        guard.disable(machine)
        machine.systemctl("kill", "--signal=SIGKILL", UNIT, check=False)
        machine.systemctl("stop", UNIT, check=False)


def _grow(machine: Machine, kind: str, *, until: str) -> None:
    """From level normal, asks for memory in small steps until the guard's level is at least `until`."""
    levels = ["normal", "elevated", "high", "critical"]
    guard.wait_for(machine, lambda told: told["level"] == "normal", "the level to be normal", 90)
    for _ in range(60):
        level = guard.ask()["level"]
        if levels.index(level) >= levels.index(until):
            return
        machine.note(f"more {kind} at {level}: {post(PORT, '/grow', {kind: STEP_MIB}, 10)}")
        time.sleep(0.7)
    raise AssertionError(f"the guard never said {until}")


def _ran(machine: Machine, rung: str) -> dict[str, Any]:
    return guard.wait_for(
        machine,
        lambda told: any(run["rung"] == rung and run["outcome"] == "ok" for run in told["rungs"]),
        f"the rung {rung} to have run",
        90,
    )
