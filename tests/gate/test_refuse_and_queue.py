"""Refusals by level, places at the server, and the queue in front of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slmguard.core.model import Level
from slmguard.gate.admission import Admission
from slmguard.gate.refusal import RefusedError
from slmguard.gate.settings import GateSettings
from tests.gate.fakes import (
    CHAT,
    FakeServer,
    Seen,
    ask,
    ask_raw,
    chat,
    gate_before,
    ok_json,
    open_to,
    read_reply,
    until,
)


@pytest.mark.parametrize("level", [Level.HIGH, Level.CRITICAL])
@pytest.mark.parametrize(
    ("path", "code_of"),
    [
        (CHAT, lambda d: d["error"]["code"]),
        ("/completion", lambda d: d["error"]["code"]),
        ("/v1/embeddings", lambda d: d["error"]["code"]),
        ("/v1/messages", lambda d: d["error"]["code"]),
        ("/api/v1/generate", lambda d: d["detail"]["code"]),
        ("/api/chat", lambda d: "memory_pressure" if "short of memory" in d["error"] else d),
    ],
)
def test_generation_is_refused_from_level_high_in_the_shape_of_its_api(level: Level, path: str, code_of: Any) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, level, retry_after_s=7) as gate:
            reply = await ask(gate, "POST", path, chat())
            assert reply.status == 503
            assert reply.header("Retry-After") == "7"
            assert reply.header("Content-Type") == "application/json"
            assert code_of(reply.json()) == "memory_pressure"
            assert server.seen == []

    asyncio.run(scenario())


@pytest.mark.parametrize("target", ["/health", "/metrics", "/slots", "/v1/models", "/props", "/tokenize"])
def test_everything_else_passes_at_every_level(target: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, Level.CRITICAL) as gate:
            method, body = ("POST", b"{}") if target == "/tokenize" else ("GET", None)
            assert (await ask(gate, method, target, body)).status == 200
            assert (await ask(gate, "OPTIONS", CHAT)).status == 200

    asyncio.run(scenario())


def test_a_large_body_is_refused_before_it_is_read() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, Level.HIGH) as gate:
            head = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: 99999999\r\n\r\n".encode()
            assert (await ask_raw(gate, head + b"{")).status == 503

    asyncio.run(scenario())


def test_the_clamp_is_told_in_a_header_and_reaches_the_server() -> None:
    async def scenario() -> None:
        settings: dict[str, Any] = {"clamp_max_tokens": 64, "keep_recent_tokens": 0}
        async with FakeServer() as server, gate_before(server, Level.ELEVATED, **settings) as gate:
            reply = await ask(gate, "POST", CHAT, chat(max_tokens=4000))
            assert reply.header("x-slmguard-clamped") == "max_tokens"
            assert server.seen[0].json()["max_tokens"] == 64
            reply = await ask(gate, "POST", CHAT, chat(max_tokens=4))
            assert reply.header("x-slmguard-clamped") is None
            assert server.seen[1].body == chat(max_tokens=4)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"\x1f\x8b\x08", {"Content-Encoding": "gzip"}, 415),
        ('{"max_tokens": 9}'.encode("utf-16"), {}, 415),
        (b'{"a": ' + b"[" * 500 + b"]" * 500 + b"}", {}, 400),
        (b'{"a": "' + b"x" * 5000 + b'"}', {}, 413),
        (b'{"max_tokens": 9', {}, 200),
        (b"\xff not json", {}, 200),
        (b"", {}, 200),
    ],
)
def test_a_body_that_cannot_be_clamped_is_passed_on_only_when_no_server_would_take_it(
    body: bytes, headers: dict[str, str], status: int
) -> None:
    async def scenario() -> None:
        settings: dict[str, Any] = {"max_body_bytes": 4096, "keep_recent_tokens": 0}
        async with FakeServer() as server, gate_before(server, Level.ELEVATED, **settings) as gate:
            assert (await ask(gate, "POST", CHAT, body, headers)).status == status
            assert [seen.body for seen in server.seen] == ([body] if status == 200 else [])

    asyncio.run(scenario())


def test_turns_are_dropped_and_counted_in_a_header() -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target == "/tokenize":
            tokens = list(range(len(seen.json()["content"])))
            await _json(writer, {"tokens": tokens})
        else:
            await ok_json(seen, writer)

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            order = b'{"keep_recent": 60}'
            assert (await ask(gate, "POST", "/api/v1/context/trim", order)).json()["in_force"] == 60
            messages = [{"role": "user", "content": letter * 30} for letter in "abc"]
            reply = await ask(gate, "POST", CHAT, chat(messages=messages), {"Authorization": "Bearer k"})
            assert reply.header("x-slmguard-trimmed") == "2"
            *asked, sent = server.seen
            assert sent.json()["messages"] == messages[2:]
            assert {seen.target for seen in asked} == {"/tokenize"}
            assert asked[0].header("Authorization") == "Bearer k"
            await ask(gate, "DELETE", "/api/v1/context/trim")
            await ask(gate, "POST", CHAT, chat(messages=messages))
            assert server.seen[-1].json()["messages"] == messages

    asyncio.run(scenario())


async def _json(writer: asyncio.StreamWriter, document: Any) -> None:
    import json

    from tests.gate.fakes import send

    await send(writer, 200, json.dumps(document).encode())


def test_no_more_requests_are_at_the_server_than_places_and_a_full_queue_is_told() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            await ok_json(seen, writer)

        async with FakeServer(answer) as server, gate_before(server, max_inflight=2, max_queue=3) as gate:
            asking = [asyncio.create_task(ask(gate, "POST", CHAT, chat(user=str(n)))) for n in range(5)]
            await until(lambda: gate.state.admission.waiting == 3)
            full = await ask(gate, "POST", CHAT, chat())
            assert full.status == 429
            assert full.json()["error"] == {
                "message": "slmguard: too many requests are waiting",
                "type": "rate_limit_error",
                "param": None,
                "code": "queue_full",
            }
            assert full.header("Retry-After") == "10"
            assert (await ask(gate, "GET", "/slmguard/health")).json()["in_flight"] == 2
            assert len(server.seen) == 2
            go.set()
            assert [(await task).status for task in asking] == [200] * 5
            assert gate.state.admission.at_server == 0

    asyncio.run(scenario())


def test_a_client_that_leaves_the_queue_frees_its_place_in_it() -> None:
    async def scenario() -> None:
        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await asyncio.Event().wait()

        async with FakeServer(answer) as server, gate_before(server, max_inflight=1, max_queue=1) as gate:
            body = chat()
            raw = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
            _, first = await open_to(gate)
            first.write(raw)
            await server.arrived.wait()
            _, second = await open_to(gate)
            second.write(raw)
            await until(lambda: gate.state.admission.waiting == 1)
            second.close()
            await until(lambda: gate.state.admission.waiting == 0)
            assert gate.state.buffers.used_bytes == len(body)
            first.close()

    asyncio.run(scenario())


def test_places_go_round_over_the_clients() -> None:
    async def scenario() -> None:
        admission = Admission(GateSettings(max_inflight=1))
        order: list[str] = []

        async def one(client: str, name: str) -> None:
            await admission.enter(client, limited=True)
            order.append(name)
            admission.leave(limited=True)

        await admission.enter("x", limited=True)
        names = ["a1", "a2", "a3", "b1", "c1", "b2"]
        tasks = [asyncio.create_task(one(name[0], name)) for name in names]
        await asyncio.sleep(0)
        admission.leave(limited=True)
        await asyncio.gather(*tasks)
        assert order == ["a1", "b1", "c1", "a2", "b2", "a3"]
        assert (admission.in_flight, admission.waiting) == (0, 0)

    asyncio.run(scenario())


def test_waiting_too_long_ends_in_429() -> None:
    async def scenario() -> None:
        admission = Admission(GateSettings(max_inflight=1, queue_timeout_s=0.1))
        await admission.enter("x", limited=True)
        with pytest.raises(RefusedError) as caught:
            await admission.enter("y", limited=True)
        assert caught.value.refusal.status == 429
        assert admission.waiting == 0

    asyncio.run(scenario())


def test_a_cancelled_wait_never_loses_a_place() -> None:
    async def scenario() -> None:
        admission = Admission(GateSettings(max_inflight=1))
        await admission.enter("x", limited=True)
        waiting = asyncio.create_task(admission.enter("y", limited=True))
        await asyncio.sleep(0)
        admission.leave(limited=True)  # the place is given to y …
        waiting.cancel()  # … who is cancelled before it can take it
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert admission.in_flight == 0
        await admission.enter("z", limited=True)
        assert admission.in_flight == 1

    asyncio.run(scenario())


def test_bodies_kept_in_memory_are_bounded_in_total() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await go.wait()
            await ok_json(seen, writer)

        settings: dict[str, Any] = {"max_body_bytes": 4096, "max_buffered_bytes": 8192}
        async with FakeServer(answer) as server, gate_before(server, **settings) as gate:
            body = chat(filler="x" * 3500)
            asking = [asyncio.create_task(ask(gate, "POST", CHAT, body)) for _ in range(2)]
            await until(lambda: gate.state.buffers.used_bytes == 2 * len(body))
            reply = await ask(gate, "POST", CHAT, body)
            assert (reply.status, reply.json()["error"]["code"]) == (503, "gate_busy")
            go.set()
            assert [(await task).status for task in asking] == [200, 200]
            assert gate.state.buffers.used_bytes == 0

    asyncio.run(scenario())


def test_a_connection_is_kept_after_a_refusal() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, Level.HIGH) as gate:
            reader, writer = await open_to(gate)
            for _ in range(3):
                body = chat()
                writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
                assert (await read_reply(reader)).status == 503
            writer.close()

    asyncio.run(scenario())
