"""Client connections: how many there may be, how long they may say nothing, and which one has to go."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from slmguard.gate.response import BadRequestResponse
from slmguard.gate.settings import GateSettings

log = logging.getLogger("slmguard.gate")

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

_FULL = (
    b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 5\r\nContent-Type: application/json\r\n"
    b"Content-Length: 116\r\nConnection: close\r\n\r\n"
    b'{"error": {"message": "slmguard: too many connections", "type": "server_error", '
    b'"param": null, "code": "gate_busy"}}'
)
_LINGER_S = 2.0
_READ_BYTES = 16 * 1024
# What nginx allows by default, too; llama-server's own limit is of the same order.
_HEADER_LINE_BYTES = 8190
_HEADER_COUNT = 100


class GateConnection(RequestHandler):
    """One client's connection. Idle ones are closed, oldest first, when a new one would be too many."""

    __slots__ = ("_first_timer", "_table")

    def __init__(self, table: ConnectionTable, loop: asyncio.AbstractEventLoop, **options: Any) -> None:
        super().__init__(table, loop=loop, **options)
        self._table = table
        self._first_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection in, at the cost of an idle one if need be."""
        if not self._table.make_room():
            transport.write(_FULL)  # type: ignore[attr-defined]
            transport.close()
            return
        super().connection_made(transport)
        self._table.idle[self] = None
        loop = asyncio.get_running_loop()
        self._first_timer = loop.call_later(self._table.header_timeout_s, self.force_close)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Forget the connection."""
        self._stop_timer()
        self._table.idle.pop(self, None)
        super().connection_lost(exc)

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,  # noqa: ARG002  # aiohttp passes it; it echoes the request
    ) -> web.StreamResponse:
        """What aiohttp answers when it cannot parse a request, or when a handler fails.

        Without echoing the request, and without a traceback for what a client did.
        """
        gone = self.transport is None or isinstance(exc, ConnectionError)
        if status >= 500 and not gone:
            log.error("a request failed, which is a defect of slmguard", exc_info=exc)
        if gone or request.writer.output_size > 0:
            raise ConnectionResetError("the client is gone, or has half an answer")
        self._table.on_bad_request()
        return BadRequestResponse(request, status)

    def begin(self) -> None:
        """A request is being handled."""
        self._stop_timer()
        self._table.idle.pop(self, None)

    def end(self) -> None:
        """The request has been answered."""
        if self.transport is not None:
            self._table.idle[self] = None

    def _stop_timer(self) -> None:
        if self._first_timer is not None:
            self._first_timer.cancel()
            self._first_timer = None


class ConnectionTable(web.Server):
    """All client connections of the gate; the protocol factory of its listening sockets."""

    def __init__(self, handler: Handler, settings: GateSettings) -> None:
        super().__init__(self._tracked, handler_cancellation=True)
        self._handler = handler
        self._limit = settings.max_connections
        self._options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": settings.keepalive_timeout_s,
            "lingering_time": _LINGER_S,
            "read_bufsize": _READ_BYTES,
            "auto_decompress": False,
            "max_line_size": _HEADER_LINE_BYTES,
            "max_field_size": _HEADER_LINE_BYTES,
            "max_headers": _HEADER_COUNT,
        }
        self.header_timeout_s = settings.header_timeout_s
        self.idle: dict[GateConnection, None] = {}  # oldest first
        self.on_eviction: Callable[[], None] = lambda: None
        self.on_bad_request: Callable[[], None] = lambda: None

    def __call__(self) -> GateConnection:
        """A protocol for a new connection."""
        return GateConnection(self, asyncio.get_running_loop(), **self._options)

    def make_room(self) -> bool:
        """Whether one more connection may come; closes the connection that has been idle longest if need be."""
        if len(self.connections) < self._limit:
            return True
        self.on_eviction()
        for oldest in self.idle:
            del self.idle[oldest]
            oldest.force_close()
            return True
        return False

    async def _tracked(self, request: web.BaseRequest) -> web.StreamResponse:
        connection = request.protocol
        assert isinstance(connection, GateConnection)  # noqa: S101  # made by __call__, nobody else
        connection.begin()
        try:
            return await self._handler(request)
        finally:
            connection.end()
