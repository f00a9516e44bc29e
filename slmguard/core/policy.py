"""One sample in, one decision out: the guard's judgement, without clock, files or threads.

`step` is deterministic, so a recorded run can be replayed (`slmguard simulate`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slmguard.core import baseline, cadence, figures, forecast, ladder, levels, stall
from slmguard.core.events import EventKind, GuardEvent, LifeEvents
from slmguard.core.figures import Figures
from slmguard.core.ladder import RungRecord
from slmguard.core.model import Level, Outcome, Rung, RungRequest, RungResult, Sample
from slmguard.core.settings import Settings


@dataclass(frozen=True, slots=True)
class State:
    """Everything the guard remembers between two looks."""

    instance: str | None = None
    hot_weights_peak_bytes: int = 0
    level: levels.LevelState = field(default_factory=levels.LevelState)
    track: forecast.Track = field(default_factory=forecast.Track)
    stall: stall.StallState = field(default_factory=stall.StallState)
    baseline: baseline.BaselineState = field(default_factory=baseline.BaselineState)
    ladder: ladder.LadderState = field(default_factory=ladder.LadderState)
    oom_kills_seen: int | None = None
    told: frozenset[EventKind] = frozenset()
    source_lost_since_s: float | None = None


@dataclass(frozen=True, slots=True)
class GateState:
    """What the gate is to do with new requests."""

    level: Level = Level.NORMAL
    clamp_max_tokens: int | None = None
    keep_recent_tokens: int | None = None
    refuse: bool = False
    retry_after_s: float = 10.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What follows from one sample. `request` is at most one rung to hand to the worker."""

    level: Level
    figures: Figures | None
    forecast_s: float | None
    freeable_bytes: int | None
    request: RungRequest | None
    records: tuple[RungRecord, ...]
    events: tuple[GuardEvent, ...]
    gate: GateState
    interval_s: float
    stalled_for_s: float | None


def step(settings: Settings, state: State, sample: Sample) -> tuple[State, Decision]:
    """The next state and the decision that follows from `sample`."""
    if sample.memory is None:
        return _without_memory(settings, state, sample)
    events = LifeEvents(sample.wall_s)
    if state.source_lost_since_s is not None:
        if EventKind.SOURCE_LOST in state.told:
            events.add(EventKind.SOURCE_REGAINED, "the service can be seen again")
        state = replace(state, source_lost_since_s=None, told=state.told - {EventKind.SOURCE_LOST})
    before = state.level.level
    state = _follow_life(state, sample, events)
    now = figures.compute(sample.memory, state.hot_weights_peak_bytes, settings.figure)
    state = replace(
        state,
        hot_weights_peak_bytes=now.hot_weights_bytes,
        track=forecast.add(state.track, sample.now_s, now.chosen_bytes, settings.forecast)
        if _loaded(sample, state.baseline)
        else forecast.Track(),
        stall=stall.observe(state.stall, sample, now, settings.stall),
        baseline=baseline.observe(state.baseline, sample, now.demand_bytes),
    )
    state, forecast_s = _judge_level(settings, state, sample, now)
    _tell_level(events, before, state, now, forecast_s)
    _tell_stall(events, state, sample)
    state = _tell_baseline(events, settings, state, now)
    freeable_bytes = _freeable(state, now)
    state, records = _settle_rung(settings, state, sample, now, events)
    state = replace(state, ladder=ladder.disengage(state.ladder, settings.ladder, state.level.level))
    state, request = _next_rung(settings, state, sample, now, freeable_bytes, events)
    return state, Decision(
        level=state.level.level,
        figures=now,
        forecast_s=forecast_s,
        freeable_bytes=freeable_bytes,
        request=request,
        records=records,
        events=events.all(),
        gate=gate_state(settings, state.level.level),
        interval_s=_interval(settings, state, sample, now),
        stalled_for_s=None if state.stall.since_s is None else sample.now_s - state.stall.since_s,
    )


def finished(state: State, result: RungResult) -> State:
    """`state` once the worker has answered for a rung."""
    return replace(state, ladder=ladder.finish(state.ladder, result))


