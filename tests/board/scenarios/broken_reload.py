"""`systemctl reload slmguard` with a broken file keeps the old configuration and says so; a good one is taken over."""

from __future__ import annotations

from typing import Any

from tests.board.guest import guard
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Reloads with a broken file (by systemctl and by SIGHUP), then with a good one that changes a threshold."""
    good = guard.CONFIG.read_text()
    before = guard.ask()
    pid = guard.main_pid(machine)
    guard.configure(machine, good + "\n[levels]\nelevatd = 0.5\n")
    reload = machine.run("systemctl", "reload", guard.UNIT, limit_s=90)
    after_reload = guard.ask()
    machine.run("kill", "-HUP", str(pid))
    after_signal = guard.wait_for(
        machine, lambda told: any("not in force" in text for text in told["degraded"]), "the daemon to refuse the file"
    )
    refused = guard.journal(machine)
    guard.configure(machine, good + "\n[levels]\nelevated = 0.80\n")
    machine.systemctl("reload", guard.UNIT)
    after_good = guard.wait_for(
        machine,
        lambda told: told["limits"]["elevated_bytes"] != before["limits"]["elevated_bytes"],
        "the good configuration to be in force",
    )
    guard.configure(machine, good)
    machine.systemctl("reload", guard.UNIT)
    return {
        "reload_code": reload.returncode,
        "reload_error": reload.stderr,
        "before": before,
        "after_reload": after_reload,
        "after_signal": after_signal,
        "after_good": after_good,
        "same_daemon": guard.main_pid(machine) == pid,
        "unit": machine.show(guard.UNIT, "ActiveState", "SubState", "NRestarts"),
        "journal": refused[-20:],
    }
