"""Keep only the newest part of conversations, by the server's own call where it has one, else at the gate."""

from __future__ import annotations

from slmguard.actions.base import ActionContext
from slmguard.core.model import Outcome, Rung, RungRequest


class Action:
    """The rung `trim`."""

    rung = Rung.TRIM

    def run(self, _request: RungRequest, context: ActionContext) -> tuple[Outcome, str]:
        """What the server answered; OK when it did not do it but a gate is connected, for that trims new requests."""
        reply = context.server.trim(context.keep_recent_tokens)
        if reply.outcome is Outcome.OK or not context.gate.connected():
            return reply.outcome, reply.detail
        detail = f"the gate keeps the newest {context.keep_recent_tokens} tokens of new requests"
        return Outcome.OK, detail if reply.outcome is Outcome.ABSENT else f"{detail}; the server itself: {reply.detail}"
