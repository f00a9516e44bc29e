"""The two ends of a service that outgrew its limit, seen by the guard: the livelock and the kill."""

from __future__ import annotations

import pytest

from tests.board.harness.boot import BoardRun
from tests.board.plans import STALL_DEADLINE_S, STALL_WINDOW_S

pytestmark = pytest.mark.board
# What the two-second throttle naps, a slow kernel and a busy host may add.
SLACK_S = 30


def test_a_stalled_hog_is_found_and_restarted_by_force_within_its_deadline(unguarded_board: BoardRun) -> None:
    seen = unguarded_board.result("hog_guarded")
    forced = [run for run in seen["status"]["rungs"] if run["rung"] == "forced_restart"]
    assert [run["outcome"] for run in forced] == ["ok"]
    assert seen["oom_kills"] == 0
    assert seen["found_after_s"] <= STALL_WINDOW_S + SLACK_S
    assert seen["restarted_after_s"] <= STALL_WINDOW_S + STALL_DEADLINE_S + SLACK_S


def test_a_stall_is_told_by_status_metrics_and_journal(unguarded_board: BoardRun) -> None:
    seen = unguarded_board.result("hog_guarded")
    assert seen["stalled_status"]["level"] == "critical"
    assert seen["metrics"]['slmguard_stalls_total{unit="hog.service"}'] >= 1
    assert any("stalled" in line and "memory.high" in line for line in seen["journal"])


def test_a_server_without_memory_high_is_killed_by_the_kernel(unguarded_board: BoardRun) -> None:
    seen = unguarded_board.result("oom_killed")
    assert seen["unit"] == {"ActiveState": "failed", "Result": "oom-kill"}
    assert any("task_memcg=/system.slice/llama-server.service" in line for line in seen["kernel"])


@pytest.mark.xfail(
    reason="the unit's cgroup and its memory.events are often gone before the guard's next look; the kernel log has it",
    strict=False,
)
def test_the_kernels_kill_of_the_guarded_unit_is_counted(unguarded_board: BoardRun) -> None:
    seen = unguarded_board.result("oom_killed")
    assert seen["status"]["counters"]["oom_kills"] == 1
    assert seen["metrics"]['slmguard_oom_kills_total{unit="llama-server.service"}'] == 1


def test_a_dry_run_leaves_the_unit_to_its_fate(unguarded_board: BoardRun) -> None:
    seen = unguarded_board.result("oom_killed")
    told = seen["status"]
    assert told["dry_run"] is True
    assert {run["outcome"] for run in told["rungs"]} == {"dry_run"}
    assert seen["unit"]["ActiveState"] == "failed"
