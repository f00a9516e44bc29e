"""The status document as typed values, whatever an older or newer daemon left out or added.

Everything textual is cleaned here: unit names, reasons and details come from outside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from slmguard.ui.words import clean


@dataclass(frozen=True, slots=True)
class RungRun:
    """One run of a rung. `freed_bytes` is None when it could not be measured."""

    rung: str
    level: str
    at_wall_s: float
    outcome: str
    seconds: float
    before_bytes: int | None
    after_bytes: int | None
    freed_bytes: int | None
    reason: str
    detail: str

    @property
    def clock(self) -> str:
        """Local time of day."""
        return time.strftime("%H:%M:%S", time.localtime(self.at_wall_s))


@dataclass(frozen=True, slots=True)
class Server:
    """The guarded server as the daemon last saw it."""

    kind: str = ""
    url: str = ""
    reachable: bool | None = None
    ready: bool | None = None
    busy_slots: int | None = None
    progress_tokens: int | None = None

    @property
    def words(self) -> str:
        """Its state in a word or two."""
        if self.reachable is None:
            return "not asked yet"
        if not self.reachable:
            return "does not answer"
        if not self.ready:
            return "not ready"
        busy = self.busy_slots
        return "ready" + (f", {busy} slot{'' if busy == 1 else 's'} busy" if busy is not None else "")


@dataclass(frozen=True, slots=True)
class Picture:
    """One status document. Byte figures are None when unknown."""

    version: str
    unit: str
    source: str
    uptime_s: float | None
    dry_run: bool
    figure: str
    figure_bytes: int | None
    limit_bytes: int | None
    ratio: float | None
    level: str
    limits: Mapping[str, int | None]
    memory: Mapping[str, int | None]
    baseline_bytes: int | None
    freeable_bytes: int | None
    growth_bytes_per_s: float | None
    forecast_s: float | None
    host_headroom_bytes: int | None
    host_total_bytes: int | None
    server: Server
    rungs: tuple[RungRun, ...]
    rung_states: Mapping[str, str]
    restarts_in_last_hour: int | None
    restart_budget: int | None
    stalled_for_s: float | None
    counters: Mapping[str, int | None]
    degraded: tuple[str, ...]
    metrics_url: str


def read(document: Mapping[str, Any]) -> Picture:
    """The picture of `document`; what is missing or of a wrong type is unknown, never an error."""
    limits, memory, host = _table(document, "limits"), _table(document, "memory"), _table(document, "host")
    restarts, counters = _table(document, "restarts"), _table(document, "counters")
    states = _table(document, "rung_states")
    rungs = document.get("rungs")
    degraded = document.get("degraded")
    return Picture(
        version=_text(document, "version"),
        unit=_text(document, "unit"),
        source=_text(document, "source"),
        uptime_s=_number(document, "uptime_s"),
        dry_run=document.get("dry_run") is True,
        figure=_text(document, "figure")[:11],
        figure_bytes=_whole(document, "figure_bytes"),
        limit_bytes=_whole(document, "limit_bytes"),
        ratio=_number(document, "ratio"),
        level=_text(document, "level")[:20],
        limits=_wholes(limits),
        memory=_wholes(memory),
        baseline_bytes=_whole(document, "baseline_bytes"),
        freeable_bytes=_whole(document, "freeable_bytes"),
        growth_bytes_per_s=_number(document, "growth_bytes_per_s"),
        forecast_s=_number(document, "forecast_s"),
        host_headroom_bytes=_whole(host, "headroom_bytes"),
        host_total_bytes=_whole(host, "total_bytes"),
        server=_server(_table(document, "server")),
        rungs=tuple(_rung(item) for item in rungs if isinstance(item, dict)) if isinstance(rungs, list) else (),
        rung_states={clean(name): _text(_table(states, name), "state") for name in states},
        restarts_in_last_hour=_whole(restarts, "in_last_hour"),
        restart_budget=_whole(restarts, "budget_per_hour"),
        stalled_for_s=_number(document, "stalled_for_s"),
        counters=_wholes(counters),
        degraded=tuple(clean(item) for item in degraded) if isinstance(degraded, list) else (),
        metrics_url=_text(document, "metrics_url"),
    )


def _rung(item: Mapping[str, Any]) -> RungRun:
    return RungRun(
        rung=_text(item, "rung"),
        level=_text(item, "level"),
        at_wall_s=_wall(item),
        outcome=_text(item, "outcome"),
        seconds=_number(item, "seconds") or 0.0,
        before_bytes=_whole(item, "before_bytes"),
        after_bytes=_whole(item, "after_bytes"),
        freed_bytes=_whole(item, "freed_bytes"),
        reason=_text(item, "reason"),
        detail=_text(item, "detail"),
    )


def _server(table: Mapping[str, Any]) -> Server:
    return Server(
        kind=_text(table, "kind"),
        url=_text(table, "url"),
        reachable=_truth(table, "reachable"),
        ready=_truth(table, "ready"),
        busy_slots=_whole(table, "busy_slots"),
        progress_tokens=_whole(table, "progress_tokens"),
    )


def _wall(item: Mapping[str, Any]) -> float:
    """Seconds since the epoch that `time.localtime` can show, 0 for anything else."""
    value = _number(item, "at_wall_s") or 0.0
    return value if 0 <= value < 1 << 40 else 0.0


def _table(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _text(table: Mapping[str, Any], key: str) -> str:
    value = table.get(key)
    return "" if value is None else clean(value)


def _number(table: Mapping[str, Any], key: str) -> float | None:
    value = table.get(key)
    return (
        float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < 1e300 else None
    )


def _whole(table: Mapping[str, Any], key: str) -> int | None:
    value = _number(table, key)
    return None if value is None else int(value)


def _wholes(table: Mapping[str, Any]) -> dict[str, int | None]:
    return {clean(key, 40): _whole(table, key) for key in table}


def _truth(table: Mapping[str, Any], key: str) -> bool | None:
    value = table.get(key)
    return value if isinstance(value, bool) else None
