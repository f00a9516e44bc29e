"""The connection pool to the inference server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from slmguard.gate.settings import GateSettings

# What aiohttp would add by itself; the client's headers are to arrive as they were sent.
_NO_AUTO_HEADERS = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")
# Longest header line of a server's answer; llama-server sends short ones.
_MAX_LINE_BYTES = 32 * 1024
_READ_BYTES = 32 * 1024


class UpstreamLostError(Exception):
    """The server could not be reached, or it closed the connection before its answer began.

    `connected` tells whether it may have seen the request.
    """

    def __init__(self, message: str, *, connected: bool) -> None:
        super().__init__(message)
        self.connected = connected


@dataclass(frozen=True, slots=True)
class UpstreamRequest:
    """One request as it is sent; `body` is bytes when it can be sent again."""

    method: str
    target: str
    headers: CIMultiDict[str]
    body: bytes | AsyncIterator[bytes] | None

    @property
    def repeatable(self) -> bool:
        """Whether it can be sent once more from the start."""
        return self.body is None or isinstance(self.body, bytes)


class Upstream:
    """Sends requests over kept connections; `renew` drops all of them."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self._base = settings.upstream.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self._closing: set[asyncio.Task[None]] = set()

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            settings = self._settings
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=15.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                skip_auto_headers=_NO_AUTO_HEADERS,
                timeout=aiohttp.ClientTimeout(
                    total=None,
                    sock_connect=settings.connect_timeout_s,
                    sock_read=settings.upstream_idle_timeout_s,
                ),
                read_bufsize=_READ_BYTES,
                max_line_size=_MAX_LINE_BYTES,
                max_field_size=_MAX_LINE_BYTES,
            )
        return self._session

    async def send(self, request: UpstreamRequest) -> aiohttp.ClientResponse:
        """The answer once its headers are here; raises UpstreamLostError."""
        try:
            return await self._open().request(
                request.method,
                URL(self._base + request.target, encoded=True),
                headers=request.headers,
                data=request.body,
                allow_redirects=False,
            )
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise UpstreamLostError(str(error), connected=False) from error
        except (aiohttp.ClientError, asyncio.TimeoutError, ConnectionError) as error:
            raise UpstreamLostError(str(error) or type(error).__name__, connected=True) from error

    async def is_ready(self, path: str, timeout_s: float = 2.0) -> bool:
        """Whether the server answers its health path with anything but an error of its own (5xx)."""
        try:
            async with self._open().get(
                URL(self._base + path, encoded=True),
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                return response.status < 500
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError):
            return False

    async def post_json(
        self, path: str, document: object, headers: dict[str, str], timeout_s: float, limit_bytes: int
    ) -> tuple[int, bytes]:
        """Status and body (at most `limit_bytes`) of a small question; raises UpstreamLostError."""
        try:
            async with self._open().post(
                URL(self._base + path, encoded=True),
                json=document,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=timeout_s),
                allow_redirects=False,
            ) as response:
                pieces: list[bytes] = []
                size = 0
                async for piece in response.content.iter_any():
                    size += len(piece)
                    if size > limit_bytes:
                        response.close()
                        raise UpstreamLostError("answer too long", connected=True)
                    pieces.append(piece)
                return response.status, b"".join(pieces)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise UpstreamLostError(str(error), connected=True) from error

    def renew(self) -> None:
        """Close every connection, idle or in use, and start afresh with the next request.

        A llama-server that is told to stop waits for its connected clients to go.
        """
        session, self._session = self._session, None
        if session is not None:
            task = asyncio.get_running_loop().create_task(session.close())
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Close for good."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()
        if self._closing:
            await asyncio.gather(*self._closing, return_exceptions=True)
