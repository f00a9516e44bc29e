"""A server that answers as fast as Python can: `fast_server.py PORT`. Measures the gate, not a model.

POST with `"stream": true` gets `"tokens"` events `"every_ms"` apart, each with its sending time (monotonic ns,
the same clock in every process of one machine); any other request gets 300 bytes of JSON after `"after_ms"`.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

_ANSWER = json.dumps({"choices": [{"message": {"role": "assistant", "content": "x" * 200}}]}).encode()
_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(_ANSWER)
_STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


class FastServer(asyncio.Protocol):
    """One connection; no pipelining."""

    def __init__(self) -> None:
        self._buffer = b""
        self._transport: asyncio.Transport | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  # for the type checker
        self._transport = transport

    def connection_lost(self, _exc: BaseException | None) -> None:
        """Stop streaming."""
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        """Answer as soon as a request is whole."""
        self._buffer += data
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return
        at = self._buffer[:head_end].lower().find(b"content-length:")
        length = int(self._buffer[at + 15 : head_end].split(b"\r\n", 1)[0]) if at >= 0 else 0
        end = head_end + 4 + length
        if len(self._buffer) < end:
            return
        body, self._buffer = self._buffer[head_end + 4 : end], self._buffer[end:]
        wish = json.loads(body) if body else {}
        if wish.get("stream"):
            self._task = asyncio.ensure_future(self._stream(wish["tokens"], wish["every_ms"] / 1000))
        elif wish.get("after_ms"):
            asyncio.get_running_loop().call_later(wish["after_ms"] / 1000, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(_HEAD + _ANSWER)

    async def _stream(self, tokens: int, every_s: float) -> None:
        assert self._transport is not None  # noqa: S101  # for the type checker
        self._transport.write(_STREAM_HEAD)
        for number in range(tokens):
            event = b'data: {"n": %d, "sent_ns": %d}\n\n' % (number, time.monotonic_ns())
            self._transport.write(b"%x\r\n%s\r\n" % (len(event), event))
            await asyncio.sleep(every_s)
        self._transport.write(b"0\r\n\r\n")


async def main() -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(FastServer, "127.0.0.1", int(sys.argv[1]), backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