def still_warranted(settings: Settings, state: State, request: RungRequest, sample: Sample) -> bool:
    """Whether `request` still makes sense on a fresh reading, taken just before it is handed out."""
    if request.rung is Rung.FORCED_RESTART or sample.memory is None:
        return request.rung is Rung.FORCED_RESTART
    if by_anything_but_figure(settings, state, sample) >= settings.ladder.rung(request.rung).at:
        return True
    now = figures.compute(sample.memory, state.hot_weights_peak_bytes, settings.figure)
    band_bytes = int(settings.levels.hysteresis_ratio * (now.limit_bytes or 0))
    return now.chosen_bytes >= request.figure_bytes - band_bytes


def by_anything_but_figure(settings: Settings, state: State, sample: Sample) -> Level:
    """The level that host and stall ask for, whatever the service's own figure says."""
    return max(levels.by_host(sample.host, settings.host), Level.CRITICAL if state.stall.since_s else Level.NORMAL)


def gate_state(settings: Settings, level: Level) -> GateState:
    """What the gate does at `level`."""
    rungs = settings.ladder
    return GateState(
        level=level,
        clamp_max_tokens=rungs.clamp_max_tokens if rungs.clamp.enabled and level >= rungs.clamp.at else None,
        keep_recent_tokens=rungs.keep_recent_tokens if rungs.trim.enabled and level >= rungs.trim.at else None,
        refuse=rungs.refuse.enabled and level >= rungs.refuse.at,
        retry_after_s=rungs.retry_after_s,
    )


def _without_memory(settings: Settings, state: State, sample: Sample) -> tuple[State, Decision]:
    """Nothing to read: the unit is stopped or restarting. The level is kept; host pressure is still judged."""
    events = LifeEvents(sample.wall_s)
    if state.source_lost_since_s is None:
        state = replace(state, source_lost_since_s=sample.now_s)
        if state.instance is not None and state.ladder.running is None:
            events.add(EventKind.SOURCE_LOST, "the service cannot be seen: it is stopped or restarting")
            state = replace(state, told=state.told | {EventKind.SOURCE_LOST})
    late = ladder.overdue(state.ladder, sample.now_s)
    if late is not None:
        state = finished(state, late)
    wanted = levels.by_host(sample.host, settings.host)
    level = levels.settle(state.level, wanted, wanted, sample.now_s, settings.levels.hold_s)
    state = replace(state, level=level, stall=stall.StallState(), track=forecast.Track())
    busy = state.ladder.busy
    return state, Decision(
        level=level.level,
        figures=None,
        forecast_s=None,
        freeable_bytes=None,
        request=None,
        records=(),
        events=events.all(),
        gate=gate_state(settings, level.level),
        interval_s=cadence.interval_s(settings.cadence, (), None, busy=busy),
        stalled_for_s=None,
    )


def _loaded(sample: Sample, life: baseline.BaselineState) -> bool:
    """False while the server loads its model: that rise is no step and no slope to foresee anything from.

    In a life that the guard saw begin, an answer of the life before says nothing; without any answer the baseline,
    once taken, tells that loading is over.
    """
    server = sample.server
    if server is None or not server.reachable or (life.fresh and server.asked_at_s < life.began_at_s):
        return not life.fresh or life.baseline_bytes is not None
    return server.ready


def _follow_life(state: State, sample: Sample, events: LifeEvents) -> State:
    """Start anew when the service did, and count its OOM kills."""
    memory = sample.memory
    if memory is None:
        return state
    kills = memory.events.oom_kill if memory.events else None
    if memory.instance != state.instance:
        first = state.instance is None
        # A quick restart may be answered before the new life is first seen: then its effect is still settling.
        acting = state.ladder.running or state.ladder.settling_request
        ours = acting is not None and acting.rung in ladder.RESTARTS
        if not first and not ours:
            events.add(EventKind.UNEXPECTED_RESTART, "the service started anew without the guard having asked for it")
        # A new cgroup counts from 0; only what was counted before the guard's very first look is not news.
        seen = state.oom_kills_seen if first else 0
        state = State(
            instance=memory.instance,
            baseline=baseline.BaselineState(fresh=not first, began_at_s=sample.now_s),
            ladder=ladder.new_life(state.ladder),
            oom_kills_seen=seen if seen is not None else kills,
        )
    if kills is not None:
        seen = state.oom_kills_seen or 0
        if kills > seen:
            events.add(
                EventKind.OOM_KILL, f"the kernel killed {kills - seen} process(es) of the service", count=kills - seen
            )
        state = replace(state, oom_kills_seen=kills)
    return state


