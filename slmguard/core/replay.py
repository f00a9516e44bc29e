"""Replaying a recorded run: the same samples and results give the same decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from slmguard.core import codec, policy
from slmguard.core.model import Outcome, RungRequest, RungResult, Sample
from slmguard.core.policy import Decision, State
from slmguard.core.settings import Settings


@dataclass(frozen=True, slots=True)
class Step:
    """One replayed sample and what was decided on it."""

    sample: Sample
    decision: Decision


def parse_record(data: object) -> Sample | RungResult:
    """A line of a recording: `{"sample": {…}}`, `{"result": {…}}`, or a bare sample.

    Raises ValueError that names the field when the line does not fit.
    """
    if isinstance(data, dict) and "result" in data:
        return codec.from_json(RungResult, data["result"])
    if isinstance(data, dict) and "sample" in data:
        return codec.from_json(Sample, data["sample"])
    return codec.from_json(Sample, data)


def replay(settings: Settings, records: Iterable[Sample | RungResult], state: State | None = None) -> Iterator[Step]:
    """The decisions that a run with these records would have produced.

    Recorded results answer the rungs of the recording. Where the replay asks for a rung that the recording has no
    answer to (other settings, or a recording without results), the rung counts as done at the next sample.
    """
    state = state if state is not None else State()
    pending: RungRequest | None = None
    answered: list[RungResult] = []
    has_results = False
    for record in records:
        if isinstance(record, RungResult):
            has_results = True
            answered.append(record)
            continue
        if pending is not None:
            result = _answer(pending, answered, record, has_results=has_results)
            if result is not None:
                state = policy.finished(state, result)
                pending = None
                answered.clear()
        state, decision = policy.step(settings, state, record)
        pending = decision.request or pending
        yield Step(record, decision)


def _answer(
    request: RungRequest, answered: list[RungResult], sample: Sample, *, has_results: bool
) -> RungResult | None:
    for result in answered:
        if result.rung is request.rung:
            return replace(result, request_id=request.request_id)
    if has_results and sample.now_s < request.deadline_s:
        return None
    return RungResult(request.request_id, request.rung, Outcome.OK, sample.now_s, 0.0, "assumed by the replay")
