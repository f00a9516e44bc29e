"""Cap the length of new answers: the gate does it, the daemon pushes the level; this makes sure that a gate listens."""

from __future__ import annotations

from slmguard.actions.base import ActionContext
from slmguard.core.model import Outcome, Rung, RungRequest


class Action:
    """The rung `clamp`."""

    rung = Rung.CLAMP

    def run(self, _request: RungRequest, context: ActionContext) -> tuple[Outcome, str]:
        """OK with a gate connected, ABSENT without: a running server's own limit cannot be lowered."""
        if context.gate.connected():
            return Outcome.OK, "the gate caps the length of new answers"
        return Outcome.ABSENT, "no gate is connected, and a running server's limit cannot be lowered"
