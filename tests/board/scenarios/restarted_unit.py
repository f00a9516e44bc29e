"""`systemctl restart` of the guarded unit under the guard: the guard follows to the new cgroup and keeps still."""

from __future__ import annotations

import time
from typing import Any

from tests.board.guest import guard, server
from tests.board.guest.load import Conversations
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Restarts the guarded unit by hand; status before, right after and later."""
    before = guard.ask()
    pid = guard.main_pid(machine)
    machine.systemctl("restart", server.UNIT)
    machine.wait_until(server.ready, "llama-server to be ready again", 90, 1)
    after = guard.wait_for(
        machine,
        lambda told: told["instance"] != before["instance"] and told["figure_bytes"] and told["server"]["ready"],
        "the guard to see the new life of the unit",
    )
    client = Conversations(server.PORT, words=40, answer_tokens=4, limit_s=30)
    answer = client.ask()
    time.sleep(3)
    return {
        "before": before,
        "after": after,
        "later": guard.ask(),
        "answer_tokens": answer.get("tokens_predicted"),
        "same_daemon": guard.main_pid(machine) == pid,
        "journal": guard.journal(machine)[-20:],
    }
