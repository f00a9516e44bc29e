"""One request's way to the server and back: waits for a place, is sent, sent again if that is safe, relayed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Any

import aiohttp
from aiohttp import web

from slmguard.gate import refusal
from slmguard.gate.endpoints import Endpoint, Kind
from slmguard.gate.headers import REQUEST_ID
from slmguard.gate.progress import event_mark, stated_tokens
from slmguard.gate.response import PassedResponse
from slmguard.gate.state import GateState
from slmguard.gate.upstream import Upstream, UpstreamLostError, UpstreamRequest

# An answer up to this size is read whole before its first byte is passed on: until then it can be asked for again.
WHOLE_ANSWER_BYTES = 256 * 1024
_FIRST_DELAY_S, _LAST_DELAY_S = 0.05, 0.5
# How often the server may vanish under one request before it is not sent again.
_LOST_AT_ANY_TIME, _LOST_IN_RESTART = 1, 3

# Builds what is sent (clamped and trimmed as the level of that moment says) and the headers that tell of it.
Prepare = Callable[[], Awaitable[tuple[UpstreamRequest, list[tuple[str, str]]]]]


@dataclass(slots=True)
class _Attempts:
    """How often one request was tried, and until when it may be."""

    give_up_s: float | None = None
    delay_s: float = _FIRST_DELAY_S
    lost_at_server: int = 0


class Exchange:
    """One proxied request. `cut` is called from outside."""

    def __init__(
        self,
        state: GateState,
        upstream: Upstream,
        request: web.BaseRequest,
        endpoint: Endpoint,
        request_id: str,
    ) -> None:
        self._state = state
        self._upstream = upstream
        self._endpoint = endpoint
        self._request_id = request_id
        self._response = PassedResponse(request)
        self._attempts = _Attempts()
        self._loop = asyncio.get_running_loop()
        self._request = request
        self._sending: asyncio.Task[Any] | None = None
        self._answer: aiohttp.ClientResponse | None = None
        self.was_cut = False
        self._silent = False
        self._mark: bytes | None = None  # what one event of the answer begins or ends with, if it is a stream
        # Where it stands, for the sweep: since when the client has not read, the server has not answered.
        self.writing_since_s: float | None = None
        self.heard_at_s = self._loop.time()

    async def run(self, client: Hashable, prepare: Prepare) -> PassedResponse:
        """The answer, passed on in full. Raises RefusedError while nothing has been sent to the client."""
        if self._endpoint.kind is Kind.PROBE:
            self._state.active.add(self)
            try:
                await self._at_server(prepare)
            finally:
                self._state.active.discard(self)
            return self._response
        admission = self._state.admission
        limited = self._endpoint.kind in (Kind.GENERATE, Kind.COMPUTE)
        again = False
        while True:
            await admission.enter(client, limited=limited, again=again)
            self._state.active.add(self)
            self._state.changed()
            try:
                done = await self._at_server(prepare)
            finally:
                self._state.active.discard(self)
                admission.leave(limited=limited)
                self._state.changed()
            if done:
                return self._response
            again = True
            self.was_cut = False
            self._state.counters.resent += 1

    def cut(self) -> None:
        """Close the connection to the server: the drain deadline of a planned restart has passed."""
        self.was_cut = True
        self._break_off()

    def _break_off(self) -> None:
        if self._answer is not None:
            self._answer.close()
        elif self._sending is not None:
            self._sending.cancel()

    def give_up(self) -> None:
        """The server has been silent for too long."""
        self._silent = True
        self._break_off()

    def abort(self) -> None:
        """Break the client's connection off; aiohttp then cancels the handler."""
        self._response.abort()

    async def _at_server(self, prepare: Prepare) -> bool:
        """True when the answer was passed on, False when it must wait out a hold and be sent again."""
        while True:
            request, notes = await prepare()
            if self.was_cut and self._endpoint.kind is not Kind.PROBE:
                return False
            try:
                with self._upstream.pool() as session:
                    answer = await self._send(session, request)
                    self._check_loaded(answer, request)
                    await self._relay(answer, notes)
            except UpstreamLostError as error:
                self._check_repeatable(request, error)
                if not self._may_stay():
                    return False
                await asyncio.sleep(self._next_delay_s(error))
                if not self._may_stay():
                    return False
            else:
                self._state.upstream_answered()
                return True

    def _may_stay(self) -> bool:
        """Whether trying again goes on now, rather than after the end of a hold."""
        return self._state.admission.open or self._endpoint.kind is Kind.PROBE

    async def _send(self, session: aiohttp.ClientSession, request: UpstreamRequest) -> aiohttp.ClientResponse:
        self._sending = asyncio.current_task()
        self.heard_at_s = self._loop.time()
        try:
            return await self._upstream.send(session, request)
        except asyncio.CancelledError:
            # Either our own doing or the client's departure; the latter has taken the transport away.
            if not (self.was_cut or self._silent) or self._request.transport is None:
                raise
            _take_back_cancel(self._sending)
            raise UpstreamLostError("cut off", connected=True) from None
        finally:
            self._sending = None

    def _check_repeatable(self, request: UpstreamRequest, error: UpstreamLostError) -> None:
        """Raise the refusal that ends this exchange unless the request may be sent once more."""
        if not error.connected:
            self._state.upstream_refused()
        attempts = self._attempts
        if error.connected and not self.was_cut:
            attempts.lost_at_server += 1
        # It may be this very request that brings the server down: once more, and no further.
        limit = _LOST_IN_RESTART if self._state.in_restart else _LOST_AT_ANY_TIME
        if self._silent:
            raise refusal.refuse(504, "upstream_timeout", "slmguard: the server did not answer in time")
        probe = self._endpoint.kind is Kind.PROBE
        once = error.connected and not self._endpoint.repeatable
        if probe or once or not request.repeatable or attempts.lost_at_server > limit:
            code = refusal.UPSTREAM_CLOSED if error.connected else refusal.UPSTREAM_DOWN
            raise _bad_gateway(code, error, self._state.settings.retry_after_s)

    def _next_delay_s(self, error: UpstreamLostError) -> float:
        attempts, now_s = self._attempts, self._loop.time()
        if attempts.give_up_s is None:
            attempts.give_up_s = now_s + self._state.settings.upstream_retry_s
        if now_s >= max(attempts.give_up_s, self._state.restart_until_s):
            raise _bad_gateway(refusal.UPSTREAM_DOWN, error, self._state.settings.retry_after_s)
        delay_s = attempts.delay_s
        attempts.delay_s = min(delay_s * 1.5, _LAST_DELAY_S)
        return delay_s

    def _check_loaded(self, answer: aiohttp.ClientResponse, request: UpstreamRequest) -> None:
        """Raise UpstreamLostError for the 503 of a server that has only just been started.

        Only within a restart that the gate knows of; any other 503 is the server's own answer.
        """
        if answer.status != 503 or not request.repeatable or self._endpoint.kind is Kind.PROBE:
            return
        state, give_up_s, now_s = self._state, self._attempts.give_up_s, self._loop.time()
        if not (state.in_restart or state.upstream_was_down or give_up_s is not None):
            return
        last_s = max(give_up_s or now_s + state.settings.upstream_retry_s, state.restart_until_s)
        if state.holding or now_s < last_s:
            answer.close()
            raise UpstreamLostError("the server is still loading", connected=False)

    async def _relay(self, answer: aiohttp.ClientResponse, notes: list[tuple[str, str]]) -> None:
        complete = False
        self._answer = answer
        try:
            complete = await self._pass_on(answer, notes)
        finally:
            self._answer = None
            if complete:
                answer.release()
            else:
                answer.close()

    async def _pass_on(self, answer: aiohttp.ClientResponse, notes: list[tuple[str, str]]) -> bool:
        """Pass the answer on; True when it came whole. Raises UpstreamLostError while nothing was sent."""
        content = answer.content
        self._mark = event_mark(answer.content_type)
        first = b""
        if self._endpoint.kind in (Kind.GENERATE, Kind.COMPUTE):
            first = await self._first_bytes(answer)
        await self._response.start(
            answer.status, answer.reason or "", answer.raw_headers, [(REQUEST_ID, self._request_id), *notes]
        )
        await self._write(first)
        try:
            while True:
                piece = await content.readany()
                if not piece:
                    break
                await self._write(piece)
        except aiohttp.ClientError:
            await self._end_early()
            return False
        await self._response.write_eof()
        self._count(answer)
        return True

    async def _first_bytes(self, answer: aiohttp.ClientResponse) -> bytes:
        """The whole answer when it is small, else its first piece."""
        length = _length(answer)
        try:
            if length is not None and length <= WHOLE_ANSWER_BYTES:
                whole = await answer.content.read()
                self._state.counters.progress_tokens += stated_tokens(whole)
                return whole
            return await answer.content.readany()
        except (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError) as error:
            raise UpstreamLostError("the server closed the connection", connected=True) from error

    async def _write(self, piece: bytes) -> None:
        self.writing_since_s = self.heard_at_s = self._loop.time()
        if piece:
            await self._response.write(piece)
            if self._mark is not None:
                self._state.counters.progress_tokens += piece.count(self._mark)
        else:
            await self._response.flush_head()
        self.writing_since_s = None

    async def _end_early(self) -> None:
        """The server is gone in mid-answer: say so in the stream if it is one, else break off."""
        self._state.counters.broken += 1
        if self._mark is None:
            self.abort()
            return
        code = refusal.RESTARTING if self.was_cut else refusal.UPSTREAM_CLOSED
        message = "slmguard: the server was restarted" if self.was_cut else "slmguard: the server closed the stream"
        note = refusal.Refusal(503 if self.was_cut else 502, code, message)
        self._response.close_after()
        await self._response.write(refusal.stream_end(note, self._endpoint.dialect))
        await self._response.write_eof()

    def _count(self, answer: aiohttp.ClientResponse) -> None:
        counters = self._state.counters
        counters.answers[answer.status // 100] = counters.answers.get(answer.status // 100, 0) + 1


def _bad_gateway(code: str, error: UpstreamLostError, retry_after_s: int) -> refusal.RefusedError:
    status = 502 if error.connected else 503
    return refusal.refuse(status, code, f"slmguard: no answer from the server ({error})", retry_after_s)


def _length(answer: aiohttp.ClientResponse) -> int | None:
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isascii() and text.isdigit() else None


def _take_back_cancel(task: asyncio.Task[Any] | None) -> None:
    """Python 3.11 counts cancellations; this one has been dealt with."""
    if task is not None and hasattr(task, "uncancel"):
        task.uncancel()
