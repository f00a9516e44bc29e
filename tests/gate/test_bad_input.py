"""Whatever arrives, the gate answers clearly or closes, keeps its memory, and opens no way around."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from slmguard.core.model import Level
from slmguard.gate.service import Gate
from tests.gate.fakes import (
    CHAT,
    FakeServer,
    Seen,
    ask,
    ask_raw,
    begin_stream,
    chat,
    chunk,
    gate_before,
    open_to,
    until,
)

SMUGGLED = b"GET /smuggled HTTP/1.1\r\nHost: g\r\n\r\n"


async def whole_answer(gate: Gate, raw: bytes) -> bytes:
    """Everything the gate sends until it closes; the client says nothing more."""
    reader, writer = await open_to(gate)
    try:
        writer.write(raw)
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    "raw",
    [
        b"POST /x HTTP/1.1\r\nHost: g\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nContent-Length: 0\r\nContent-Length: 36\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nContent-Length: +5\r\n\r\nhello" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nContent-Length: -5\r\n\r\nhello" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nContent-Length: 5, 5\r\n\r\nhello" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\nx\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nx\r\n0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nxY0\r\n\r\n" + SMUGGLED,
        b"POST /x HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nx",
        b"GET /x HTTP/1.1\r\nHost: g\r\nX: a\r\n b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: g\r\nX: a\x00b\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: g\r\nX y: a\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: g\r\nX: a\rb: c\r\n\r\n",
        b"GET /x HTTP/1.1\r\nHost: g\r\nX: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: g\r\n\r\n",
        b"GET /x HTTP/1.1\r\n" + b"".join(b"X-%d: a\r\n" % n for n in range(500)) + b"\r\n",
        b"GET /x HTTP/3.7\r\nHost: g\r\n\r\n",
        b"GET /x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GE\x00T /x HTTP/1.1\r\n\r\n",
    ],
)
def test_a_request_that_could_be_read_in_two_ways_is_refused_and_the_connection_closed(raw: bytes) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, header_timeout_s=1) as gate:
            text = await whole_answer(gate, raw)
            assert text == b"" or text.startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"HTTP/1.1 505 "))
            assert text.count(b"\r\n\r\n") <= 1
            assert all(seen.target == "/x" for seen in server.seen)
            assert (await ask(gate, "GET", "/alive")).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("line", "status"),
    [
        ("GET http://elsewhere/ HTTP/1.1", 400),
        ("GET http://127.0.0.1/v1/models HTTP/1.1", 400),
        ("POST http://g/v1/chat/completions HTTP/1.1", 400),
        ("CONNECT elsewhere:443 HTTP/1.1", 405),
        ("GET * HTTP/1.1", 400),
        ("GET /a\\b HTTP/1.1", 400),
    ],
)
def test_the_gate_is_no_forward_proxy(line: str, status: int) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            reply = await ask_raw(gate, f"{line}\r\nHost: g\r\nConnection: close\r\n\r\n".encode())
            assert reply.status == status
            assert server.seen == []

    asyncio.run(scenario())


def test_an_upgrade_is_not_carried_on() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            raw = b"GET /x HTTP/1.1\r\nHost: g\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
            assert (await ask_raw(gate, raw)).status == 200
            assert server.seen[0].header("Upgrade") is None
            assert server.seen[0].header("Connection") is None

    asyncio.run(scenario())


def test_headers_named_in_connection_do_not_travel_but_the_vital_ones_do() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            wish = "close, X-Mine, Authorization, Content-Length"
            headers = {"Connection": wish, "X-Mine": "1", "Authorization": "Bearer k"}
            assert (await ask(gate, "POST", CHAT, chat(), headers)).status == 200
            seen = server.seen[0]
            assert seen.header("X-Mine") is None
            assert seen.header("Authorization") == "Bearer k"
            assert seen.body == chat()

    asyncio.run(scenario())


def test_slow_headers_end_the_connection() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, header_timeout_s=0.2) as gate:
            assert await whole_answer(gate, b"GET /x HTTP/1.1\r\nHos") == b""
            assert server.seen == []

    asyncio.run(scenario())


def test_a_slow_body_is_answered_with_408() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, body_timeout_s=0.2) as gate:
            raw = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: 100\r\n\r\n".encode() + b"{"
            assert (await whole_answer(gate, raw)).startswith(b"HTTP/1.1 408 ")
            assert gate.state.buffers.used_bytes == 0
            assert server.seen == []

    asyncio.run(scenario())


def test_a_client_that_never_reads_its_stream_is_cut_off() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await begin_stream(writer)
            while True:
                await chunk(writer, b"data: " + b"x" * 60_000 + b"\n\n")

        async with FakeServer(answer) as server, gate_before(server, send_timeout_s=0.5) as gate:
            _reader, writer = await open_to(gate)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            body = chat(stream=True)
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await until(lambda: gate.state.admission.at_server == 1)
            await until(lambda: gate.state.admission.at_server == 0)
            await until(lambda: not server._writers)
            assert gate.state.admission.at_server == 0
            writer.transport.abort()

    asyncio.run(scenario())


def test_a_server_that_never_answers_is_given_up() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with FakeServer(answer) as server, gate_before(server, upstream_idle_timeout_s=1) as gate:
            reply = await ask(gate, "POST", CHAT, chat())
            assert (reply.status, reply.json()["error"]["code"]) == (504, "upstream_timeout")
            await until(lambda: server.gone == 1)

    asyncio.run(scenario())


def test_more_idle_connections_than_allowed_push_the_oldest_out_and_service_goes_on() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, max_connections=20) as gate:
            idle = [await open_to(gate) for _ in range(100)]
            assert (await ask(gate, "POST", CHAT, chat())).status == 200
            assert len(gate.table.connections) <= 20
            assert await asyncio.wait_for(idle[0][0].read(), 5) == b""
            for _, writer in idle:
                writer.close()

    asyncio.run(scenario())


def test_when_every_connection_is_busy_a_new_one_is_told_so() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with FakeServer(answer) as server, gate_before(server, max_connections=8, max_inflight=8) as gate:
            busy = [await open_to(gate) for _ in range(8)]
            body = chat()
            for _, writer in busy:
                writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await until(lambda: len(server.seen) == 8)
            text = await whole_answer(gate, b"")
            assert text.startswith(b"HTTP/1.1 503 ")
            head, _, content = text.partition(b"\r\n\r\n")
            assert f"Content-Length: {len(content)}".encode() in head
            for _, writer in busy:
                writer.close()

    asyncio.run(scenario())


def test_a_flood_of_pipelined_requests_does_not_pile_up() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with FakeServer(answer) as server, gate_before(server) as gate:
            _, writer = await open_to(gate)
            flood = b"GET /x HTTP/1.1\r\nHost: g\r\n\r\n" * 200_000
            writer.write(flood)
            await server.arrived.wait()
            await asyncio.sleep(0.2)
            assert writer.transport.get_write_buffer_size() > len(flood) // 10
            writer.transport.abort()

    asyncio.run(scenario())


def test_a_half_closed_client_counts_as_gone() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with FakeServer(answer) as server, gate_before(server) as gate:
            reader, writer = await open_to(gate)
            body = chat()
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await server.arrived.wait()
            writer.write_eof()
            await asyncio.wait_for(server.client_left.wait(), 5)
            assert await reader.read() == b""
            writer.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "target", ["/v1/chat/completions/", "//v1/chat/completions", "/v1/%63hat/completions", "/V1/CHAT/completions"]
)
def test_no_spelling_of_the_path_gets_past_a_refusal(target: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, Level.HIGH) as gate:
            assert (await ask(gate, "POST", target, chat())).status == 503
            assert server.seen == []

    asyncio.run(scenario())


def test_a_header_value_cannot_inject_another_header() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nX-A: b\rX-Evil: 1\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            reply = await ask(gate, "GET", "/x")
            assert reply.header("X-Evil") is None

    asyncio.run(scenario())


LOCAL = ["/slmguard/health", "/slmguard/metrics", "/api/v1/context/trim"]
KEY = "0123456789abcdef0123"


@pytest.mark.parametrize("target", LOCAL)
@pytest.mark.parametrize("foreign", ["X-Forwarded-For", "Forwarded", "Via", "Origin"])
def test_control_endpoints_are_not_for_peers_that_speak_for_others(target: str, foreign: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            assert (await ask(gate, "GET", target, headers={foreign: "10.0.0.1"})).status == 403
            assert (await ask(gate, "GET", target)).status == 200
            assert server.seen == []

    asyncio.run(scenario())


@pytest.mark.parametrize("target", LOCAL)
def test_with_a_key_they_answer_its_holders(target: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, key=KEY) as gate:
            far: dict[str, str] = {"X-Forwarded-For": "10.0.0.1"}
            missing = await ask(gate, "GET", target, headers=far)
            assert missing.status == 401
            assert missing.header("WWW-Authenticate") is not None
            wrong = await ask(gate, "GET", target, headers={**far, "Authorization": "Bearer wrong"})
            assert wrong.status == 401
            for right in ({"Authorization": f"Bearer {KEY}"}, {"X-Slmguard-Key": KEY}):
                assert (await ask(gate, "GET", target, headers={**far, **right})).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "order",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"keep_recent": 0}',
        b'{"keep_recent": -5}',
        b'{"keep_recent": true}',
        b'{"keep_recent": "512"}',
        b'{"keep_recent": 1.5}',
        b'{"keep_recent": 99999999999}',
        b'{"keep_resent": 512}',
        b'{"keep_recent": 512, "more": 1}',
        b"[" * 3000,
        b"x" * 9000,
    ],
)
def test_a_trim_order_that_makes_no_sense_changes_nothing(order: bytes) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            reply = await ask(gate, "POST", "/api/v1/context/trim", order)
            assert reply.status == 400
            assert reply.json()["error"]["code"] == "bad_order"
            assert gate.state.window_tokens is None
            assert server.seen == []

    asyncio.run(scenario())


def test_a_misspelt_key_gets_the_nearest_name() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            reply = await ask(gate, "POST", "/api/v1/context/trim", b'{"keep_resent": 512}')
            assert "did you mean `keep_recent`?" in reply.json()["error"]["message"]

    asyncio.run(scenario())


def test_random_bytes_never_crash_the_gate(caplog: pytest.LogCaptureFixture) -> None:
    """Seeded mutations of good requests; afterwards the gate still serves and has logged no traceback."""

    async def scenario() -> None:
        rng = random.Random(7)  # noqa: S311  # not for secrets
        body = chat(max_tokens=5)
        good = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
        settings: dict[str, Any] = {"header_timeout_s": 0.3, "body_timeout_s": 0.3}
        async with FakeServer() as server, gate_before(server, Level.ELEVATED, **settings) as gate:

            async def one() -> None:
                raw = bytearray(good)
                for _ in range(rng.randint(1, 6)):
                    at = rng.randrange(len(raw))
                    if rng.random() < 0.5:
                        raw[at] = rng.randrange(256)
                    else:
                        del raw[at : at + rng.randint(1, 9)]
                reader, writer = await open_to(gate)
                writer.write(bytes(raw))
                writer.write_eof()
                await reader.read()
                writer.close()

            for _ in range(10):
                await asyncio.wait_for(asyncio.gather(*(one() for _ in range(30)), return_exceptions=True), 30)
            assert (await ask(gate, "POST", CHAT, chat())).status == 200
            assert gate.state.buffers.used_bytes == 0

    asyncio.run(scenario())
    assert "Traceback" not in caplog.text
