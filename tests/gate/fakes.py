"""A small HTTP server for faults, a fake daemon, and a client that sends raw bytes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slmguard.core.model import Level
from slmguard.gate.service import Gate, listening_socket
from slmguard.gate.settings import GateSettings

if TYPE_CHECKING:
    from typing_extensions import Self

CHAT = "/v1/chat/completions"


@dataclass
class Seen:
    """A request as the fake server got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Seen, asyncio.StreamWriter], Awaitable[None]]


async def ok_json(seen: Seen, writer: asyncio.StreamWriter) -> None:
    document = {"object": "chat.completion", "choices": [{"message": {"role": "assistant", "content": "hi"}}]}
    await send(writer, 200, json.dumps(document).encode())


async def send(
    writer: asyncio.StreamWriter, status: int, body: bytes, content_type: str = "application/json", extra: str = ""
) -> None:
    writer.write(
        f"HTTP/1.1 {status} Fake\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n{extra}\r\n".encode()
        + body
    )
    await writer.drain()


async def begin_stream(writer: asyncio.StreamWriter, content_type: str = "text/event-stream") -> None:
    writer.write(f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
    await writer.drain()


async def chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
    await writer.drain()


async def end_stream(writer: asyncio.StreamWriter) -> None:
    writer.write(b"0\r\n\r\n")
    await writer.drain()


@dataclass
class FakeServer:
    """Answers with `answer`; `seen` has what arrived. Can be stopped and started on the same port."""

    answer: Answer = ok_json
    seen: list[Seen] = field(default_factory=list)
    port: int = 0
    gone: int = 0  # connections that the other side closed
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    client_left: asyncio.Event = field(default_factory=asyncio.Event)
    _server: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        listener = listening_socket("127.0.0.1", self.port)
        self._server = await asyncio.start_server(self._serve, sock=listener)
        self.port = listener.getsockname()[1]

    async def stop(self) -> None:
        """Stop as a killed process does: every connection is reset."""
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        answers: list[asyncio.Future[Any]] = []
        try:
            while True:
                seen = await _read_request(reader)
                self.seen.append(seen)
                self.arrived.set()
                answering = asyncio.ensure_future(self.answer(seen, writer))
                leaving = asyncio.ensure_future(reader.read(1))
                answers = [answering, leaving]
                await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    self.gone += 1
                    self.client_left.set()
                    answering.cancel()
                    await asyncio.gather(answering, return_exceptions=True)
                    return
                leaving.cancel()
                answering.result()
                with contextlib.suppress(asyncio.CancelledError):
                    await leaving
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError):
            pass
        finally:
            for started in answers:
                started.cancel()
            await asyncio.gather(*answers, return_exceptions=True)
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()


async def _read_request(reader: asyncio.StreamReader) -> Seen:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")[:-2]
    method, target, _version = first.split(" ")
    headers = [(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)]
    seen = Seen(method, target, headers, b"")
    if (seen.header("Transfer-Encoding") or "") == "chunked":
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            data = await reader.readexactly(size + 2)
            if size == 0:
                break
            seen.body += data[:-2]
    elif length := int(seen.header("Content-Length") or 0):
        seen.body = await reader.readexactly(length)
    return seen


@dataclass
class Reply:
    """A parsed answer of the gate."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((v for n, v in self.headers if n.lower() == name.lower()), None)

    def json(self) -> Any:
        return json.loads(self.body)


@contextlib.asynccontextmanager
async def gate_before(
    server: FakeServer | None, level: Level | None = None, key: str | None = None, **settings: Any
) -> AsyncIterator[Gate]:
    """A gate on a free port in front of a fake server."""
    port = server.port if server is not None else free_port()
    values: dict[str, Any] = {"control": "none", "upstream_retry_s": 1.0, "stop_timeout_s": 1.0, **settings}
    values.setdefault("upstream", f"http://127.0.0.1:{port}")
    chosen = GateSettings.from_mapping({"listen": "127.0.0.1:0", **values})
    gate = Gate(chosen, level, key)
    await gate.start([listening_socket(*chosen.listen_address)])
    try:
        yield gate
    finally:
        await gate.stop()


async def until(condition: Callable[[], bool], limit_s: float = 20) -> None:
    """Wait for something that has no event of its own."""

    async def wait() -> None:
        while not condition():  # noqa: ASYNC110  # the states of other components, as a test sees them
            await asyncio.sleep(0.002)

    await asyncio.wait_for(wait(), limit_s)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


async def open_to(gate: Gate) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    return await asyncio.open_connection("127.0.0.1", gate.port)


async def ask(
    gate: Gate, method: str, target: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> Reply:
    """One request on a connection of its own."""
    lines = {"Host": "gate", "Connection": "close", **(headers or {})}
    if body is not None and "Transfer-Encoding" not in lines:
        lines["Content-Length"] = str(len(body))
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in lines.items()) + "\r\n"
    return await ask_raw(gate, head.encode("latin-1") + (body or b""), head_only=method == "HEAD")


async def ask_raw(gate: Gate, raw: bytes, *, head_only: bool = False) -> Reply:
    reader, writer = await open_to(gate)
    try:
        writer.write(raw)
        await writer.drain()
        return await asyncio.wait_for(read_reply(reader, head_only=head_only), 30)
    finally:
        writer.close()


async def read_reply(reader: asyncio.StreamReader, *, head_only: bool = False) -> Reply:
    while True:
        head = await reader.readuntil(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")[:-2]
        status = int(first.split(" ")[1])
        if status != 100:
            break
    reply = Reply(status, [(n, v.strip()) for n, _, v in (line.partition(":") for line in lines)], b"")
    if head_only or status in (204, 304):
        return reply
    if reply.header("Transfer-Encoding") == "chunked":
        while size := int(await reader.readline(), 16):
            reply.body += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
    elif (length := reply.header("Content-Length")) is not None:
        reply.body = await reader.readexactly(int(length))
    else:
        reply.body = await reader.read()
    return reply


def chat(**fields: Any) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}).encode()


class FakeDaemon:
    """The daemon's end of the control socket."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.reports: list[dict[str, Any]] = []
        self.reported = asyncio.Event()
        self.subscribed = asyncio.Event()
        self.state: dict[str, Any] = {
            "type": "state",
            "level": "normal",
            "clamp_max_tokens": None,
            "keep_recent_tokens": None,
            "refuse": False,
            "retry_after_s": 10,
            "hold": False,
            "hold_deadline_s": None,
            "cut": False,
            "unit": "llama-server.service",
        }
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_unix_server(self._serve, self.path)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self.die()

    async def die(self) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()

    async def push(self, **changes: Any) -> None:
        self.state.update(changes)
        for writer in self._writers:
            writer.write(json.dumps(self.state).encode() + b"\n")
            await writer.drain()

    async def report_where(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        async def wait() -> dict[str, Any]:
            while not (self.reports and wanted(self.reports[-1])):
                self.reported.clear()
                await self.reported.wait()
            return self.reports[-1]

        return await asyncio.wait_for(wait(), 20)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            while raw := await reader.readline():
                line = json.loads(raw)
                if line["cmd"] == "subscribe":
                    assert line["role"] == "gate"
                    self._writers.add(writer)
                    writer.write(json.dumps(self.state).encode() + b"\n")
                    self.subscribed.set()
                else:
                    self.reports.append(line)
                    self.reported.set()
        self._writers.discard(writer)
        writer.close()
