"""Prometheus metrics and the small page beside them, on a bounded server in the loop."""

from __future__ import annotations

import html
import json
import socket
from collections.abc import Callable, Iterable
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from slmguard import __version__
from slmguard.core.errors import UserError
from slmguard.core.model import Level, Outcome, Rung
from slmguard.ledger import LEVELS, run_key
from slmguard.reactor import Reactor
from slmguard.status import Snapshot, document, rung_states
from slmguard.streams import Connection, StreamServer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_REQUEST = 8 * 1024
TICK_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
SECURITY_HEADERS = (
    "X-Content-Type-Options: nosniff\r\nReferrer-Policy: no-referrer\r\n"
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'\r\n"
)


class TickClock:
    """How long the steps of the loop took, as a histogram."""

    def __init__(self) -> None:
        self._counts = [0] * (len(TICK_BUCKETS) + 1)
        self._sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one step."""
        index = next((i for i, bound in enumerate(TICK_BUCKETS) if seconds <= bound), len(TICK_BUCKETS))
        self._counts[index] += 1
        self._sum_s += seconds

    def family(self) -> HistogramMetricFamily:
        """The histogram as Prometheus wants it."""
        running, buckets = 0, []
        for bound, count in zip((*TICK_BUCKETS, None), self._counts, strict=True):
            running += count
            buckets.append(("+Inf" if bound is None else str(bound), running))
        return HistogramMetricFamily(
            "slmguard_tick_duration_seconds", "Time one look and decision took.", buckets=buckets, sum_value=self._sum_s
        )


class Health:
    """Numbers of the guard itself that other parts keep; each is a callable so that a scrape reads the newest."""

    def __init__(self) -> None:
        self.worker_dropped: Callable[[], int] = int
        self.journal_dropped: Callable[[], int] = int
        self.state_write_failures: Callable[[], int] = int


class GuardCollector(Collector):
    """Turns the last snapshot into metrics; everything exists from the first scrape on, counters start at 0."""

    def __init__(self, snapshot: Callable[[], Snapshot | None], ticks: TickClock, health: Health) -> None:
        self._snapshot = snapshot
        self._ticks = ticks
        self._health = health

    def collect(self) -> Iterable[Metric]:
        """All metrics of this instant."""
        build = GaugeMetricFamily("slmguard_build_info", "Version of slmguard.", labels=["version"])
        build.add_metric([__version__], 1)
        yield build
        yield self._ticks.family()
        yield _counter("slmguard_worker_jobs_dropped", "Jobs that found the queue full.", self._health.worker_dropped())
        yield _counter("slmguard_journal_lines_dropped", "Log lines dropped.", self._health.journal_dropped())
        yield _counter(
            "slmguard_state_write_failures",
            "Times the state file could not be written.",
            self._health.state_write_failures(),
        )
        snapshot = self._snapshot()
        if snapshot is not None:
            yield from _memory(snapshot)
            yield from _judgement(snapshot)
            yield from _deeds(snapshot)
            yield from _surroundings(snapshot)


def _gauge(name: str, text: str, unit: str, value: float | None) -> GaugeMetricFamily:
    family = GaugeMetricFamily(name, text, labels=["unit"])
    if value is not None:
        family.add_metric([unit], value)
    return family


def _counter(name: str, text: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(name, text, value=value)


def _unit_counter(name: str, text: str, unit: str, value: float) -> CounterMetricFamily:
    family = CounterMetricFamily(name, text, labels=["unit"])
    family.add_metric([unit], value)
    return family


def _memory(snapshot: Snapshot) -> Iterable[Metric]:
    unit, figures, memory = snapshot.options.unit, snapshot.decision.figures, snapshot.sample.memory
    for name, text, value in (
        ("current", "Memory charged to the service (memory.current), page cache included.", "current_bytes"),
        ("working_set", "memory.current less inactive page cache.", "working_set_bytes"),
        ("unreclaimable", "Anonymous, shared and unreclaimable kernel memory.", "unreclaimable_bytes"),
        ("demand", "What the service needs to run well: unreclaimable, swap, and its hot weights.", "demand_bytes"),
        ("hot_weights", "Mapped model weights in use, the most seen in this life.", "hot_weights_bytes"),
    ):
        yield _gauge(f"slmguard_memory_{name}_bytes", text, unit, getattr(figures, value) if figures else None)
    swap = memory.swap_bytes if memory else None
    yield _gauge("slmguard_memory_swap_bytes", "Memory of the service in swap.", unit, swap)
    yield _gauge("slmguard_memory_high_bytes", "MemoryHigh in force.", unit, memory.high_bytes if memory else None)
    yield _gauge("slmguard_memory_max_bytes", "MemoryMax in force.", unit, memory.max_bytes if memory else None)
    baseline = snapshot.state.baseline.baseline_bytes
    yield _gauge("slmguard_memory_baseline_bytes", "Demand when loaded and idle.", unit, baseline)


def _judgement(snapshot: Snapshot) -> Iterable[Metric]:
    unit, decision = snapshot.options.unit, snapshot.decision
    ratio = decision.figures.ratio if decision.figures else None
    yield _gauge("slmguard_figure_ratio", "The figure that decisions use, over its limit.", unit, ratio)
    level = GaugeMetricFamily("slmguard_level", "1 for the level in force.", labels=["unit", "level"])
    for one in Level:
        level.add_metric([unit, one.word], 1.0 if one is decision.level else 0.0)
    yield level
    yield _gauge(
        "slmguard_limit_forecast_seconds", "Time until the limit at the present slope.", unit, decision.forecast_s
    )
    yield _gauge(
        "slmguard_stalled_seconds", "How long the service has been stalled.", unit, decision.stalled_for_s or 0.0
    )


def _deeds(snapshot: Snapshot) -> Iterable[Metric]:
    unit, ledger = snapshot.options.unit, snapshot.ledger
    runs = CounterMetricFamily("slmguard_rung_runs", "Runs of a rung.", labels=["unit", "rung", "outcome"])
    freed = CounterMetricFamily("slmguard_rung_freed_bytes", "Bytes freed by a rung.", labels=["unit", "rung"])
    for rung in Rung:
        freed.add_metric([unit, rung.value], ledger.rung_freed_bytes.get(rung.value, 0))
        for outcome in Outcome:
            runs.add_metric([unit, rung.value, outcome.value], ledger.rung_runs.get(run_key(rung, outcome), 0))
    yield runs
    yield freed
    skipped = GaugeMetricFamily(
        "slmguard_rung_ineffective", "1 when a rung is skipped because it freed nothing.", labels=["unit", "rung"]
    )
    for name, state in rung_states(snapshot).items():
        skipped.add_metric([unit, name], 1.0 if state["state"] == "ineffective" else 0.0)
    yield skipped
    changes = CounterMetricFamily("slmguard_level_changes", "Changes to a level.", labels=["unit", "level"])
    for word in LEVELS:
        changes.add_metric([unit, word], ledger.level_changes.get(word, 0))
    yield changes
    yield _unit_counter(
        "slmguard_oom_kills", "Processes of the service that the kernel killed.", unit, ledger.oom_kills
    )
    yield _unit_counter("slmguard_stalls", "Times the service was found stalled.", unit, ledger.stalls)
    yield _unit_counter(
        "slmguard_unexpected_restarts",
        "Times the service started anew unasked.",
        unit,
        ledger.unexpected_restarts,
    )
    left = max(0, snapshot.options.core.restart.budget_per_hour - len(snapshot.state.ladder.restarts_s))
    yield _gauge("slmguard_restart_budget_remaining", "Restarts still allowed in this hour.", unit, left)


def _surroundings(snapshot: Snapshot) -> Iterable[Metric]:
    unit, sample = snapshot.options.unit, snapshot.sample
    host, server = sample.host, sample.server
    if host is not None:
        yield GaugeMetricFamily(
            "slmguard_host_memory_headroom_bytes", "MemAvailable less free CMA.", value=host.headroom_bytes
        )
        yield GaugeMetricFamily("slmguard_host_memory_total_bytes", "RAM of the board.", value=host.total_bytes)
    yield _gauge("slmguard_server_up", "1 when the server answers.", unit, float(server.reachable) if server else 0.0)
    yield _gauge("slmguard_server_ready", "1 when the model is loaded.", unit, float(server.ready) if server else 0.0)
    yield _gauge("slmguard_gate_connected", "1 when a gate is connected.", unit, float(sample.gate_connected))
    yield _gauge("slmguard_dry_run", "1 when nothing is really done.", unit, float(snapshot.options.core.dry_run))
    source = GaugeMetricFamily("slmguard_source_info", "Where the figures come from.", labels=["unit", "source"])
    source.add_metric([unit, snapshot.source], 1.0)
    yield source
    yield _gauge("slmguard_degraded_modes", "Signals that this host lacks.", unit, len(snapshot.degraded))
    yield _unit_counter("slmguard_ticks", "Completed steps of the guard.", unit, snapshot.ledger.ticks)
    yield _unit_counter("slmguard_late_ticks", "Steps that came late.", unit, snapshot.ledger.late_ticks)
    yield _gauge("slmguard_last_tick_timestamp_seconds", "Time of the last completed step.", unit, sample.wall_s)


class MetricsServer:
    """`/metrics`, `/status` (JSON) and `/` (for people) over HTTP/1.1, one request a connection."""

    def __init__(
        self,
        listen: str,
        reactor: Reactor,
        clock: Callable[[], float],
        snapshot: Callable[[], Snapshot | None],
        collector: Collector,
    ) -> None:
        self._snapshot = snapshot
        self._registry = CollectorRegistry()
        self._registry.register(collector)
        self._server = StreamServer(reactor, _bind(listen), clock, self._on_input, max_connections=8, idle_s=5.0)

    def sweep(self) -> None:
        """Close silent connections."""
        self._server.sweep()

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _on_input(self, connection: Connection) -> None:
        if connection.close_when_sent:
            connection.received.clear()
            return
        if b"\r\n\r\n" not in connection.received and b"\n\n" not in connection.received:
            if len(connection.received) > MAX_REQUEST:
                self._reply(connection, "431 Request Header Fields Too Large", b"request too large\n", "text/plain")
            return
        words = bytes(connection.received.split(b"\n", 1)[0]).split()
        connection.received.clear()
        if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
            self._reply(connection, "400 Bad Request", b"bad request\n", "text/plain")
            return
        if words[0] not in {b"GET", b"HEAD"}:
            self._reply(connection, "405 Method Not Allowed", b"GET or HEAD only\n", "text/plain")
            return
        status, body, kind = self._page(words[1].split(b"?", 1)[0].decode("ascii", "replace"))
        self._reply(connection, status, body, kind, head=words[0] == b"HEAD")

    def _page(self, path: str) -> tuple[str, bytes, str]:
        snapshot = self._snapshot()
        if path == "/metrics":
            return "200 OK", generate_latest(self._registry), CONTENT_TYPE
        if path == "/status" and snapshot is not None:
            return "200 OK", json.dumps(document(snapshot)).encode(), "application/json"
        if path == "/":
            return "200 OK", landing_page(document(snapshot) if snapshot else {}).encode(), "text/html; charset=utf-8"
        return "404 Not Found", b"not here; try / /metrics /status\n", "text/plain"

    def _reply(self, connection: Connection, status: str, body: bytes, kind: str, *, head: bool = False) -> None:
        lines = (
            f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
            f"{SECURITY_HEADERS}Connection: close\r\n\r\n"
        )
        self._server.send(connection, lines.encode() + (b"" if head else body), close=True)


def landing_page(status: dict[str, Any]) -> str:
    """A page for people who open the metrics address in a browser."""
    figure, limit = status.get("figure_bytes"), status.get("limit_bytes")
    figures = f"{figure >> 20} of {limit >> 20} MiB" if figure is not None and limit else "not known"
    rows = {
        "unit": status.get("unit", "?"),
        "level": status.get("level", "starting"),
        str(status.get("figure", "figure")): figures,
        "source": status.get("source", "?"),
        "degraded": "; ".join(status.get("degraded", [])) or "nothing",
    }
    cells = "".join(f"<tr><th>{html.escape(k)}</th><td>{html.escape(str(v))}</td></tr>" for k, v in rows.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>slmguard</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><style>'
        ":root{color-scheme:light dark}body{font:16px/1.5 system-ui,sans-serif;max-width:44rem;margin:2rem auto;"
        "padding:0 1rem}th{text-align:left;padding-right:1.5rem;vertical-align:top}</style></head><body>"
        f"<h1>slmguard {html.escape(__version__)}</h1><p>Keeps a local language-model server alive.</p>"
        f'<table>{cells}</table><p><a href="/metrics">Metrics</a> · <a href="/status">Status as JSON</a></p>'
        "</body></html>"
    )


def _bind(listen: str) -> socket.socket:
    """A listening TCP socket.

    Raises UserError when the address cannot be had.
    """
    host, _, port = listen.rpartition(":")
    host = host.strip("[]") or "0.0.0.0"  # noqa: S104 - an empty host is the user's explicit word for all addresses
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(16)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"[metrics] listen = {listen}: {reason}; choose a free address") from None
    return listener
