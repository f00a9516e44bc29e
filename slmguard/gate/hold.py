"""A planned restart as the gate sees it: hold, drain, cut, wait for the server, let go."""

from __future__ import annotations

import asyncio
import logging

from slmguard.gate.policy import Policy
from slmguard.gate.state import GateState
from slmguard.gate.upstream import Upstream

log = logging.getLogger("slmguard.gate")

_READY_POLL_S = 0.1
# After a release, what fails is sent again for this long: the daemon may have given up on a slow start.
_AFTERMATH_S = 30.0


class HoldControl:
    """Follows the `hold` and `cut` of the state lines."""

    def __init__(self, state: GateState, upstream: Upstream) -> None:
        self._state = state
        self._upstream = upstream
        self._loop = asyncio.get_running_loop()
        self._deadline: asyncio.TimerHandle | None = None
        self._releasing: asyncio.Task[None] | None = None
        self._was_cut = False

    def follow(self, policy: Policy) -> None:
        """Begin, extend, cut or end a hold as the daemon says."""
        if policy.hold:
            self._begin(policy.hold_deadline_s)
            if policy.cut:
                self._cut()
        elif self._state.holding:
            self._release("the daemon released it")

    def daemon_lost(self) -> None:
        """Nothing changes until the deadline."""
        if self._state.holding and self._deadline is None and self._releasing is None:
            self._release("the daemon is gone")

    def stop(self) -> None:
        """Forget timers; for the end of the process."""
        if self._deadline is not None:
            self._deadline.cancel()
        if self._releasing is not None:
            self._releasing.cancel()

    def _begin(self, deadline_s: float | None) -> None:
        if self._releasing is not None:
            self._releasing.cancel()
            self._releasing = None
        limit_s = self._state.settings.hold_max_s
        wait_s = limit_s if deadline_s is None else min(deadline_s, limit_s)
        if not self._state.holding:
            log.info("holding new requests for a planned restart, %.0f s at most", wait_s)
            self._state.counters.holds += 1
            self._was_cut = False
            self._state.admission.close()
            self._upstream.renew()
            self._state.changed()
        elif self._deadline is not None and deadline_s is None:
            return  # a repeated line without a deadline must not extend the first one
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = self._loop.call_later(wait_s, self._release, "its deadline passed")

    def _cut(self) -> None:
        if self._was_cut:
            return
        self._was_cut = True
        self._state.counters.cuts += 1
        log.info("cutting %d requests off the server", len(self._state.active))
        for exchange in list(self._state.active):
            exchange.cut()
        self._upstream.renew()

    def _release(self, why: str) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        if self._releasing is None or self._releasing.done():
            self._releasing = self._loop.create_task(self._let_go(why))

    async def _let_go(self, why: str) -> None:
        """Wait until the server answers, but not for ever; then open."""
        state = self._state
        # Connections from before the restart are dead.
        self._upstream.renew()
        until_s = self._loop.time() + state.settings.upstream_retry_s
        while (  # noqa: ASYNC110  # another process is waited for, there is no event
            self._loop.time() < until_s and not await self._upstream.is_ready(state.settings.health_path)
        ):
            await asyncio.sleep(_READY_POLL_S)
        log.info("letting %d held requests go: %s", state.admission.waiting, why)
        state.restart_until_s = self._loop.time() + _AFTERMATH_S
        self._releasing = None
        state.admission.reopen()
        state.changed()
