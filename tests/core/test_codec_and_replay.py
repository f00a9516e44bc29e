"""Values over JSON, and recorded runs replayed."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.core import codec
from slmguard.core.model import Level, Outcome, Rung, RungResult, Sample
from slmguard.core.replay import parse_record, replay
from slmguard.core.settings import LadderSettings, RungSettings, Settings
from tests.core.world import World


def test_a_sample_survives_json() -> None:
    sample = World().sample()
    assert codec.from_json(Sample, json.loads(json.dumps(codec.to_json(sample)))) == sample


def test_settings_survive_json_with_their_levels() -> None:
    settings = replace(Settings(), ladder=replace(LadderSettings(), trim=RungSettings(at=Level.CRITICAL)))
    again = codec.from_json(Settings, json.loads(json.dumps(codec.to_json(settings))))
    assert again == settings
    assert again.ladder.trim.at is Level.CRITICAL


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "expected an object"),
        ({"now_s": "x", "wall_s": 1}, "Sample.now_s"),
        ({"now_s": 1.0}, "wall_s"),
        ({"now_s": 1.0, "wall_s": 1.0, "memory": {"source": 5}}, "MemoryReading.source"),
        ({"result": {"rung": "jump"}}, "jump"),
    ],
)
def test_what_does_not_fit_is_named(data: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_record(data)


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda s: st.dictionaries(st.text(), s)))
def test_any_json_is_a_record_or_a_value_error(data: object) -> None:
    try:
        record = parse_record(data)
    except ValueError:
        return
    assert isinstance(record, (Sample, RungResult))


def _recorded_run() -> tuple[World, list[Sample | RungResult]]:
    world, records = World(), list[Sample | RungResult]()
    for second in range(120):
        world.anon_mib = min(290, 100 + 2 * second)
        world.tick()
        records.append(world.sample())
        request = world.state.ladder.running
        if request is not None:
            world.answer(Outcome.ABSENT if request.rung is Rung.TRIM else Outcome.OK)
            records.append(RungResult(request.request_id, request.rung, Outcome.OK, world.now_s, 0.1))
    return world, records


def test_a_recorded_run_replays_to_the_same_decisions_twice() -> None:
    world, records = _recorded_run()
    first = [step.decision for step in replay(world.settings, records)]
    second = [step.decision for step in replay(world.settings, records)]
    assert first == second
    assert [d.level for d in first] == [d.level for d in world.decisions]


def test_other_settings_give_other_decisions() -> None:
    world, records = _recorded_run()
    strict = replace(world.settings, levels=replace(world.settings.levels, elevated_ratio=0.6))
    usual = sum(step.decision.level > Level.NORMAL for step in replay(world.settings, records))
    early = sum(step.decision.level > Level.NORMAL for step in replay(strict, records))
    assert early > usual > 0


def test_samples_without_results_replay_too() -> None:
    world, records = _recorded_run()
    samples = [record for record in records if isinstance(record, Sample)]
    rungs = [step.decision.request.rung for step in replay(world.settings, samples) if step.decision.request]
    assert Rung.PLANNED_RESTART in rungs
