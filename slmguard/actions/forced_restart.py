"""Restart a service that does not move any more: nothing is waited for, the process is killed."""

from __future__ import annotations

from slmguard.actions.base import ActionContext
from slmguard.actions.waiting import DaemonStopsError, gate_held, left_s, wait_ready
from slmguard.core.model import Outcome, Rung, RungRequest


class Action:
    """The rung `forced_restart`."""

    rung = Rung.FORCED_RESTART

    def run(self, request: RungRequest, context: ActionContext) -> tuple[Outcome, str]:
        """Kill and restart the unit and wait until the server is ready.

        Raises TimeoutError when the deadline or the wait for readiness passed, UnitControlError when the service could
        not be restarted. The gate's hold is released in every case.
        """
        try:
            with gate_held(request, context):
                began_s = context.clock()
                context.gate.cut()
                left = left_s(request, context, "requests in flight were cut off; nothing was restarted")
                context.unit.force_restart(min(context.stop_timeout_s, left))
                started_s = context.clock()
                wait_ready(request, context)
                ready_s = context.clock()
        except DaemonStopsError:
            return Outcome.OK, "killed and restarted; the daemon is stopping and did not wait for it to be ready"
        return Outcome.OK, (
            f"killed and restarted in {started_s - began_s:.1f} s, ready {ready_s - started_s:.1f} s later"
        )
