"""The status document (docs/reference/status.md): one picture of the guard for status, top and the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slmguard import __version__
from slmguard.core import ladder
from slmguard.core.figures import Figures
from slmguard.core.model import Level, Rung, Sample
from slmguard.core.policy import Decision, State
from slmguard.ledger import Ledger
from slmguard.options import Options


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that is known after one completed step. `degraded` are sentences."""

    options: Options
    state: State
    sample: Sample
    decision: Decision
    ledger: Ledger
    source: str
    capabilities: frozenset[Rung]
    degraded: tuple[str, ...]
    started_at_s: float
    tick_seconds: float


def document(snapshot: Snapshot) -> dict[str, Any]:
    """The status document as a JSON-ready dict."""
    options, state, sample, decision = snapshot.options, snapshot.state, snapshot.sample, snapshot.decision
    figures, memory = decision.figures, sample.memory
    restart = options.core.restart
    recent = [at_s for at_s in state.ladder.restarts_s if sample.now_s - at_s < ladder.HOUR_S]
    return {
        "version": __version__,
        "unit": options.unit,
        "source": snapshot.source,
        "instance": state.instance,
        "uptime_s": round(sample.now_s - snapshot.started_at_s, 1),
        "dry_run": options.core.dry_run,
        "figure": options.core.figure,
        "figure_bytes": figures.chosen_bytes if figures else None,
        "limit_bytes": figures.limit_bytes if figures else None,
        "ratio": round(figures.ratio, 4) if figures and figures.ratio is not None else None,
        "level": decision.level.word,
        "limits": _limits(
            options, figures, memory.high_bytes if memory else None, memory.max_bytes if memory else None
        ),
        "memory": _memory(figures),
        "baseline_bytes": state.baseline.baseline_bytes,
        "freeable_bytes": decision.freeable_bytes,
        "growth_bytes_per_s": _rounded(state.track.slope_bytes_per_s),
        "forecast_s": _rounded(decision.forecast_s),
        "host": None
        if sample.host is None
        else {
            "total_bytes": sample.host.total_bytes,
            "available_bytes": sample.host.available_bytes,
            "headroom_bytes": sample.host.headroom_bytes,
        },
        "server": _server(snapshot),
        "rungs": list(snapshot.ledger.rungs),
        "rung_states": rung_states(snapshot),
        "restarts": {"in_last_hour": len(recent), "budget_per_hour": restart.budget_per_hour},
        "stalled_for_s": _rounded(decision.stalled_for_s),
        "counters": {
            "oom_kills": snapshot.ledger.oom_kills,
            "stalls": snapshot.ledger.stalls,
            "unexpected_restarts": snapshot.ledger.unexpected_restarts,
            "level_changes": sum(snapshot.ledger.level_changes.values()),
            "ticks": snapshot.ledger.ticks,
        },
        "gate_connected": sample.gate_connected,
        "degraded": list(snapshot.degraded),
        "interval_s": round(decision.interval_s, 3),
        "metrics_url": f"http://{options.metrics_listen}/metrics" if options.metrics_listen else None,
    }


def rung_states(snapshot: Snapshot) -> dict[str, dict[str, Any]]:
    """For each rung: runs in this life of the service, bytes freed by them, and what it is doing or why it can't."""
    state, core, now_s = snapshot.state, snapshot.options.core, snapshot.sample.now_s
    figures, freeable = snapshot.decision.figures, snapshot.decision.freeable_bytes
    ratio = freeable / figures.limit_bytes if figures and figures.limit_bytes and freeable is not None else None
    states: dict[str, dict[str, Any]] = {}
    for rung in Rung:
        known = state.ladder.rung(rung)
        word = ladder.blocked(rung, state.ladder, core.ladder, core.restart, now_s, ratio) or "ready"
        settling = state.ladder.settling_request
        if settling is not None and settling.rung is rung:
            word = "settling"
        elif rung in ladder.STANDING and word == "ready" and not snapshot.sample.gate_connected:
            word = "absent"
        elif known.engaged and word in {"ready", "cooling"}:
            word = "running"
        states[rung.value] = {"runs": known.runs, "freed_bytes": known.freed_bytes, "state": word}
    return states


def _limits(options: Options, figures: Figures | None, high: int | None, maximum: int | None) -> dict[str, Any]:
    limit = figures.limit_bytes if figures else None
    levels = options.core.levels

    def at(level: Level) -> int | None:
        return int(levels.threshold(level) * limit) if limit else None

    return {
        "high_bytes": high,
        "max_bytes": maximum,
        "elevated_bytes": at(Level.ELEVATED),
        "high_level_bytes": at(Level.HIGH),
        "critical_bytes": at(Level.CRITICAL),
    }


def _memory(figures: Figures | None) -> dict[str, int | None]:
    return {
        "current_bytes": figures.current_bytes if figures else None,
        "working_set_bytes": figures.working_set_bytes if figures else None,
        "unreclaimable_bytes": figures.unreclaimable_bytes if figures else None,
        "demand_bytes": figures.demand_bytes if figures else None,
    }


def _server(snapshot: Snapshot) -> dict[str, Any]:
    choice, reading = snapshot.options.server, snapshot.sample.server
    return {
        "kind": choice.kind,
        "url": choice.url,
        "reachable": reading.reachable if reading else None,
        "ready": reading.ready if reading else None,
        "busy_slots": reading.busy_slots if reading else None,
        "progress_tokens": reading.progress_tokens if reading else None,
        "detail": reading.detail if reading else "",
        "capabilities": sorted(rung.value for rung in snapshot.capabilities),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)
