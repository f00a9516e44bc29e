"""The waits of both restarts. Each ends at its own limit, at the order's deadline, and when the daemon stops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from slmguard.actions.base import ActionContext
from slmguard.core.model import RungRequest

_DRAIN_POLL_S = 0.25
_READY_POLL_S = 0.5
_CUT_GRACE_S = 2.0  # llama-server frees the slot of a closed connection 0.6 s later (measured)


class DaemonStopsError(Exception):
    """The daemon is told to stop while an action waits."""


def left_s(request: RungRequest, context: ActionContext, doing: str) -> float:
    """Seconds until the deadline. Raises TimeoutError, saying what was being done, when it has passed."""
    left = request.deadline_s - context.clock()
    if left <= 0:
        raise TimeoutError(f"its deadline passed while {doing}")
    return left


@contextmanager
def gate_held(request: RungRequest, context: ActionContext) -> Iterator[None]:
    """New requests wait at the gate inside this block. They are let go however it ends, even when holding failed."""
    try:
        context.gate.hold(left_s(request, context, "the gate was to be held"))
        yield
    finally:
        context.gate.release()


def drain(request: RungRequest, context: ActionContext) -> int | None:
    """Wait until nothing runs, for at most `drain_s`; then cut off what still does.

    Returns how many requests were cut off (0: all finished), None when that is not known. Raises TimeoutError at the
    deadline, DaemonStopsError when the daemon stops.
    """
    running = _wait_idle(request, context, context.drain_s)
    if running == 0:
        return 0
    context.gate.cut()
    _wait_idle(request, context, _CUT_GRACE_S)
    return running


def _wait_idle(request: RungRequest, context: ActionContext, limit_s: float) -> int | None:
    """0 as soon as nothing runs; else, at the limit, how many requests still do (None: nobody tells)."""
    until_s = context.clock() + limit_s
    while True:
        running = _running(context)
        if running == 0:
            return 0
        left = left_s(request, context, "requests in flight were drained; nothing was restarted")
        pause_s = min(_DRAIN_POLL_S, until_s - context.clock(), left)
        if pause_s <= 0:
            return running
        pause(context, pause_s)


def _running(context: ActionContext) -> int | None:
    """Requests in flight by the gate's count, else busy slots by the server's."""
    in_flight = context.gate.in_flight() if context.gate.connected() else None
    return in_flight if in_flight is not None else context.server.probe(context.clock()).busy_slots


def wait_ready(request: RungRequest, context: ActionContext) -> None:
    """Wait until the restarted server is ready.

    Raises TimeoutError after `ready_timeout_s` or at the deadline, DaemonStopsError when the daemon stops.
    """
    began_s = context.clock()
    until_s = min(began_s + context.ready_timeout_s, request.deadline_s)
    while True:
        reading = context.server.probe(context.clock())
        if reading.reachable and reading.ready:
            return
        pause_s = min(_READY_POLL_S, until_s - context.clock())
        if pause_s <= 0:
            waited = context.clock() - began_s
            raise TimeoutError(f"restarted, but not ready after {waited:.0f} s: {reading.detail or 'no reason given'}")
        pause(context, pause_s)


def pause(context: ActionContext, seconds: float) -> None:
    """Sleep. Raises DaemonStopsError when the daemon stops meanwhile."""
    if context.sleep(seconds):
        raise DaemonStopsError
