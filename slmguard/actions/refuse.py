"""Turn new requests away: the gate does it, the daemon pushes the level; this makes sure that a gate listens."""

from __future__ import annotations

from slmguard.actions.base import ActionContext
from slmguard.core.model import Outcome, Rung, RungRequest


class Action:
    """The rung `refuse`."""

    rung = Rung.REFUSE

    def run(self, _request: RungRequest, context: ActionContext) -> tuple[Outcome, str]:
        """OK with a gate connected, ABSENT without."""
        if context.gate.connected():
            return Outcome.OK, "the gate refuses new requests with 503 and Retry-After"
        return Outcome.ABSENT, "no gate is connected"
