"""Clamp, refuse, trim and drop caches."""

from __future__ import annotations

import pytest

from slmguard.actions.base import load, run_rung
from slmguard.core.model import Outcome, Rung, RungResult
from slmguard.servers.base import RungReply
from tests.actions.fakes import World, context, request


def run(world: World, rung: Rung) -> RungResult:
    return run_rung(load(rung), request(rung), context(world))


@pytest.mark.parametrize("rung", list(Rung))
def test_every_rung_has_its_action(rung: Rung) -> None:
    assert load(rung).rung is rung


@pytest.mark.parametrize("rung", [Rung.CLAMP, Rung.REFUSE])
@pytest.mark.parametrize(("connected", "outcome"), [(True, Outcome.OK), (False, Outcome.ABSENT)])
def test_clamp_and_refuse_are_the_gates(rung: Rung, connected: bool, outcome: Outcome) -> None:
    result = run(World(connected=connected), rung)
    assert result.outcome is outcome
    assert "gate" in result.detail


def test_trim_is_the_servers_own_where_it_has_it() -> None:
    world = World(connected=False)
    result = run(world, Rung.TRIM)
    assert (result.outcome, result.detail, world.log) == (Outcome.OK, "done", ["trim 512"])


@pytest.mark.parametrize("outcome", [Outcome.ABSENT, Outcome.FAILED, Outcome.TIMEOUT])
def test_trim_falls_back_on_the_gate(outcome: Outcome) -> None:
    reply = RungReply(outcome, "no luck")
    with_gate = run(World(reply=reply), Rung.TRIM)
    without = run(World(reply=reply, connected=False), Rung.TRIM)
    assert (with_gate.outcome, without.outcome, without.detail) == (Outcome.OK, outcome, "no luck")
    assert with_gate.detail.startswith("the gate keeps the newest 512 tokens")
    assert ("no luck" in with_gate.detail) == (outcome is not Outcome.ABSENT)


def test_drop_caches_passes_on_what_the_server_said() -> None:
    result = run(World(reply=RungReply(Outcome.ABSENT, "cannot")), Rung.DROP_CACHES)
    assert (result.outcome, result.detail) == (Outcome.ABSENT, "cannot")
