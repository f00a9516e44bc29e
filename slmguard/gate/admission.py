"""Who may go to the server now, who waits, and who is told to come back later.

Places are given round-robin over clients and in order within one client, so that one busy client cannot
starve the others. During a hold no place is given; waiting costs no more than a future.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from slmguard.gate import refusal
from slmguard.gate.settings import GateSettings


@dataclass(slots=True, eq=False)
class _Waiter:
    client: Hashable
    limited: bool  # takes one of the `max_inflight` places
    ready: asyncio.Future[None]


class Admission:
    """Places at the server, and the queue in front of them. For one event loop; not thread-safe."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self._waiting: OrderedDict[Hashable, deque[_Waiter]] = OrderedDict()
        self._first: deque[_Waiter] = deque()  # those who were at the server already and must go again
        self._unlimited: deque[_Waiter] = deque()  # those who only wait for the end of a hold
        self._count = 0
        self.in_flight = 0  # places taken
        self.passing = 0  # at the server without a place
        self.open = True
        self.queue_full_total = 0
        self.max_wait_s = 0.0

    @property
    def waiting(self) -> int:
        """Requests that wait, for whatever reason."""
        return self._count

    @property
    def at_server(self) -> int:
        """Requests that the server is working on, with or without a place."""
        return self.in_flight + self.passing

    def close(self) -> None:
        """Give no more places until `reopen`."""
        self.open = False

    def reopen(self) -> None:
        """Let the waiting go, in order, as far as there are places."""
        self.open = True
        self._admit()

    async def enter(self, client: Hashable, *, limited: bool, again: bool = False) -> None:
        """Wait for a place; the caller must call `leave` afterwards.

        Raises RefusedError when the queue is full or the wait takes too long. `again` marks a request that had
        its place already and lost it to a restart: it goes first, and the bounds do not apply to it.
        """
        if self.open and (not limited or (self.in_flight < self._settings.max_inflight and not self._queued)):
            self._take(limited)
            return
        if not again:
            self._check_room()
        loop = asyncio.get_running_loop()
        waiter = _Waiter(client, limited, loop.create_future())
        self._enqueue(waiter, again)
        started_s = loop.time()
        timer = loop.call_later(self._patience_s(), _give_up, waiter.ready)
        try:
            await waiter.ready
        except BaseException:
            self._withdraw(waiter)
            raise
        finally:
            timer.cancel()
            self.max_wait_s = max(self.max_wait_s, loop.time() - started_s)

    def leave(self, *, limited: bool) -> None:
        """Give the place back."""
        if limited:
            self.in_flight -= 1
        else:
            self.passing -= 1
        self._admit()

    @property
    def _queued(self) -> bool:
        return bool(self._first or self._waiting)

    def _patience_s(self) -> float:
        if self.open:
            return self._settings.queue_timeout_s
        return self._settings.hold_max_s + self._settings.queue_timeout_s

    def _check_room(self) -> None:
        settings = self._settings
        if self.open and self._count >= settings.max_queue:
            self.queue_full_total += 1
            raise refusal.refuse(
                429, refusal.QUEUE_FULL, "slmguard: too many requests are waiting", settings.retry_after_s
            )
        if not self.open and self._count >= settings.max_held:
            self.queue_full_total += 1
            raise refusal.refuse(
                503, refusal.RESTARTING, "slmguard: the server is being restarted", settings.retry_after_s
            )

    def _enqueue(self, waiter: _Waiter, again: bool) -> None:
        self._count += 1
        if not waiter.limited:
            self._unlimited.append(waiter)
        elif again:
            self._first.append(waiter)
        else:
            self._waiting.setdefault(waiter.client, deque()).append(waiter)

    def _take(self, limited: bool) -> None:
        if limited:
            self.in_flight += 1
        else:
            self.passing += 1

    def _admit(self) -> None:
        while self.open:
            waiter = self._next()
            if waiter is None:
                return
            self._count -= 1
            if not waiter.ready.done():
                self._take(waiter.limited)
                waiter.ready.set_result(None)

    def _next(self) -> _Waiter | None:
        if self._unlimited:
            return self._unlimited.popleft()
        if self.in_flight >= self._settings.max_inflight:
            return None
        if self._first:
            return self._first.popleft()
        if not self._waiting:
            return None
        client, queue = next(iter(self._waiting.items()))
        waiter = queue.popleft()
        # To the end of the round, or out of it.
        del self._waiting[client]
        if queue:
            self._waiting[client] = queue
        return waiter

    def _withdraw(self, waiter: _Waiter) -> None:
        """Take a waiter out that was cancelled or ran out of patience, wherever it stands."""
        queue = self._waiting.get(waiter.client)
        for place in (self._first, self._unlimited, queue):
            if place is not None and waiter in place:
                place.remove(waiter)
                self._count -= 1
                break
        else:
            # It had been given a place in the very moment in which it was cancelled.
            if waiter.ready.done() and not waiter.ready.cancelled() and waiter.ready.exception() is None:
                self.leave(limited=waiter.limited)
        if queue is not None and not queue:
            self._waiting.pop(waiter.client, None)


def _give_up(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_exception(refusal.refuse(429, refusal.QUEUE_FULL, "slmguard: waited too long for a free place", 10))
