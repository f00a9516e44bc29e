"""The boots of the test run: which scenarios share one, and with what parameters.

The figures are chosen so that each scenario decides itself within two minutes of guest time: SmolLM2 starts at 173 MiB
(68 anonymous, 105 of mapped weights) and a conversation of 130 tokens adds 3 MiB; one every 2 s crosses 85 % of
MemoryHigh after 30 s, 92 % after 42 s and MemoryHigh itself after 55 s.
"""

from __future__ import annotations

from typing import Any

from tests.board.harness.boot import Step
from tests.board.harness.models import REAL, TINY

# Without a guard and with it, the very same server and conversations.
CONVERSATIONS: dict[str, Any] = {
    "model": REAL,
    "high_mib": 260,
    "max_mib": 300,
    "settings": {"ctx_size": 2048, "n_parallel": 1, "threads": 1},
    "load": {"words": 100, "answer_tokens": 8, "limit_s": 30, "period_s": 2},
    "seconds": 120,
}
HOG: dict[str, Any] = {"high_mib": 60, "max_mib": 80, "wanted_mib": 200}
STALL_WINDOW_S = 10
STALL_DEADLINE_S = 20

LLAMA_CONFIG = """\
[unit]
name = "llama-server.service"

[server]
kind = "llama-server"
url = "http://127.0.0.1:8080"
"""
# On the board the cache fills in 40 s what takes hours elsewhere; so restarts may follow each other sooner, too. And
# without a gate the client goes on asking: a drain would last to its end (measured: 32 s, past MemoryHigh meanwhile).
GUARDED_CONFIG = LLAMA_CONFIG + "\n[restart]\nmin_interval_s = 20.0\ndrain_s = 5.0\n"
OOM_CONFIG = LLAMA_CONFIG + "\n[run]\ndry_run = true\n"
# Only the stall detector may save this one.
HOG_CONFIG = f"""\
[unit]
name = "hog.service"

[server]
kind = "none"

[stall]
window_s = {STALL_WINDOW_S}.0
deadline_s = {STALL_DEADLINE_S}.0

[ladder]
planned_restart = {{ enabled = false }}
"""
# Levels are left at once, so that the next rung's turn comes soon; growth in steps is no forecast.
RUNGS_CONFIG = """\
[unit]
name = "scripted-server.service"

[server]
kind = "llama-server"
url = "http://127.0.0.1:8090"

[levels]
hold_s = 1.0

[forecast]
enabled = false
"""

UNGUARDED_BOOT = [
    Step("facts", 60),
    Step("unguarded", 240, CONVERSATIONS),
    Step("hog_unguarded", 150, {**HOG, "seconds": 30}),
    Step("hog_guarded", 200, {**HOG, "limit_s": 120, "config": HOG_CONFIG}),
    Step(
        "oom_killed",
        180,
        {
            "model": TINY,
            "max_mib": 250,
            "settings": {"ctx_size": 1024, "n_parallel": 1, "threads": 1},
            "load": {"words": 30, "answer_tokens": 4, "limit_s": 30},
            "limit_s": 90,
            "count_within_s": 10,
            "config": OOM_CONFIG,
        },
    ),
]

GUARDED_BOOT = [
    Step("guarded", 260, {**CONVERSATIONS, "config": GUARDED_CONFIG}),
    Step("restarted_unit", 120),
    Step("broken_reload", 150),
    Step("killed_daemon", 200, {"watchdog_limit_s": 100}),
    Step("hardening", 90),
    Step("rungs", 300, {"config": RUNGS_CONFIG}),
]

BOOTS = {"unguarded_board": UNGUARDED_BOOT, "guarded_board": GUARDED_BOOT}
