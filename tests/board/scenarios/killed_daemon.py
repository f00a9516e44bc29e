"""`kill -9` of the daemon, then a SIGSTOP: Restart and watchdog bring it back, and its counters survive."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

from tests.board.guest import guard
from tests.board.guest.machine import Machine

PERSISTENT = ("slmguard_rung_runs_total", "slmguard_rung_freed_bytes_total", "slmguard_level_changes_total")


def run(machine: Machine) -> dict[str, Any]:
    """Kills, then stops the daemon; the counters and figures around each, and how long it was away."""
    metrics = [persistent()]
    killed_s = _away(machine, signal.SIGKILL, 60)
    metrics.append(persistent())
    stopped_s = _away(machine, signal.SIGSTOP, machine.parameters["watchdog_limit_s"])
    metrics.append(persistent())
    return {
        "counters_before": metrics[0],
        "counters_after_kill": metrics[1],
        "counters_after_watchdog": metrics[2],
        "back_after_kill_s": killed_s,
        "back_after_stop_s": stopped_s,
        "watchdog": machine.show(guard.UNIT, "WatchdogUSec")["WatchdogUSec"],
        "unit": machine.show(guard.UNIT, "ActiveState", "SubState", "NRestarts", "Result"),
        "status": guard.ask(),
        "journal": guard.journal(machine)[-30:],
        "manager": machine.run("journalctl", "-b", "--no-pager", "-o", "cat", "_PID=1").stdout.splitlines()[-30:],
    }


def persistent() -> dict[str, float]:
    """The counters that must survive the daemon."""
    return {name: value for name, value in guard.metrics().items() if name.startswith(PERSISTENT)}


def _away(machine: Machine, with_signal: signal.Signals, limit_s: float) -> float:
    pid = guard.main_pid(machine)
    began = time.monotonic()
    os.kill(pid, with_signal)
    machine.wait_until(
        lambda: guard.main_pid(machine) not in (0, pid), f"a new daemon after {with_signal.name}", limit_s
    )
    guard.wait_for(machine, lambda told: told["figure_bytes"] is not None, f"figures after {with_signal.name}")
    return round(time.monotonic() - began, 1)
