"""Which rung is next: the book-keeping of what was run, what it freed and what may be run again.

One rung at a time. After each the guard lets the memory settle, measures what was freed, and only then goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from slmguard.core.model import Level, Outcome, Rung, RungRequest, RungResult
from slmguard.core.settings import MIB, LadderSettings, RestartSettings, RungSettings

RESTARTS = frozenset({Rung.PLANNED_RESTART, Rung.FORCED_RESTART})
# These slow the growth down and are kept up by the gate; there is nothing to measure after them.
STANDING = frozenset({Rung.CLAMP, Rung.REFUSE})
HOUR_S = 3600.0
OVERDUE_S = 30.0
HISTORY = 20


@dataclass(frozen=True, slots=True)
class RungState:
    """What is known of one rung in this life of the service."""

    runs: int = 0
    last_finished_s: float | None = None
    futile_runs: int = 0
    freed_bytes: int = 0
    absent: bool = False
    engaged: bool = False


@dataclass(frozen=True, slots=True)
class RungRecord:
    """One run of a rung, complete: `freed_bytes` is before less after, measured once settled (negative: it grew)."""

    request: RungRequest
    result: RungResult
    before_bytes: int
    after_bytes: int | None
    at_wall_s: float

    @property
    def freed_bytes(self) -> int | None:
        """Bytes that the figure fell by, None when it could not be measured."""
        return None if self.after_bytes is None else self.before_bytes - self.after_bytes


@dataclass(frozen=True, slots=True)
class LadderState:
    """The ladder's memory. `restarts_s` are the times of recent restarts, the oldest first."""

    rungs: Mapping[Rung, RungState] = field(default_factory=dict)
    running: RungRequest | None = None
    settling: RungResult | None = None
    settling_request: RungRequest | None = None
    restarts_s: tuple[float, ...] = ()
    futile_restarts: int = 0
    next_request_id: int = 1
    last_refusal_s: float | None = None

    def rung(self, rung: Rung) -> RungState:
        """The state of one rung."""
        return self.rungs.get(rung, RungState())

    @property
    def busy(self) -> bool:
        """True while a rung runs or its effect settles."""
        return self.running is not None or self.settling is not None


def with_rung(state: LadderState, rung: Rung, rung_state: RungState) -> LadderState:
    """`state` with one rung's state replaced."""
    return replace(state, rungs={**state.rungs, rung: rung_state})


def new_life(state: LadderState) -> LadderState:
    """The service started anew: what was absent, futile or engaged may be different now. Restarts are remembered."""
    return replace(state, rungs={})


def blocked(
    rung: Rung,
    state: LadderState,
    settings: LadderSettings,
    restart: RestartSettings,
    now_s: float,
    freeable_ratio: float | None,
) -> str | None:
    """Why `rung` cannot be used now, as one of the words of the status document; None when it can.

    `freeable_ratio` is what a restart can free as a share of the limit, None when that is unknown.
    """
    own: RungSettings = settings.rung(rung)
    known = state.rung(rung)
    if not own.enabled:
        return "off"
    if state.running is not None and state.running.rung is rung:
        return "running"
    if known.absent:
        return "absent"
    if rung in RESTARTS:
        return _restart_blocked(rung, state, settings, restart, now_s, freeable_ratio)
    if known.futile_runs >= settings.ineffective_after:
        return "ineffective"
    if known.last_finished_s is not None and now_s - known.last_finished_s < own.cooldown_s:
        return "cooling"
    return None


def _restart_blocked(
    rung: Rung,
    state: LadderState,
    settings: LadderSettings,
    restart: RestartSettings,
    now_s: float,
    freeable_ratio: float | None,
) -> str | None:
    recent = [at_s for at_s in state.restarts_s if now_s - at_s < HOUR_S]
    if len(recent) >= restart.budget_per_hour:
        return "budget_spent"
    if rung is Rung.FORCED_RESTART:
        # A stall has its own deadline; a planned restart that just failed must not put it off.
        return None
    if recent and now_s - recent[-1] < restart.min_interval_s:
        return "cooling"
    if state.futile_restarts >= settings.ineffective_after:
        return "ineffective"
    if freeable_ratio is not None and freeable_ratio < restart.min_freeable_ratio:
        return "ineffective"
    return None


