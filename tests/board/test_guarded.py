"""`systemctl enable --now slmguard` on the board: Debian's llama-server.service goes on answering."""

from __future__ import annotations

import json

import pytest

from tests.board.harness.boot import BoardRun

pytestmark = pytest.mark.board
UNIT = "llama-server.service"


def test_a_guarded_server_is_never_killed_and_never_throttled_into_a_stall(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("guarded")
    assert seen["oom_kills"] == 0
    assert seen["status"]["counters"]["oom_kills"] == 0
    assert seen["status"]["counters"]["stalls"] == 0
    assert seen["unit"]["ActiveState"] == "active"


def test_a_guarded_server_answers_more_than_an_unguarded_one(
    guarded_board: BoardRun, unguarded_board: BoardRun
) -> None:
    guarded, alone = guarded_board.result("guarded"), unguarded_board.result("unguarded")
    second_half = guarded["answered"] - guarded["answered_in_first_half"]
    assert second_half >= 2 * (alone["answered"] - alone["answered_in_first_half"])
    assert guarded["answered"] > alone["answered"]


def test_degradation_begins_at_85_percent_of_memory_high(guarded_board: BoardRun) -> None:
    told = guarded_board.result("guarded")["status"]
    assert told["source"] == "cgroup"
    assert told["limits"]["elevated_bytes"] == int(0.85 * told["limits"]["high_bytes"])
    first = told["rungs"][0]
    assert first["level"] == "elevated"
    assert 0.85 <= first["before_bytes"] / told["limit_bytes"] < 0.92


def test_a_planned_restart_frees_what_the_cache_took(guarded_board: BoardRun) -> None:
    restarts = [run for run in guarded_board.result("guarded")["status"]["rungs"] if run["rung"] == "planned_restart"]
    assert restarts
    assert all(run["outcome"] == "ok" and run["freed_bytes"] > 20 << 20 for run in restarts)


def test_metrics_tell_the_rungs_and_the_levels(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("guarded")
    metrics = seen["metrics"]
    assert metrics[f'slmguard_level_changes_total{{level="elevated",unit="{UNIT}"}}'] >= 1
    restarts = [run for run in seen["status"]["rungs"] if run["rung"] == "planned_restart"]
    assert metrics[f'slmguard_rung_runs_total{{outcome="ok",rung="planned_restart",unit="{UNIT}"}}'] == len(restarts)
    assert metrics[f'slmguard_rung_freed_bytes_total{{rung="planned_restart",unit="{UNIT}"}}'] > 0


def test_the_status_command_tells_the_same_in_json(guarded_board: BoardRun) -> None:
    command = guarded_board.result("guarded")["command"]
    assert command["code"] == 0, command["stderr"]
    told = json.loads(command["stdout"])
    assert (told["unit"], told["source"], told["figure"]) == (UNIT, "cgroup", "demand")
    assert {"current_bytes", "working_set_bytes", "unreclaimable_bytes", "demand_bytes"} <= set(told["memory"])
    assert any("PSI" in text for text in told["degraded"])


def test_enabling_survives_and_the_daemon_holds_its_memory_budget(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("guarded")
    assert seen["enabled"] == "enabled"
    assert seen["guard_resident_kb"] <= 30 << 10


def test_the_guard_follows_a_restart_by_hand_and_keeps_still(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("restarted_unit")
    before, later = seen["before"], seen["later"]
    assert seen["same_daemon"]
    assert later["instance"] != before["instance"]
    assert later["source"] == "cgroup"
    assert later["memory"]["demand_bytes"] > 0
    assert later["counters"]["unexpected_restarts"] == before["counters"]["unexpected_restarts"] + 1
    assert later["restarts"] == before["restarts"]
    assert seen["answer_tokens"] == 4


def test_a_broken_configuration_fails_the_reload_and_the_old_one_stays_in_force(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("broken_reload")
    assert seen["reload_code"] != 0
    for when in ("after_reload", "after_signal"):
        assert seen[when]["limits"] == seen["before"]["limits"]
    assert seen["same_daemon"]
    assert seen["unit"] == {"ActiveState": "active", "SubState": "running", "NRestarts": "0"}


def test_a_broken_configuration_is_named_in_journal_and_status(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("broken_reload")
    assert any("elevatd" in line and "did you mean" in line for line in seen["journal"])
    assert any("elevatd" in text for text in seen["after_signal"]["degraded"])


def test_a_repaired_configuration_is_taken_over_without_a_restart(guarded_board: BoardRun) -> None:
    after = guarded_board.result("broken_reload")["after_good"]
    assert after["limits"]["elevated_bytes"] == int(0.80 * after["limits"]["high_bytes"])
    assert not any("not in force" in text for text in after["degraded"])


def test_a_killed_daemon_comes_back_with_its_counters(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("killed_daemon")
    before, after = seen["counters_before"], seen["counters_after_kill"]
    assert sum(before.values()) > 0
    assert {name: value for name, value in before.items() if after.get(name, 0) < value} == {}


def test_a_stopped_daemon_is_brought_back_by_the_watchdog_with_its_counters(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("killed_daemon")
    before, after = seen["counters_before"], seen["counters_after_watchdog"]
    assert {name: value for name, value in before.items() if after.get(name, 0) < value} == {}
    assert any("Watchdog timeout" in line for line in seen["manager"])
    assert seen["unit"]["NRestarts"] == "2"
    assert seen["unit"]["ActiveState"] == "active"


def test_the_shipped_unit_is_hardened_and_valid(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("hardening")
    assert seen["exposure"] <= 3.0
    assert (seen["verify_code"], seen["verify"]) == (0, [])
    assert seen["properties"]["OOMScoreAdjust"] == "-900"
    assert seen["properties"]["Slice"] == "slmguard.slice"


def test_every_rung_that_asks_the_server_works_from_inside_the_sandbox(guarded_board: BoardRun) -> None:
    seen = guarded_board.result("rungs")
    log = "\n".join(seen["server_log"])
    assert 'told to trim: {"keep_recent": 512}' in log
    assert "told to erase slot 0" in log
    freed = {run["rung"]: run["freed_bytes"] or 0 for run in seen["status"]["rungs"] if run["outcome"] == "ok"}
    assert min(freed[rung] for rung in ("trim", "drop_caches", "planned_restart")) > 20 << 20