def _judge_level(settings: Settings, state: State, sample: Sample, now: Figures) -> tuple[State, float | None]:
    margin = settings.levels.hysteresis_ratio
    own = levels.by_ratio(now.ratio, settings.levels)
    own_with_margin = levels.by_ratio(now.ratio, settings.levels, margin)
    forecast_s = None
    if now.limit_bytes:
        forecast_s = forecast.seconds_until(state.track, now.chosen_bytes, now.limit_bytes, settings.forecast)
        if settings.forecast.enabled and own >= Level.ELEVATED:
            own = max(own, _foreseen(settings, state, now, forecast_s))
    others = by_anything_but_figure(settings, state, sample)
    wanted = max(own, others)
    with_margin = max(own_with_margin, levels.by_host(sample.host, settings.host, 0.25), others)
    level = levels.settle(state.level, wanted, with_margin, sample.now_s, settings.levels.hold_s)
    return replace(state, level=level), forecast_s


def _foreseen(settings: Settings, state: State, now: Figures, forecast_s: float | None) -> Level:
    """The level of an elevated service that is about to cross its limit."""
    if forecast_s is not None and forecast_s < settings.forecast.lead_s:
        return Level.CRITICAL
    if now.limit_bytes and now.chosen_bytes + state.track.step_bytes > now.limit_bytes:
        # One more step like the largest of the last minutes and the limit is passed.
        return Level.HIGH
    return Level.ELEVATED


def _freeable(state: State, now: Figures) -> int | None:
    """What a restart can free; None when the guard came too late to know. A life that has just begun holds nothing."""
    known = state.baseline.baseline_bytes
    if known is None:
        return 0 if state.baseline.fresh else None
    return max(0, now.demand_bytes - known)


def _settle_rung(
    settings: Settings, state: State, sample: Sample, now: Figures, events: LifeEvents
) -> tuple[State, tuple[RungRecord, ...]]:
    """Measure what the last rung freed, once it has settled."""
    late = ladder.overdue(state.ladder, sample.now_s)
    if late is not None:
        state = finished(state, late)
    result, request = state.ladder.settling, state.ladder.settling_request
    if result is None or request is None:
        return state, ()
    measurable = result.outcome in {Outcome.OK, Outcome.FAILED, Outcome.TIMEOUT} and request.rung not in ladder.STANDING
    settle_s = min(1.0, settings.ladder.settle_s) if state.level.level is Level.CRITICAL else settings.ladder.settle_s
    if measurable and sample.now_s - result.finished_at_s < settle_s:
        return state, ()
    record = RungRecord(
        request=request,
        result=result,
        before_bytes=request.figure_bytes,
        after_bytes=now.chosen_bytes if measurable else None,
        at_wall_s=sample.wall_s,
    )
    deficit = 0
    if now.limit_bytes:
        calm_bytes = int(now.limit_bytes * (settings.levels.elevated_ratio - settings.levels.hysteresis_ratio))
        deficit = max(0, request.figure_bytes - calm_bytes)
    state = replace(state, ladder=ladder.measured(state.ladder, record, deficit))
    events.rung_finished(record)
    return state, (record,)


def _next_rung(
    settings: Settings,
    state: State,
    sample: Sample,
    now: Figures,
    freeable_bytes: int | None,
    events: LifeEvents,
) -> tuple[State, RungRequest | None]:
    if state.ladder.busy:
        return state, None
    stalled_s = None if state.stall.since_s is None else sample.now_s - state.stall.since_s
    overdue = stalled_s is not None and stalled_s >= settings.stall.deadline_s
    level = state.level.level
    loading = sample.server is not None and sample.server.reachable and not sample.server.ready
    if level is Level.NORMAL or (loading and not overdue):
        return state, None
    freeable_ratio = freeable_bytes / now.limit_bytes if freeable_bytes is not None and now.limit_bytes else None
    rung = ladder.choose(
        state.ladder,
        settings.ladder,
        settings.restart,
        level,
        sample.now_s,
        freeable_ratio,
        stalled=stalled_s is not None,
        stall_overdue=overdue,
        gate_connected=sample.gate_connected,
    )
    if rung is None:
        return _tell_budget(events, settings, state, sample, freeable_ratio), None
    request = RungRequest(
        request_id=state.ladder.next_request_id,
        rung=rung,
        level=level,
        figure_bytes=now.chosen_bytes,
        asked_at_s=sample.now_s,
        deadline_s=sample.now_s + settings.ladder.rung(rung).deadline_s,
        reason=_reason(settings, state, sample, now, stalled_s),
        dry_run=settings.dry_run,
    )
    events.rung_started(request)
    return replace(state, ladder=ladder.start(state.ladder, request)), request


