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
# Shorter than the keep-alive of the servers, so that it is the gate which closes.
_KEPT_S = 4.0


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


class Pool:
    """Kept connections of one life of the server; closed once it is retired and nobody uses it.

    Closing aiohttp's session under a running request would leave that request waiting for ever, for the
    response's reader is not told (seen with aiohttp 3.14).
    """

    def __init__(self, settings: GateSettings) -> None:
        self._users = 0
        self._retired = False
        self._closing: asyncio.Task[None] | None = None
        self.session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEPT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            trust_env=False,
            skip_auto_headers=_NO_AUTO_HEADERS,
            # Silence of the server is noticed by the gate's sweep: a timer set anew for every token is dear.
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_timeout_s),
            read_bufsize=_READ_BYTES,
            max_line_size=_MAX_LINE_BYTES,
            max_field_size=_MAX_LINE_BYTES,
        )

    def __enter__(self) -> aiohttp.ClientSession:
        self._users += 1
        return self.session

    def __exit__(self, *_exc: object) -> None:
        self._users -= 1
        self._close_when_unused()

    def retire(self) -> None:
        """Give no more connections; close what is idle as soon as nobody uses the pool."""
        self._retired = True
        self._close_when_unused()

    async def close(self) -> None:
        """Close now; for the end of the process."""
        self._retired = True
        await (self._closing or self.session.close())

    def _close_when_unused(self) -> None:
        if self._retired and self._users == 0 and self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self.session.close())


class Upstream:
    """Sends requests over kept connections; `renew` lets go of all of them."""

    def __init__(self, settings: GateSettings) -> None:
        self._settings = settings
        self._base = settings.upstream.rstrip("/")
        self._current: Pool | None = None
        self._old: list[Pool] = []

    def pool(self) -> Pool:
        """The pool to use for one request, as a context that lasts until its answer has been read."""
        if self._current is None:
            self._current = Pool(self._settings)
        return self._current

    async def send(self, session: aiohttp.ClientSession, request: UpstreamRequest) -> aiohttp.ClientResponse:
        """The answer once its headers are here; raises UpstreamLostError."""
        try:
            return await session.request(
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
            with self.pool() as session:
                async with session.get(
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
            with self.pool() as session:
                async with session.post(
                    URL(self._base + path, encoded=True),
                    json=document,
                    headers=headers,
                    timeout=aiohttp.ClientTimeout(total=timeout_s),
                    allow_redirects=False,
                ) as response:
                    return response.status, await _bounded(response, limit_bytes)
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            raise UpstreamLostError(str(error), connected=True) from error

    def renew(self) -> None:
        """Close idle connections now and those in use when they are done; the next request opens a new one.

        A llama-server that is told to stop waits for its connected clients to go.
        """
        pool, self._current = self._current, None
        if pool is not None:
            self._old = [old for old in self._old if not old.session.closed]
            self._old.append(pool)
            pool.retire()

    async def close(self) -> None:
        """Close for good."""
        self.renew()
        await asyncio.gather(*(pool.close() for pool in self._old), return_exceptions=True)


async def _bounded(response: aiohttp.ClientResponse, limit_bytes: int) -> bytes:
    pieces: list[bytes] = []
    size = 0
    async for piece in response.content.iter_any():
        size += len(piece)
        if size > limit_bytes:
            response.close()
            raise UpstreamLostError("answer too long", connected=True)
        pieces.append(piece)
    return b"".join(pieces)
