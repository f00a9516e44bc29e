"""Ask the server for what it can give back without touching a running request; the core measures what came."""

from __future__ import annotations

from slmguard.actions.base import ActionContext
from slmguard.core.model import Outcome, Rung, RungRequest


class Action:
    """The rung `drop_caches`."""

    rung = Rung.DROP_CACHES

    def run(self, _request: RungRequest, context: ActionContext) -> tuple[Outcome, str]:
        """What the server's adapter did and was answered."""
        reply = context.server.drop_caches()
        return reply.outcome, reply.detail