def _reason(settings: Settings, state: State, sample: Sample, now: Figures, stalled_s: float | None) -> str:
    if stalled_s is not None:
        return f"stalled for {stalled_s:.0f} s: {state.stall.why}"
    host = levels.by_host(sample.host, settings.host)
    own = levels.by_ratio(now.ratio, settings.levels)
    if host > own and sample.host is not None:
        return f"the board has only {sample.host.headroom_bytes >> 20} MiB left"
    if now.ratio is None:
        return "no limit is known"
    text = f"{settings.figure} is {now.ratio:.1%} of the limit"
    if own < state.level.level:
        text += ", and one more step or the present slope leads past it"
    return text


def _tell_level(events: LifeEvents, before: Level, state: State, now: Figures, forecast_s: float | None) -> None:
    after = state.level.level
    if after is before:
        return
    ratio = "no limit" if now.ratio is None else f"{now.chosen_bytes >> 20} MiB, {now.ratio:.1%} of the limit"
    soon = f", limit in about {forecast_s:.0f} s" if forecast_s is not None and after > before else ""
    events.add(EventKind.LEVEL_CHANGED, f"level {before.word} -> {after.word} ({ratio}{soon})", level=after.word)


def _tell_stall(events: LifeEvents, state: State, sample: Sample) -> None:
    if state.stall.since_s is not None and state.stall.since_s == sample.now_s:
        events.add(EventKind.STALL_SUSPECTED, f"the service is stalled: {state.stall.why}")


def _tell_baseline(events: LifeEvents, settings: Settings, state: State, now: Figures) -> State:
    """Say once in a life that the service needs more than the limit allows even when idle."""
    known = state.baseline.baseline_bytes
    if known is None or not now.limit_bytes or EventKind.BASELINE_OVER in state.told:
        return state
    if known < settings.levels.elevated_ratio * now.limit_bytes:
        return state
    events.add(
        EventKind.BASELINE_OVER,
        f"loaded and idle it already needs {known >> 20} MiB, {known / now.limit_bytes:.0%} of the limit:"
        " no restart can help; raise MemoryHigh or use a smaller context or model",
    )
    return replace(state, told=state.told | {EventKind.BASELINE_OVER})


def _tell_budget(
    events: LifeEvents, settings: Settings, state: State, sample: Sample, freeable_ratio: float | None
) -> State:
    """Say once in a life that a restart is wanted but the budget is spent."""
    rung = Rung.PLANNED_RESTART
    if state.level.level < settings.ladder.planned_restart.at or EventKind.BUDGET_SPENT in state.told:
        return state
    why = ladder.blocked(rung, state.ladder, settings.ladder, settings.restart, sample.now_s, freeable_ratio)
    if why != "budget_spent":
        return state
    events.add(
        EventKind.BUDGET_SPENT,
        f"a restart is needed, but {settings.restart.budget_per_hour} in the last hour are all that is allowed",
    )
    return replace(state, told=state.told | {EventKind.BUDGET_SPENT})


def _interval(settings: Settings, state: State, sample: Sample, now: Figures) -> float:
    distances: list[int] = []
    if now.limit_bytes:
        ratio = now.ratio or 0.0
        above = [level for level in levels.UP if settings.levels.threshold(level) > ratio]
        next_ratio = settings.levels.threshold(min(above)) if above else ratio
        distances.append(int((next_ratio - ratio) * now.limit_bytes))
    host = sample.host
    if host is not None and settings.host.enabled:
        ratios = [settings.host.elevated_ratio, settings.host.high_ratio, settings.host.critical_ratio]
        room = [host.headroom_bytes - int(ratio * host.total_bytes) for ratio in ratios]
        ahead = [bytes_ for bytes_ in room if bytes_ > 0]
        distances.append(min(ahead) if ahead else 0)
    return cadence.interval_s(settings.cadence, tuple(distances), state.track.slope_bytes_per_s, busy=state.ladder.busy)
