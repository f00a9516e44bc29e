"""What the service needs when it is loaded and idle: a restart can free no more than demand less this."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slmguard.core.model import Sample

SETTLE_S = 3.0
BUSY_PATIENCE_S = 20.0


@dataclass(frozen=True, slots=True)
class BaselineState:
    """One life of the service: when it was first seen, when it was first ready, and the baseline, once known.

    `fresh` tells that the guard saw this life begin; for a service that ran before the guard did, what is seen
    first may already hold hours of growth, so no baseline is taken from it.
    """

    ready_since_s: float | None = None
    idle_since_s: float | None = None
    baseline_bytes: int | None = None
    least_bytes: int | None = None
    began_at_s: float = 0.0
    fresh: bool = False


def observe(state: BaselineState, sample: Sample, demand_bytes: int) -> BaselineState:
    """`state` after one more sample."""
    if state.baseline_bytes is not None:
        # Demand below the baseline says that the baseline was taken too early or too high.
        if demand_bytes < state.baseline_bytes:
            return replace(state, baseline_bytes=demand_bytes)
        return state
    server = sample.server
    if not state.fresh or (server is not None and (not server.ready or server.asked_at_s < state.began_at_s)):
        return state  # still loading, or an answer of the life before
    ready_since_s = state.ready_since_s if state.ready_since_s is not None else sample.now_s
    busy = server is not None and bool(server.busy_slots)
    idle_since_s = None if busy else (state.idle_since_s if state.idle_since_s is not None else sample.now_s)
    # A server under constant load is never idle: the least demand since it was ready is the nearest to its baseline.
    least_bytes = demand_bytes if state.least_bytes is None else min(state.least_bytes, demand_bytes)
    state = replace(state, ready_since_s=ready_since_s, idle_since_s=idle_since_s, least_bytes=least_bytes)
    idle_long_enough = idle_since_s is not None and sample.now_s - idle_since_s >= SETTLE_S
    if idle_long_enough or sample.now_s - ready_since_s >= BUSY_PATIENCE_S:
        return replace(state, baseline_bytes=least_bytes)
    return state
