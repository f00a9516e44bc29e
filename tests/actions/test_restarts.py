"""Planned and forced restart: in the right order, within their limits, and never leaving a hold behind."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.actions.base import UnitControlError, load, run_rung
from slmguard.core.model import Outcome, Rung, RungResult
from tests.actions.fakes import World, context, request

BOTH = [Rung.PLANNED_RESTART, Rung.FORCED_RESTART]


def run(world: World, rung: Rung = Rung.PLANNED_RESTART, *, deadline_s: float = 400.0, **limits: float) -> RungResult:
    return run_rung(load(rung), request(rung, deadline_s=deadline_s), context(world, **limits))


def test_holds_drains_restarts_waits_and_releases() -> None:
    world = World(busy_until_s=110.0)
    result = run(world)
    assert world.log == ["hold", "restart", "release"]
    assert result.outcome is Outcome.OK
    assert result.detail == "requests drained after 10.0 s, restarted in 1.0 s, ready 3.0 s later"
    assert result.seconds == pytest.approx(14.0, abs=0.3)


def test_what_has_not_drained_is_cut_off_before_the_restart() -> None:
    world = World(busy_until_s=1000.0)
    result = run(world, drain_s=5.0)
    assert world.log == ["hold", "cut", "restart", "release"]
    assert (result.outcome, "2 requests cut off" in result.detail) == (Outcome.OK, True)


def test_an_idle_service_is_restarted_without_waiting() -> None:
    world = World()
    assert "drained after 0.0 s" in run(world).detail


@pytest.mark.parametrize(("connected", "tells"), [(False, True), (True, False)])
def test_without_the_gates_count_the_servers_busy_slots_decide(connected: bool, tells: bool) -> None:
    world = World(busy_until_s=104.0, connected=connected, gate_tells=tells)
    assert "drained after 4.0 s" in run(world).detail


def test_a_server_that_is_not_ready_in_time_is_a_timeout_with_its_reason() -> None:
    world = World(ready_after_s=1000.0)
    result = run(world, ready_timeout_s=20.0)
    assert (result.outcome, world.held) == (Outcome.TIMEOUT, False)
    assert result.detail == "restarted, but not ready after 20 s: Loading model"


def test_the_deadline_ends_the_drain_and_nothing_is_restarted() -> None:
    world = World(busy_until_s=1000.0, cut_helps=False)
    result = run(world, deadline_s=110.0)
    assert (result.outcome, world.log) == (Outcome.TIMEOUT, ["hold", "release"])
    assert "nothing was restarted" in result.detail


def test_the_deadline_ends_the_wait_for_readiness() -> None:
    world = World(ready_after_s=1000.0)
    result = run(world, deadline_s=120.0)
    assert result.outcome is Outcome.TIMEOUT
    assert world.now_s == pytest.approx(120.0)


@pytest.mark.parametrize("rung", BOTH)
def test_a_restart_that_fails_lets_the_requests_go(rung: Rung) -> None:
    what = "restart" if rung is Rung.PLANNED_RESTART else "force_restart"
    world = World(raises={what: UnitControlError("systemctl restart x: access denied")})
    result = run(world, rung)
    assert (result.outcome, result.detail) == (Outcome.FAILED, "systemctl restart x: access denied")
    assert world.log[-1] == "release"


def test_the_daemon_stopping_while_requests_drain_restarts_nothing() -> None:
    world = World(busy_until_s=1000.0, stops_at_s=103.0)
    result = run(world)
    assert (result.outcome, world.log) == (Outcome.FAILED, ["hold", "release"])
    assert "the daemon is stopping" in result.detail


@pytest.mark.parametrize("rung", BOTH)
def test_the_daemon_stopping_after_the_restart_does_not_wait_for_readiness(rung: Rung) -> None:
    world = World(ready_after_s=1000.0, stops_at_s=105.0)
    result = run(world, rung)
    assert (result.outcome, world.log[-1], world.now_s) == (Outcome.OK, "release", 105.0)
    assert "did not wait" in result.detail


def test_a_forced_restart_cuts_and_kills_at_once() -> None:
    world = World(busy_until_s=1000.0)
    result = run(world, Rung.FORCED_RESTART)
    assert world.log == ["hold", "cut", "force_restart", "release"]
    assert result.outcome is Outcome.OK
    assert result.seconds == pytest.approx(4.0, abs=0.6)


@pytest.mark.parametrize("rung", BOTH)
def test_a_passed_deadline_and_a_dry_run_touch_nothing(rung: Rung) -> None:
    world = World()
    late = run(world, rung, deadline_s=50.0)
    dry = run_rung(load(rung), request(rung, dry_run=True), context(world))
    assert (late.outcome, dry.outcome, world.log) == (Outcome.TIMEOUT, Outcome.DRY_RUN, [])


faults = st.sampled_from(["", "hold", "cut", "restart", "force_restart", "in_flight", "probe"])
errors = st.sampled_from([UnitControlError("no"), TimeoutError("late"), OSError(5, "io"), RuntimeError("bug")])


@given(
    rung=st.sampled_from(BOTH),
    fault=faults,
    error=errors,
    stops_at_s=st.floats(100.1, 200) | st.just(float("inf")),
    busy_s=st.floats(0, 60),
    ready_s=st.floats(0, 60),
    takes_s=st.floats(0, 60),
    deadline_s=st.floats(90, 250),
    drain_s=st.floats(0, 40),
    connected=st.booleans(),
    tells=st.booleans(),
    cut_helps=st.booleans(),
)
def test_whatever_happens_the_hold_is_released_and_the_limits_are_kept(
    rung: Rung,
    fault: str,
    error: Exception,
    stops_at_s: float,
    busy_s: float,
    ready_s: float,
    takes_s: float,
    deadline_s: float,
    drain_s: float,
    connected: bool,
    tells: bool,
    cut_helps: bool,
) -> None:
    world = World(
        stops_at_s=stops_at_s,
        busy_until_s=100.0 + busy_s,
        ready_after_s=ready_s,
        restart_takes_s=takes_s,
        raises={fault: error},
        connected=connected,
        gate_tells=tells,
        cut_helps=cut_helps,
    )
    result = run(world, rung, deadline_s=deadline_s, drain_s=drain_s, ready_timeout_s=50.0)
    assert not world.held
    assert world.log.count("hold") == world.log.count("release")
    assert not world.log or world.log[-1] == "release"
    assert result.detail
    # The unit's own restart is the one thing that is not cut short: killing it halfway would leave a service down.
    assert world.now_s <= max(deadline_s, 100.0) + takes_s + 0.01
    if result.outcome is Outcome.OK:
        assert world.restarted_at_s is not None
