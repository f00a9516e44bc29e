"""At level normal nothing is changed on the way, in either direction."""

from __future__ import annotations

import asyncio
import json

import pytest

from slmguard.core.model import Level
from tests.gate.fakes import (
    CHAT,
    FakeServer,
    Seen,
    ask,
    ask_raw,
    begin_stream,
    chat,
    chunk,
    end_stream,
    gate_before,
    open_to,
    read_reply,
    send,
)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "REPORT"])
def test_any_method_and_target_arrives_as_it_was_sent(method: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            target = "/some/%7Epath%2Fx//y/../z?q=a%20b&q=+&%C3%A9=1&empty="
            body = b"\x00\xff raw" if method != "GET" else None
            reply = await ask(gate, method, target, body, {"X-Odd-CASE": "Kept", "Accept-Encoding": "gzip"})
            assert reply.status == 200
            seen = server.seen[0]
            assert (seen.method, seen.target) == (method, target)
            assert seen.body == (body or b"")
            assert ("X-Odd-CASE", "Kept") in seen.headers
            assert ("Accept-Encoding", "gzip") in seen.headers
            assert ("Host", "gate") in seen.headers
            assert seen.header("User-Agent") is None
            assert seen.header("Connection") is None

    asyncio.run(scenario())


def test_a_chat_body_arrives_byte_for_byte_at_level_normal() -> None:
    async def scenario() -> None:
        body = b' { "max_tokens" : 1e5, "x": 1.0000000000000000001, "max_tokens":-1 , "messages":[ ] } '
        async with FakeServer() as server, gate_before(server) as gate:
            await ask(gate, "POST", CHAT, body)
            assert server.seen[0].body == body

    asyncio.run(scenario())


def test_status_reason_headers_and_body_of_the_server_reach_the_client() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(
            b"HTTP/1.1 418 Short and Stout\r\nX-Twice: 1\r\nX-Twice: 2\r\nserver: llama.cpp\r\n"
            b"Connection: X-Hop\r\nX-Hop: gone\r\nKeep-Alive: timeout=5, max=100\r\nContent-Encoding: gzip\r\n"
            b"Content-Length: 4\r\n\r\n\x1f\x8b\x00\x00"
        )
        await writer.drain()

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            reply = await ask(gate, "GET", "/x")
            assert reply.status == 418
            assert reply.body == b"\x1f\x8b\x00\x00"
            names = [name for name, _ in reply.headers]
            assert names.count("X-Twice") == 2
            assert ("server", "llama.cpp") in reply.headers
            assert reply.header("X-Hop") is None
            assert reply.header("Keep-Alive") is None
            assert reply.header("Date") is None

    asyncio.run(scenario())


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 501, 503])
def test_errors_of_the_server_are_passed_on_as_they_are(status: int) -> None:
    body = b'{"error":{"code":1,"message":"Loading model","type":"unavailable_error"}}'

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await send(writer, status, body, extra="Retry-After: 3\r\n")

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            reply = await ask(gate, "POST", CHAT, chat())
            assert (reply.status, reply.body, reply.header("Retry-After")) == (status, body, "3")
            assert len(server.seen) == 1

    asyncio.run(scenario())


def test_a_request_id_is_kept_or_made_and_told_to_both_sides() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            kept = await ask(gate, "GET", "/x", headers={"X-Request-Id": "mine-1"})
            made = await ask(gate, "GET", "/x")
            bad = await ask(gate, "GET", "/x", headers={"X-Request-Id": "sp ace"})
            assert kept.header("X-Request-Id") == server.seen[0].header("X-Request-Id") == "mine-1"
            assert made.header("X-Request-Id") == server.seen[1].header("X-Request-Id")
            assert len(made.header("X-Request-Id") or "") == 32
            assert bad.header("X-Request-Id") != "sp ace"

    asyncio.run(scenario())


def test_authorization_is_forwarded_and_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        caplog.set_level("DEBUG")
        async with FakeServer() as server, gate_before(server, Level.HIGH) as gate:
            secret = {"Authorization": "Bearer sk-very-secret", "X-Api-Key": "k-secret"}
            await ask(gate, "GET", "/v1/models", headers=secret)
            refused = await ask(gate, "POST", CHAT, chat(), headers=secret)
            assert refused.status == 503
            assert server.seen[0].header("Authorization") == "Bearer sk-very-secret"
            assert "secret" not in caplog.text

    asyncio.run(scenario())


def test_events_are_passed_on_one_by_one_and_not_collected() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await begin_stream(writer)
            await chunk(writer, b"data: 1\n\n")
            await go.wait()
            await chunk(writer, b"data: 2\n\n")
            await end_stream(writer)

        async with FakeServer(answer) as server, gate_before(server) as gate:
            reader, writer = await open_to(gate)
            body = chat(stream=True)
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            first = await asyncio.wait_for(reader.readuntil(b"data: 1\n\n\r\n"), 5)
            assert b"data: 2" not in first
            assert not go.is_set(), "the first event came while the second did not exist yet"
            go.set()
            await asyncio.wait_for(reader.readuntil(b"data: 2\n\n\r\n0\r\n\r\n"), 5)
            writer.close()

    asyncio.run(scenario())


