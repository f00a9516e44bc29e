"""What happens on the board without a guard: the reasons why slmguard exists."""

from __future__ import annotations

import pytest

from tests.board.harness.boot import BoardRun

pytestmark = pytest.mark.board


def test_the_board_is_a_real_kernel_with_systemd_and_the_memory_controller(unguarded_board: BoardRun) -> None:
    facts = unguarded_board.result("facts")
    assert "memory" in facts["controllers"]
    assert {"memory.high", "memory.events", "memory.peak", "memory.reclaim"} <= set(facts["memory_files"])
    assert int(facts["systemd"]) >= 252
    assert facts["failed_units"] == []


def test_an_unguarded_server_stalls_above_memory_high_and_systemd_calls_it_active(unguarded_board: BoardRun) -> None:
    seen = unguarded_board.result("unguarded")
    second_half = seen["answered"] - seen["answered_in_first_half"]
    assert seen["answered_in_first_half"] >= 12
    assert second_half <= seen["answered_in_first_half"] / 2
    assert seen["high_events"] > 100
    assert seen["oom_kills"] == 0
    assert seen["unit"]["ActiveState"] == "active"


def test_an_unguarded_server_loses_its_mapped_weights_first(unguarded_board: BoardRun) -> None:
    points = unguarded_board.result("unguarded")["points"]
    assert points[-1]["file_mapped"] < 0.9 * max(point["file_mapped"] for point in points)


def test_an_unguarded_hog_is_throttled_for_good_and_never_killed(unguarded_board: BoardRun) -> None:
    seen = unguarded_board.result("hog_unguarded")
    assert seen["high_events"] > 100
    assert seen["oom_kills"] == 0
    assert seen["beats_in_second_half"] <= 2
    assert seen["unit"]["ActiveState"] == "active"