def choose(
    state: LadderState,
    settings: LadderSettings,
    restart: RestartSettings,
    level: Level,
    now_s: float,
    freeable_ratio: float | None,
    *,
    stalled: bool,
    stall_overdue: bool,
    gate_connected: bool,
) -> Rung | None:
    """The next rung to run, or None. Call only when nothing runs; settling may be cut short at critical."""
    if stall_overdue:
        if blocked(Rung.FORCED_RESTART, state, settings, restart, now_s, freeable_ratio) is None:
            return Rung.FORCED_RESTART
        return None
    for rung in Rung:
        if rung is Rung.FORCED_RESTART or settings.rung(rung).at > level:
            continue
        if rung in STANDING and (state.rung(rung).engaged or not gate_connected):
            continue
        if stalled and rung is Rung.PLANNED_RESTART:
            # Draining waits for requests that do not move; the forced restart has its own deadline.
            continue
        if blocked(rung, state, settings, restart, now_s, freeable_ratio) is None:
            return rung
    return None


def start(state: LadderState, request: RungRequest) -> LadderState:
    """`state` once `request` has been handed out."""
    state = replace(
        state, running=request, settling=None, settling_request=None, next_request_id=request.request_id + 1
    )
    if request.rung in RESTARTS:
        kept = tuple(at_s for at_s in state.restarts_s if request.asked_at_s - at_s < HOUR_S)
        state = replace(state, restarts_s=(*kept, request.asked_at_s))
    if request.rung in STANDING:
        state = with_rung(state, request.rung, replace(state.rung(request.rung), engaged=True))
    return state


def finish(state: LadderState, result: RungResult) -> LadderState:
    """`state` once the worker has answered; the effect is still to be measured. A stale answer changes nothing."""
    if state.running is None or state.running.request_id != result.request_id:
        return state
    known = state.rung(result.rung)
    known = replace(
        known,
        runs=known.runs + 1,
        last_finished_s=result.finished_at_s,
        absent=known.absent or result.outcome is Outcome.ABSENT,
    )
    request = state.running
    state = replace(with_rung(state, result.rung, known), running=None)
    if result.rung in RESTARTS and result.outcome is Outcome.SKIPPED:
        # Nothing was restarted: the budget is given back. A dry run uses it up as the real thing would.
        state = replace(state, restarts_s=state.restarts_s[:-1])
    return replace(state, settling=result, settling_request=request)


def overdue(state: LadderState, now_s: float) -> RungResult | None:
    """A time-out in place of an answer that has not come `OVERDUE_S` after the deadline, so that the ladder goes on."""
    request = state.running
    if request is None or now_s < request.deadline_s + OVERDUE_S:
        return None
    seconds = now_s - request.asked_at_s
    return RungResult(request.request_id, request.rung, Outcome.TIMEOUT, now_s, seconds, "no answer from the worker")


def measured(state: LadderState, record: RungRecord, deficit_bytes: int) -> LadderState:
    """`state` once the effect of the settled rung is known.

    A run is futile when it freed less than 1 MiB or less than 5 % of what was needed. Skipped, failed and dry runs
    say nothing about the rung, except that a failed restart has freed nothing.
    """
    state = replace(state, settling=None, settling_request=None)
    rung, outcome = record.request.rung, record.result.outcome
    if rung in STANDING or outcome not in {Outcome.OK, Outcome.FAILED, Outcome.TIMEOUT}:
        return state
    freed = record.freed_bytes
    if freed is None:
        return state
    futile = freed < max(MIB, deficit_bytes // 20)
    known = state.rung(rung)
    known = replace(
        known,
        freed_bytes=known.freed_bytes + max(0, freed),
        futile_runs=known.futile_runs + 1 if futile else 0,
    )
    state = with_rung(state, rung, known)
    if rung in RESTARTS:
        state = replace(state, futile_restarts=state.futile_restarts + 1 if futile else 0)
    return state


def disengage(state: LadderState, settings: LadderSettings, level: Level) -> LadderState:
    """Let standing rungs engage again at the next rise once their level is over; calm forgives futile restarts."""
    for rung in STANDING:
        if state.rung(rung).engaged and settings.rung(rung).at > level:
            state = with_rung(state, rung, replace(state.rung(rung), engaged=False))
    if level is Level.NORMAL and state.futile_restarts:
        state = replace(state, futile_restarts=0)
    return state
