"""Writes an answer to the client with the headers that it came with, and nothing added by the library."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http import HttpVersion10, HttpVersion11
from multidict import CIMultiDict

from slmguard.gate.endpoints import Dialect
from slmguard.gate.headers import REQUEST_ID, forwarded
from slmguard.gate.refusal import Refusal
from slmguard.gate.refusal import body as refusal_body

_BODILESS = (204, 304)


class PassedResponse(web.StreamResponse):
    """One answer; `start` sends the head, `write` the body, aiohttp calls `write_eof` at the end.

    web.StreamResponse would add Server, Date and Content-Type of its own.
    """

    def __init__(self, request: web.BaseRequest) -> None:
        super().__init__()
        self._request = request
        self._alive = request.keep_alive
        self._ended = False
        self._skip_body = False
        self.started = False
        self.body_bytes = 0

    @property
    def keep_alive(self) -> bool | None:
        """Whether the client's connection stays open after this answer."""
        return self._alive

    @property
    def prepared(self) -> bool:
        """Whether the head has been sent."""
        return self.started

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Called by aiohttp when the handler is done; the head has been sent by then."""
        return request.writer

    async def start(
        self,
        status: int,
        reason: str,
        raw_headers: Iterable[tuple[bytes, bytes]],
        extra: Iterable[tuple[str, str]],
    ) -> None:
        """Send the status line and headers; framing is chosen for this connection."""
        headers = forwarded(raw_headers)
        for name, value in extra:
            headers[name] = value
        self._frame(status, headers)
        version = "1.0" if self._request.version == HttpVersion10 else "1.1"
        self.started = True
        await self._request.writer.write_headers(f"HTTP/{version} {status} {reason}", headers)

    def _frame(self, status: int, headers: CIMultiDict[str]) -> None:
        request, writer = self._request, self._request.writer
        bodiless = request.method == "HEAD" or status in _BODILESS
        length = headers.get("Content-Length")
        if bodiless:
            # The length of the body that a GET would have had stays in the head, but nothing is counted.
            self._skip_body = True
        elif length is not None and length.isdigit():
            writer.length = int(length)
        elif request.version >= HttpVersion11:
            writer.enable_chunking()
            headers["Transfer-Encoding"] = "chunked"
        else:
            self._alive = False
        if not self._alive:
            headers["Connection"] = "close"
        elif request.version == HttpVersion10:
            headers["Connection"] = "keep-alive"

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send a piece of the body; waits while the client reads slowly. Raises ConnectionError."""
        if self._skip_body or not data:
            return
        self.body_bytes += len(data)
        await self._request.writer.write(data)

    async def flush_head(self) -> None:
        """Send the head now; the writer would keep it until the first piece of the body."""
        await self._request.writer.write(b"")

    async def write_eof(self, data: bytes = b"") -> None:
        """End the body."""
        if self._ended:
            return
        self._ended = True
        if self._request.transport is not None and self.started:
            await self._request.writer.write_eof(data)

    def close_after(self) -> None:
        """Close the client's connection after this answer."""
        self._alive = False

    def abort(self) -> None:
        """Break the client's connection off: the only honest sign that an answer is not complete."""
        self._alive = False
        self._ended = True
        if self._request.transport is not None:
            self._request.transport.abort()


class BadRequestResponse(PassedResponse):
    """The answer to what could not be read as a request; closes the connection."""

    def __init__(self, request: web.BaseRequest, status: int) -> None:
        super().__init__(request)
        self.close_after()
        self._failed_status = status

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        """Send all of it; aiohttp calls this right away."""
        if self._failed_status >= 500:
            reason = Refusal(self._failed_status, "internal_error", "slmguard: the gate failed")
        else:
            reason = Refusal(self._failed_status, "bad_request", "slmguard: this is no valid HTTP request")
        content = refusal_body(reason, Dialect.OTHER)
        head = [(b"Content-Length", str(len(content)).encode()), (b"Content-Type", b"application/json")]
        await self.start(reason.status, REASONS.get(reason.status, ""), head, ())
        await self.write(content)
        return request.writer


async def answer(
    request: web.BaseRequest,
    status: int,
    content: bytes,
    request_id: str,
    extra: Iterable[tuple[str, str]] = (),
    content_type: str = "application/json",
) -> web.StreamResponse:
    """A complete answer of the gate's own."""
    response = PassedResponse(request)
    raw = [(b"Content-Length", str(len(content)).encode())] if status not in _BODILESS else []
    if content:
        raw.append((b"Content-Type", content_type.encode()))
    await response.start(status, REASONS.get(status, ""), raw, [(REQUEST_ID, request_id), *extra])
    await response.write(content)
    await response.write_eof()
    return response


REASONS = {
    200: "OK",
    204: "No Content",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    429: "Too Many Requests",
    500: "Internal Server Error",
    502: "Bad Gateway",
    503: "Service Unavailable",
    504: "Gateway Timeout",
    505: "HTTP Version Not Supported",
}
