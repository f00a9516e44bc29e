"""The judgement: levels, hysteresis, rungs, measuring, budgets, stalls, lives."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slmguard.core import policy
from slmguard.core.events import EventKind
from slmguard.core.model import Level, Outcome, Rung
from slmguard.core.policy import still_warranted
from slmguard.core.settings import (
    HostSettings,
    LadderSettings,
    LevelSettings,
    RestartSettings,
    RungSettings,
    Settings,
    StallSettings,
)
from tests.core.world import World

OFF = RungSettings(enabled=False)
NO_LIGHT_RUNGS = replace(LadderSettings(), clamp=OFF, trim=OFF, drop_caches=OFF, refuse=OFF)


def test_below_the_threshold_nothing_is_asked_for() -> None:
    world = World(anon_mib=239)  # 339 of 400 MiB = 84.75 %
    world.run(60)
    assert world.level is Level.NORMAL
    assert world.requests == []


@pytest.mark.parametrize(
    ("anon_mib", "level"), [(241, Level.ELEVATED), (269, Level.HIGH), (289, Level.CRITICAL), (310, Level.CRITICAL)]
)
def test_each_threshold_raises_the_level_at_once(anon_mib: float, level: Level) -> None:
    world = World(anon_mib=230)
    world.tick()
    world.anon_mib = anon_mib
    assert world.tick().level is level


def test_a_level_is_left_only_after_the_hold_time_below_the_band() -> None:
    world = World(anon_mib=245)
    world.tick()
    world.anon_mib = 235  # 83.75 %: below 85 %, above 82 %
    world.run(60)
    assert world.level.word == "elevated"
    world.anon_mib = 220  # 80 %
    world.run(14)
    assert world.level.word == "elevated"
    world.run(3)
    assert world.level.word == "normal"


@given(st.lists(st.floats(0, 500), min_size=1, max_size=60))
@settings(max_examples=60, deadline=None)
def test_the_level_never_lies_below_what_the_figure_asks_for(course: list[float]) -> None:
    world = World(settings=replace(Settings(), dry_run=True))
    for anon in course:
        world.anon_mib = anon
        decision = world.tick()
        assert decision.figures is not None
        ratio = decision.figures.ratio
        assert ratio is not None
        assert decision.level >= (Level.CRITICAL if ratio >= 0.97 else Level.HIGH if ratio >= 0.92 else Level.NORMAL)


@given(st.lists(st.tuples(st.floats(0, 500), st.sampled_from(list(Outcome)), st.booleans()), max_size=80))
@settings(max_examples=60, deadline=None)
def test_never_more_than_one_rung_runs_and_restarts_keep_to_their_budget(
    course: list[tuple[float, Outcome, bool]],
) -> None:
    world = World(settings=replace(Settings(), restart=RestartSettings(budget_per_hour=3, min_interval_s=5.0)))
    for anon, outcome, answers in course:
        world.anon_mib = anon
        running = world.state.ladder.running
        decision = world.tick(7.0)
        if running is not None and decision.request is not None:
            assert world.state.ladder.running is decision.request
            assert decision.request.request_id > running.request_id
        if answers and world.state.ladder.running is not None:
            world.answer(outcome)
    restarts = [request for request in world.requests if request.rung is Rung.PLANNED_RESTART]
    real = [request for request in restarts if request.request_id]
    assert len(world.state.ladder.restarts_s) <= 3
    assert all(later.asked_at_s - earlier.asked_at_s >= 5.0 for earlier, later in pairwise(real)) or any(
        outcome is Outcome.SKIPPED for _anon, outcome, _answers in course
    )


def test_rungs_come_one_after_the_other_from_mild_to_hard() -> None:
    world = World(anon_mib=275)  # 93.75 %: high
    for _ in range(60):
        world.tick()
        world.answer_if_asked(dict.fromkeys(Rung, Outcome.OK))
        if Rung.PLANNED_RESTART in world.rungs():
            break
    assert world.rungs() == [Rung.TRIM, Rung.DROP_CACHES, Rung.PLANNED_RESTART]


def test_at_elevated_only_the_rungs_of_that_level_run() -> None:
    world = World(anon_mib=250)
    for _ in range(300):
        world.tick()
        world.answer_if_asked(dict.fromkeys(Rung, Outcome.OK))
    assert set(world.rungs()) == {Rung.TRIM, Rung.DROP_CACHES}


def test_standing_rungs_engage_once_while_a_gate_is_connected() -> None:
    world = World(anon_mib=275, gate=True)
    for _ in range(40):
        world.tick()
        world.answer_if_asked(dict.fromkeys([Rung.CLAMP, Rung.REFUSE], Outcome.OK))
        world.answer_if_asked(dict.fromkeys([Rung.TRIM, Rung.DROP_CACHES], Outcome.ABSENT))
    assert world.rungs().count(Rung.CLAMP) == 1
    assert world.rungs().count(Rung.REFUSE) == 1


def test_what_a_rung_freed_is_measured_after_it_has_settled() -> None:
    world = World(anon_mib=250)
    world.tick()
    world.answer()
    world.anon_mib = 150
    assert world.tick(1.0).records == ()
    records = [record for decision in world.run(5) for record in decision.records]
    assert len(records) == 1
    assert records[0].freed_bytes == 100 << 20


def test_a_rung_that_freed_nothing_twice_is_skipped_until_the_service_starts_anew() -> None:
    world = World(anon_mib=250, settings=replace(Settings(), ladder=replace(LadderSettings(), drop_caches=OFF)))
    for _ in range(600):
        world.tick()
        world.answer_if_asked({Rung.TRIM: Outcome.OK})
    assert world.rungs() == [Rung.TRIM, Rung.TRIM]
    world.restart(anon_mib=250)
    world.run(5)
    assert world.rungs() == [Rung.TRIM, Rung.TRIM, Rung.TRIM]


def test_an_absent_rung_is_not_asked_for_again_in_this_life() -> None:
    world = World(anon_mib=250)
    for _ in range(400):
        world.tick()
        world.answer_if_asked({Rung.TRIM: Outcome.ABSENT, Rung.DROP_CACHES: Outcome.ABSENT})
    assert world.rungs() == [Rung.TRIM, Rung.DROP_CACHES]


def test_a_planned_restart_brings_the_level_back_to_normal_at_once() -> None:
    world = World(anon_mib=275, settings=replace(Settings(), ladder=NO_LIGHT_RUNGS))
    world.run(2)
    assert world.rungs() == [Rung.PLANNED_RESTART]
    world.restart(anon_mib=100)
    world.ready = False
    world.run(4)
    world.ready = True
    world.answer(seconds=6.0)
    assert world.tick().level is Level.NORMAL
    changes = [event.text for event in world.told(EventKind.LEVEL_CHANGED)]
    assert changes[-1].startswith("level high -> normal")
    assert not world.told(EventKind.UNEXPECTED_RESTART), "the guard had asked for it"


def test_a_restart_that_can_free_too_little_is_not_tried_and_said_once() -> None:
    world = World(anon_mib=100, settings=replace(Settings(), ladder=NO_LIGHT_RUNGS))
    world.tick()
    world.restart(anon_mib=275)  # loaded and idle it already needs 375 of 400 MiB
    world.run(600)
    assert world.rungs() == []
    assert len(world.told(EventKind.BASELINE_OVER)) == 1
    assert "no restart can help" in world.told(EventKind.BASELINE_OVER)[0].text


def test_restarts_never_loop() -> None:
    world = World(anon_mib=100, settings=replace(Settings(), ladder=NO_LIGHT_RUNGS))
    world.tick()
    for _ in range(7200):
        world.anon_mib += 5  # a server that leaks fast
        world.tick()
        if world.state.ladder.running is not None:
            world.restart(anon_mib=100)
            world.answer()
    per_hour = world.settings.restart.budget_per_hour
    assert per_hour <= len(world.rungs()) <= 2 * per_hour + 1
    assert world.told(EventKind.BUDGET_SPENT)


def test_while_the_model_loads_nothing_is_asked_for() -> None:
    world = World(anon_mib=295, ready=False)
    world.run(30)
    assert world.requests == []


def test_page_cache_alone_is_no_reason_to_act() -> None:
    world = World(anon_mib=10, weights_mib=30)
    sample = world.sample()
    assert sample.memory is not None
    for _ in range(60):
        world.now_s += 1
        world.state, decision = policy.step(
            world.settings,
            world.state,
            replace(world.sample(), memory=replace(sample.memory, current_bytes=395 << 20)),
        )
        assert decision.level is Level.NORMAL


def test_evicted_weights_still_count_as_demand() -> None:
    world = World(anon_mib=250, weights_mib=140)
    world.tick()
    world.weights_mib = 20  # the kernel has evicted them
    decision = world.tick()
    assert decision.figures is not None
    assert decision.figures.demand_bytes == 390 << 20
    assert decision.level is Level.CRITICAL


def test_the_board_running_out_of_memory_raises_the_level_too() -> None:
    world = World(anon_mib=50, host_available_mib=150)  # 3.7 % of 4 GiB left
    assert world.tick().level is Level.HIGH
    world.host_available_mib = 100
    assert world.tick().level is Level.CRITICAL


def test_host_levels_can_be_switched_off() -> None:
    world = World(host_available_mib=10, settings=replace(Settings(), host=HostSettings(enabled=False)))
    assert world.tick().level is Level.NORMAL


def test_a_stall_is_found_and_ends_in_a_forced_restart_after_its_deadline() -> None:
    world = World(anon_mib=300, weights_mib=100, busy_slots=1, progress_tokens=500)
    world.settings = replace(
        Settings(), ladder=NO_LIGHT_RUNGS, stall=StallSettings(window_s=10, deadline_s=30), restart=RestartSettings()
    )
    world.tick()
    for _ in range(60):
        world.high_events += 50
        world.refault_pages += 5000
        world.tick()
        if world.requests and world.requests[-1].rung is Rung.FORCED_RESTART:
            break
        world.answer_if_asked({Rung.PLANNED_RESTART: Outcome.FAILED})
    suspected = world.told(EventKind.STALL_SUSPECTED)
    assert len(suspected) == 1
    forced = [request for request in world.requests if request.rung is Rung.FORCED_RESTART]
    assert len(forced) == 1
    assert 30 <= forced[0].asked_at_s + 1e9 - suspected[0].wall_s <= 32


def test_a_throttled_server_that_makes_progress_is_not_stalled() -> None:
    world = World(anon_mib=200, busy_slots=1, progress_tokens=0)
    for _ in range(120):
        world.high_events += 50
        world.refault_pages += 5000
        assert world.progress_tokens is not None
        world.progress_tokens += 4
        world.tick()
    assert not world.told(EventKind.STALL_SUSPECTED)


def test_an_idle_server_is_not_stalled() -> None:
    world = World(anon_mib=200, busy_slots=0, progress_tokens=100)
    for _ in range(120):
        world.high_events += 50
        world.refault_pages += 5000
        world.tick()
    assert not world.told(EventKind.STALL_SUSPECTED)


def test_a_hog_without_a_server_and_without_psi_is_found_stalled_by_its_events_alone() -> None:
    world = World(anon_mib=398, weights_mib=0, busy_slots=None, progress_tokens=None, reachable=False)
    for _ in range(30):
        world.high_events += 3
        world.tick()
    assert world.told(EventKind.STALL_SUSPECTED)


def test_a_reading_without_events_can_never_show_a_stall() -> None:
    world = World(anon_mib=398, weights_mib=0)
    for _ in range(30):
        sample = world.sample()
        assert sample.memory is not None
        world.now_s += 1
        world.state, decision = policy.step(
            world.settings, world.state, replace(sample, memory=replace(sample.memory, events=None))
        )
        assert decision.stalled_for_s is None


def test_oom_kills_are_counted_from_the_first_look_on_and_anew_in_a_new_cgroup() -> None:
    world = World(oom_kill=7)
    world.tick()
    assert not world.told(EventKind.OOM_KILL), "these were before the guard's time"
    world.oom_kill = 9
    world.tick()
    world.restart()
    world.oom_kill = 1
    world.tick()
    assert [event.count for event in world.told(EventKind.OOM_KILL)] == [2, 1]


def test_a_restart_by_somebody_else_is_told() -> None:
    world = World()
    world.tick()
    world.restart()
    world.tick()
    assert len(world.told(EventKind.UNEXPECTED_RESTART)) == 1


def test_a_service_that_cannot_be_seen_is_told_once_and_again_when_it_is_back() -> None:
    world = World()
    world.tick()
    world.visible = False
    world.run(20)
    world.visible = True
    world.run(3)
    assert len(world.told(EventKind.SOURCE_LOST)) == 1
    assert len(world.told(EventKind.SOURCE_REGAINED)) == 1


def test_dry_run_asks_with_the_dry_run_mark() -> None:
    world = World(anon_mib=275, settings=replace(Settings(), dry_run=True))
    world.tick()
    assert world.requests[0].dry_run


def test_a_worker_that_never_answers_does_not_stop_the_ladder() -> None:
    world = World(anon_mib=275)
    world.run(120)
    assert len(world.requests) >= 2


def test_a_request_is_dropped_when_a_fresh_look_shows_calm() -> None:
    world = World(anon_mib=250)
    request = world.tick().request
    assert request is not None
    world.anon_mib = 100
    assert not still_warranted(world.settings, world.state, request, world.sample())
    world.anon_mib = 250
    assert still_warranted(world.settings, world.state, request, world.sample())


def test_without_a_limit_only_the_board_is_guarded() -> None:
    world = World(high_mib=None, anon_mib=3000)
    assert world.tick().level is Level.NORMAL
    world.host_available_mib = 100
    assert world.tick().level is Level.CRITICAL


def test_a_growth_in_steps_is_seen_before_the_next_step_crosses_the_limit() -> None:
    world = World(anon_mib=130, settings=replace(Settings(), dry_run=True))
    for anon_mib, level in ((190, Level.NORMAL), (250, Level.HIGH)):
        world.run(12)
        world.anon_mib = anon_mib
        assert world.tick().level is level, "87.5 %, and one more step of 60 MiB leads past the limit"


def test_the_pace_quickens_near_a_threshold_and_slackens_far_from_it() -> None:
    far = World(anon_mib=10, weights_mib=10, high_mib=4000)
    near = World(anon_mib=239)
    assert far.tick().interval_s == far.settings.cadence.max_s
    assert near.tick().interval_s == near.settings.cadence.min_s


def test_levels_out_of_order_cannot_come_from_defaults() -> None:
    levels = LevelSettings()
    assert levels.elevated_ratio < levels.high_ratio < levels.critical_ratio


def test_the_rise_while_the_model_loads_is_no_step_to_foresee_from() -> None:
    world = World(anon_mib=100, settings=replace(Settings(), ladder=NO_LIGHT_RUNGS))
    world.tick()
    world.restart(anon_mib=5)
    world.ready = world.reachable = False  # nothing listens before the weights are read
    for anon_mib in (20, 60, 120, 200):
        world.anon_mib = anon_mib
        world.tick()
    world.ready = world.reachable = True
    world.tick()
    world.anon_mib = 220
    world.run(10)
    world.anon_mib = 245  # 86 %: the 195 MiB of loading would lead past the limit, but they will not come again
    assert world.tick().level is Level.ELEVATED


def test_a_restart_answered_before_the_new_life_is_seen_is_still_the_guards_own() -> None:
    world = World(anon_mib=275, settings=replace(Settings(), ladder=NO_LIGHT_RUNGS))
    world.run(2)
    world.answer(seconds=0.3)
    world.restart(anon_mib=100)
    world.tick(0.5)
    assert world.rungs() == [Rung.PLANNED_RESTART]
    assert not world.told(EventKind.UNEXPECTED_RESTART)


def test_under_constant_load_the_baseline_is_the_least_demand_since_it_was_ready() -> None:
    world = World(anon_mib=100, busy_slots=1)
    world.tick()
    world.restart(anon_mib=100)
    for _ in range(25):
        world.anon_mib += 4
        world.tick()
    known = world.state.baseline.baseline_bytes
    assert known is not None
    assert known >> 20 == 204