def test_a_client_that_leaves_cancels_its_generation_at_once() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await begin_stream(writer)
            await chunk(writer, b"data: 1\n\n")
            await asyncio.Event().wait()

        async with FakeServer(answer) as server, gate_before(server) as gate:
            reader, writer = await open_to(gate)
            body = chat(stream=True)
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await asyncio.wait_for(reader.readuntil(b"data: 1"), 5)
            writer.transport.abort()
            await asyncio.wait_for(server.client_left.wait(), 5)
            assert gate.state.admission.at_server == 0

    asyncio.run(scenario())


def test_a_client_that_leaves_before_the_first_byte_cancels_too() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with FakeServer(answer) as server, gate_before(server) as gate:
            _reader, writer = await open_to(gate)
            body = chat()
            writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            await asyncio.wait_for(server.arrived.wait(), 5)
            assert not server.client_left.is_set()
            writer.close()
            await asyncio.wait_for(server.client_left.wait(), 5)

    asyncio.run(scenario())


def test_an_upload_streams_to_the_server_without_being_collected() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            piece = b"x" * 65536
            raw = b"POST /upload HTTP/1.1\r\nHost: g\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
            raw += b"".join(b"10000\r\n" + piece + b"\r\n" for _ in range(40)) + b"0\r\n\r\n"
            reply = await ask_raw(gate, raw)
            assert reply.status == 200
            assert server.seen[0].body == piece * 40
            assert gate.state.buffers.used_bytes == 0

    asyncio.run(scenario())


def test_connections_are_kept_and_used_again() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            reader, writer = await open_to(gate)
            for number in range(3):
                writer.write(f"GET /n/{number} HTTP/1.1\r\nHost: g\r\n\r\n".encode())
                assert (await read_reply(reader)).status == 200
            writer.close()
            assert [seen.target for seen in server.seen] == ["/n/0", "/n/1", "/n/2"]
            assert len(server._writers) == 1

    asyncio.run(scenario())


def test_pipelined_requests_are_answered_in_their_order() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await send(writer, 200, seen.target.encode())

        async with FakeServer(answer) as server, gate_before(server) as gate:
            reader, writer = await open_to(gate)
            writer.write(b"".join(f"GET /{n} HTTP/1.1\r\nHost: g\r\n\r\n".encode() for n in range(20)))
            assert [(await read_reply(reader)).body for _ in range(20)] == [f"/{n}".encode() for n in range(20)]
            writer.close()

    asyncio.run(scenario())


def test_head_keeps_the_length_and_sends_no_body() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1234\r\n\r\n")
        await writer.drain()

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            reply = await ask(gate, "HEAD", "/x")
            assert (reply.status, reply.header("Content-Length"), reply.body) == (200, "1234", b"")

    asyncio.run(scenario())


def test_an_old_client_without_chunks_gets_a_stream_that_ends_with_the_connection() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await begin_stream(writer)
        await chunk(writer, b"data: 1\n\n")
        await end_stream(writer)

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            body = chat(stream=True)
            raw = f"POST {CHAT} HTTP/1.0\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            reply = await ask_raw(gate, raw)
            assert reply.header("Transfer-Encoding") is None
            assert reply.body == b"data: 1\n\n"

    asyncio.run(scenario())


def test_expect_100_continue_is_answered_before_the_body_comes() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            reader, writer = await open_to(gate)
            body = chat()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n"
            writer.write(head.encode() + b"Expect: 100-continue\r\n\r\n")
            assert await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 5) == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(body)
            assert (await read_reply(reader)).status == 200
            assert server.seen[0].header("Expect") is None
            writer.close()

    asyncio.run(scenario())


def test_a_server_that_closes_in_mid_stream_is_told_to_the_client_as_an_event() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        await begin_stream(writer)
        await chunk(writer, b"data: 1\n\n")
        writer.transport.abort()

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            reply = await ask(gate, "POST", CHAT, chat(stream=True))
            assert reply.body.startswith(b"data: 1\n\n")
            event = reply.body.removeprefix(b"data: 1\n\n").strip().removeprefix(b"data: ")
            assert json.loads(event)["error"]["code"] == "upstream_closed"

    asyncio.run(scenario())


def test_a_server_that_closes_in_mid_body_breaks_the_clients_connection_off() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await ask(gate, "GET", "/file")

    asyncio.run(scenario())


def test_without_a_server_the_client_gets_503_after_the_time_for_retries() -> None:
    async def scenario() -> None:
        async with gate_before(None, upstream_retry_s=0.2) as gate:
            reply = await ask(gate, "POST", CHAT, chat())
            assert reply.status == 503
            assert reply.json()["error"]["code"] == "upstream_unavailable"
            assert (await ask(gate, "GET", "/health")).status == 503

    asyncio.run(scenario())


def test_an_order_that_the_server_may_have_carried_out_is_not_sent_twice() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            assert (await ask(gate, "POST", "/models/unload", b"{}")).status == 502
            assert len(server.seen) == 1

    asyncio.run(scenario())


def test_a_request_that_kills_the_server_is_sent_twice_and_no_more() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            reply = await ask(gate, "POST", CHAT, chat())
            assert reply.status == 502
            assert reply.json()["error"]["code"] == "upstream_closed"
            assert len(server.seen) == 2

    asyncio.run(scenario())
