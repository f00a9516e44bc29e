"""Reads request bodies: whole where they are to be edited or may have to be sent again, piece by piece where not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from aiohttp import web

from slmguard.gate import refusal
from slmguard.gate.buffers import BufferLease

# A body may take this many times `body_timeout_s` altogether; each pause in it may take one.
_WHOLE_BODY_FACTOR = 10
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Body:
    """A request's body: `whole` when it fits the bound, else what was read of it so far and the rest to come."""

    whole: bytes | None
    rest: AsyncIterator[bytes] | None = None

    def to_send(self) -> bytes | AsyncIterator[bytes] | None:
        """What the client library takes."""
        if self.rest is not None:
            return self.rest
        return self.whole or None


def invite(request: web.BaseRequest) -> None:
    """Answer `Expect: 100-continue`, so that the client sends its body; raises RefusedError for other wishes."""
    wish = request.headers.get("Expect")
    if wish is None:
        return
    if wish.lower() != "100-continue":
        raise refusal.refuse(417, "expectation_failed", "slmguard: only 100-continue can be expected")
    if request.version >= (1, 1) and request.transport is not None and not request.content.is_eof():
        request.transport.write(_CONTINUE)


async def read_body(request: web.BaseRequest, lease: BufferLease, limit_bytes: int, pause_s: float) -> Body:
    """The body; beyond `limit_bytes` only its beginning is kept and the rest is left to be streamed.

    Raises RefusedError: 408 when it comes too slowly, 400 when its framing is broken, 503 when the pool is full.
    """
    if not request.can_read_body:
        return Body(b"")
    if (request.content_length or 0) > limit_bytes:
        return Body(None, _stream(request, [], pause_s))
    pieces: list[bytes] = []
    size = 0
    deadline_s = asyncio.get_running_loop().time() + pause_s * _WHOLE_BODY_FACTOR
    while True:
        piece = await _next_piece(request, pause_s, deadline_s)
        if not piece:
            return Body(b"".join(pieces) if len(pieces) != 1 else pieces[0])
        lease.grow(len(piece))
        pieces.append(piece)
        size += len(piece)
        if size > limit_bytes:
            return Body(None, _stream(request, pieces, pause_s))


async def _stream(request: web.BaseRequest, begun: list[bytes], pause_s: float) -> AsyncIterator[bytes]:
    while begun:
        yield begun.pop(0)
    while True:
        piece = await _next_piece(request, pause_s, None)
        if not piece:
            return
        yield piece


async def _next_piece(request: web.BaseRequest, pause_s: float, deadline_s: float | None) -> bytes:
    """The next piece, empty at the end."""
    content = request.content
    try:
        piece = content.read_nowait()
        if piece or content.at_eof():
            return piece
        piece = await asyncio.wait_for(content.readany(), pause_s)
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise refusal.refuse(408, "body_timeout", "slmguard: the request body came too slowly") from error
    except (web.RequestPayloadError, ValueError) as error:
        raise refusal.refuse(400, "bad_body", "slmguard: the request body is broken") from error
    if deadline_s is not None and asyncio.get_running_loop().time() > deadline_s:
        raise refusal.refuse(408, "body_timeout", "slmguard: the request body came too slowly")
    return piece
