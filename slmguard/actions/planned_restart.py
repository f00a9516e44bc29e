"""Restart the service without a client noticing: hold new requests, let those in flight finish, restart, wait, release.

On llama-server this is the one rung that gives back what the prompt cache has taken.
"""

from __future__ import annotations

from slmguard.actions.base import ActionContext
from slmguard.actions.waiting import DaemonStopsError, drain, gate_held, left_s, wait_ready
from slmguard.core.model import Outcome, Rung, RungRequest


class Action:
    """The rung `planned_restart`."""

    rung = Rung.PLANNED_RESTART

    def run(self, request: RungRequest, context: ActionContext) -> tuple[Outcome, str]:
        """Restart the unit and wait until the server is ready.

        Raises TimeoutError when the deadline or the wait for readiness passed, UnitControlError when the service could
        not be restarted. The gate's hold is released in every case.
        """
        restarted = False
        try:
            with gate_held(request, context):
                began_s = context.clock()
                cut = drain(request, context)
                drained_s = context.clock()
                left = left_s(request, context, "requests in flight were drained; nothing was restarted")
                context.unit.restart(min(context.stop_timeout_s, left))
                restarted = True
                started_s = context.clock()
                wait_ready(request, context)
                ready_s = context.clock()
        except DaemonStopsError:
            if restarted:
                return Outcome.OK, "restarted; the daemon is stopping and did not wait for it to be ready"
            return Outcome.FAILED, "the daemon is stopping: nothing was restarted"
        drained = "requests drained" if cut == 0 else f"{'some' if cut is None else cut} requests cut off"
        return Outcome.OK, (
            f"{drained} after {drained_s - began_s:.1f} s, restarted in {started_s - drained_s:.1f} s, "
            f"ready {ready_s - started_s:.1f} s later"
        )
