"""The gate's counters in Prometheus' text form."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from slmguard.gate.state import GateState


class _GateCollector(Collector):
    def __init__(self, state: GateState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        yield from _gauges(self._state)
        yield from _counters(self._state)


def render(state: GateState) -> bytes:
    """All metrics as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_GateCollector(state))
    return generate_latest(registry)


def _gauges(state: GateState) -> Iterator[Metric]:
    admission = state.admission
    for name, text, value in (
        ("level", "0 normal, 1 elevated, 2 high, 3 critical", int(state.policy.level)),
        ("daemon_connected", "whether the daemon's control socket is connected", state.daemon == "connected"),
        ("holding", "whether new requests wait for the end of a planned restart", state.holding),
        ("in_flight", "requests that the server is working on", admission.at_server),
        ("waiting", "requests that wait for a place or for the end of a hold", admission.waiting),
        ("buffered_bytes", "request bodies kept in memory", state.buffers.used_bytes),
        ("longest_wait_seconds", "longest wait of a request since the start", admission.max_wait_s),
        ("trim_window_tokens", "window for the newest turns, 0: none", state.trim_window_tokens or 0),
        ("upstream_down", "whether the last connection attempt to the server failed", state.upstream_was_down),
    ):
        yield GaugeMetricFamily(f"slmguard_gate_{name}", text, value=float(value))


def _counters(state: GateState) -> Iterator[Metric]:
    counters = state.counters
    for name, text, value in (
        ("requests", "requests received", counters.requests),
        ("clamped", "requests whose token limit was lowered", counters.clamped),
        ("trimmed", "chat requests from which turns were dropped", counters.trimmed),
        ("trimmed_messages", "messages dropped from chat requests", counters.trimmed_messages),
        ("resent", "requests sent to the server again after a restart", counters.resent),
        ("broken", "answers that ended early because the server was gone", counters.broken),
        ("evicted_connections", "client connections closed because there were too many", counters.evicted_connections),
        ("holds", "planned restarts that the gate covered", counters.holds),
        ("cuts", "times the drain deadline passed and connections were cut", counters.cuts),
        ("progress_tokens", "tokens passed on, as far as the gate can see them", counters.progress_tokens),
    ):
        yield CounterMetricFamily(f"slmguard_gate_{name}", text, value=value)
    answers = CounterMetricFamily("slmguard_gate_answers", "answers passed on", labels=["status"])
    for digit, value in sorted(counters.answers.items()):
        answers.add_metric([f"{digit}xx"], value)
    refused = CounterMetricFamily("slmguard_gate_refused", "requests the gate turned away", labels=["code"])
    for code, value in sorted(counters.refused.items()):
        refused.add_metric([code], value)
    yield answers
    yield refused
