"""A planned restart that no client notices."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from slmguard.gate.policy import policy_from_line
from slmguard.gate.service import Gate
from tests.gate.fakes import (
    CHAT,
    FakeDaemon,
    FakeServer,
    Reply,
    Seen,
    ask,
    begin_stream,
    chat,
    chunk,
    end_stream,
    gate_before,
    ok_json,
    send,
    until,
)


@pytest.fixture
def control(tmp_path: Path) -> str:
    return str(tmp_path / "control.sock")


async def wait_for_held(gate: Gate, count: int) -> None:
    await until(lambda: gate.state.admission.waiting == count)


async def wait_for_more(replies: list[Reply], count: int) -> None:
    await until(lambda: len(replies) > count)


def test_the_daemons_level_clamps_and_refuses_without_a_restart_of_the_gate(control: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, FakeDaemon(control) as daemon, gate_before(server, control=control) as gate:
            await asyncio.wait_for(daemon.subscribed.wait(), 5)
            await daemon.push(level="elevated", clamp_max_tokens=12)
            await until(lambda: gate.state.policy.clamp_max_tokens == 12)
            await ask(gate, "POST", CHAT, chat())
            assert server.seen[-1].json()["max_tokens"] == 12
            await daemon.push(level="high", refuse=True, retry_after_s=33)
            await until(lambda: gate.state.policy.refuse)
            reply = await ask(gate, "POST", CHAT, chat())
            assert (reply.status, reply.header("Retry-After")) == (503, "33")
            await daemon.push(level="normal", clamp_max_tokens=None, refuse=False)
            await until(lambda: not gate.state.policy.refuse)
            await ask(gate, "POST", CHAT, chat())
            assert server.seen[-1].body == chat()

    asyncio.run(scenario())


def test_without_its_daemon_the_gate_passes_through_and_says_so(control: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, control=control) as gate:
            async with FakeDaemon(control) as daemon:
                daemon.state.update(level="high", refuse=True)
                await until(lambda: gate.state.policy.refuse)
                assert (await ask(gate, "GET", "/slmguard/health")).json()["daemon"] == "connected"
                await daemon.die()
            await until(lambda: not gate.state.policy.refuse)
            assert (await ask(gate, "GET", "/slmguard/health")).json()["daemon"] == "lost"
            assert b"slmguard_gate_daemon_connected 0.0" in (await ask(gate, "GET", "/slmguard/metrics")).body
            assert (await ask(gate, "POST", CHAT, chat())).status == 200

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "line",
    [{}, {"level": "mad"}, {"level": "high", "clamp_max_tokens": "5"}, {"level": "high", "retry_after_s": -1}],
)
def test_a_state_line_that_makes_no_sense_is_an_error(line: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="state line"):
        policy_from_line(line)


def test_a_hold_reports_drains_and_lets_go_in_order(control: str) -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if seen.target == CHAT and seen.json().get("slow"):
                await go.wait()
            await ok_json(seen, writer)

        async with (
            FakeServer(answer) as server,
            FakeDaemon(control) as daemon,
            gate_before(server, control=control, max_inflight=1) as gate,
        ):
            await daemon.subscribed.wait()
            slow = asyncio.create_task(ask(gate, "POST", CHAT, chat(slow=True)))
            await daemon.report_where(lambda r: r["in_flight"] == 1)
            await daemon.push(hold=True, hold_deadline_s=30)
            await until(lambda: gate.state.holding)
            held = []
            for number in range(3):
                held.append(asyncio.create_task(ask(gate, "POST", CHAT, chat(number=number))))
                await wait_for_held(gate, number + 1)
            models = asyncio.create_task(ask(gate, "GET", "/v1/models"))
            await daemon.report_where(lambda r: r["held"] == 4 and r["in_flight"] == 1 and r["queued"] == 0)
            assert (await ask(gate, "GET", "/health")).status == 200
            go.set()
            assert (await slow).status == 200
            await daemon.report_where(lambda r: r["in_flight"] == 0 and r["held"] == 4)
            await server.stop()
            await server.start()
            await daemon.push(hold=False, hold_deadline_s=None)
            assert [(await task).status for task in [*held, models]] == [200] * 4
            numbers = [s.json()["number"] for s in server.seen if s.target == CHAT and "number" in s.json()]
            assert numbers == [0, 1, 2]
            await daemon.report_where(lambda r: r["in_flight"] == 0 and r["held"] == 0)

    asyncio.run(scenario())


def test_what_is_cut_before_its_first_byte_is_sent_again_and_a_stream_begun_ends_with_an_error(control: str) -> None:
    async def scenario() -> None:
        restarted = False

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            if not restarted and seen.target == CHAT:
                if seen.json().get("stream"):
                    await begin_stream(writer)
                    await chunk(writer, b"data: 1\n\n")
                await asyncio.Event().wait()
            await ok_json(seen, writer)

        async with (
            FakeServer(answer) as server,
            FakeDaemon(control) as daemon,
            gate_before(server, control=control) as gate,
        ):
            await daemon.subscribed.wait()
            whole = asyncio.create_task(ask(gate, "POST", CHAT, chat()))
            stream = asyncio.create_task(ask(gate, "POST", CHAT, chat(stream=True)))
            await until(lambda: len(server.seen) == 2)
            await daemon.push(hold=True, hold_deadline_s=30)
            await until(lambda: gate.state.holding)
            await daemon.push(cut=True)
            ended = await stream
            assert ended.body.startswith(b"data: 1\n\n")
            assert json.loads(ended.body.split(b"data: ")[-1])["error"]["code"] == "restarting"
            await daemon.report_where(lambda r: r["in_flight"] == 0 and r["held"] == 1)
            await until(lambda: server.gone == 2)
            await server.stop()
            restarted = True
            await server.start()
            await daemon.push(hold=False, cut=False, hold_deadline_s=None)
            assert (await whole).status == 200
            assert gate.state.counters.resent == 1

    asyncio.run(scenario())


def test_a_hold_outlives_its_daemon_until_the_deadline(control: str) -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, control=control) as gate:
            async with FakeDaemon(control) as daemon:
                await daemon.subscribed.wait()
                await daemon.push(hold=True, hold_deadline_s=1.0)
                await until(lambda: gate.state.holding)
                held = asyncio.create_task(ask(gate, "POST", CHAT, chat()))
                await until(lambda: gate.state.admission.waiting == 1)
                await daemon.die()
            await until(lambda: gate.state.daemon == "lost")
            assert gate.state.holding
            assert (await held).status == 200
            assert not gate.state.holding

    asyncio.run(scenario())


def test_the_held_are_bounded(control: str) -> None:
    async def scenario() -> None:
        async with (
            FakeServer() as server,
            FakeDaemon(control) as daemon,
            gate_before(server, control=control, max_held=2) as gate,
        ):
            await daemon.subscribed.wait()
            await daemon.push(level="high", refuse=True, hold=True, hold_deadline_s=30)
            await until(lambda: gate.state.holding)
            held = [asyncio.create_task(ask(gate, "POST", CHAT, chat())) for _ in range(2)]
            await until(lambda: gate.state.admission.waiting == 2)
            reply = await ask(gate, "POST", CHAT, chat())
            assert (reply.status, reply.json()["error"]["code"]) == (503, "restarting")
            assert reply.header("Retry-After") is not None
            await daemon.push(hold=False)
            assert [(await task).status for task in held] == [200, 200]

    asyncio.run(scenario())


def test_a_server_that_still_loads_after_the_release_is_waited_for(control: str) -> None:
    async def scenario() -> None:
        loading = 3

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            nonlocal loading
            if seen.target == CHAT and loading:
                loading -= 1
                await send(writer, 503, b'{"error":{"message":"Loading model","type":"unavailable_error","code":503}}')
            else:
                await ok_json(seen, writer)

        async with (
            FakeServer(answer) as server,
            FakeDaemon(control) as daemon,
            gate_before(server, control=control) as gate,
        ):
            await daemon.subscribed.wait()
            await daemon.push(hold=True, hold_deadline_s=30)
            await until(lambda: gate.state.holding)
            held = asyncio.create_task(ask(gate, "POST", CHAT, chat()))
            await until(lambda: gate.state.admission.waiting == 1)
            await daemon.push(hold=False)
            assert (await held).status == 200
            assert loading == 0

    asyncio.run(scenario())


def test_a_restart_by_somebody_else_is_bridged() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server, upstream_retry_s=10) as gate:
            assert (await ask(gate, "POST", CHAT, chat())).status == 200
            await server.stop()
            asking = asyncio.create_task(ask(gate, "POST", CHAT, chat()))
            await until(lambda: gate.state.upstream_was_down)
            await server.start()
            assert (await asking).status == 200

    asyncio.run(scenario())


def test_twenty_planned_restarts_under_load_are_not_noticed(control: str) -> None:
    """Four clients send without a pause, whole answers and streams, while the server is killed and started."""

    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.target == CHAT and seen.json().get("stream"):
            await begin_stream(writer)
            for number in range(5):
                await chunk(writer, f"data: {number}\n\n".encode())
                await asyncio.sleep(0.002)
            await chunk(writer, b"data: [DONE]\n\n")
            await end_stream(writer)
        else:
            await asyncio.sleep(0.005)
            await ok_json(seen, writer)

    async def scenario() -> None:
        async with (
            FakeServer(answer) as server,
            FakeDaemon(control) as daemon,
            gate_before(server, control=control, max_inflight=2) as gate,
        ):
            await daemon.subscribed.wait()
            done = asyncio.Event()
            replies: list[Reply] = []
            longest_s = 0.0

            async def client(number: int) -> None:
                nonlocal longest_s
                while not done.is_set():
                    started_s = time.monotonic()
                    reply = await ask(gate, "POST", CHAT, chat(stream=number % 2 == 0))
                    longest_s = max(longest_s, time.monotonic() - started_s)
                    replies.append(reply)
                    if number % 2 == 0:
                        assert reply.body.endswith(b"data: [DONE]\n\n")

            clients = [asyncio.create_task(client(number)) for number in range(4)]
            for _ in range(20):
                before = len(replies)
                await wait_for_more(replies, before + 4)
                await daemon.push(hold=True, hold_deadline_s=30)
                await until(lambda: gate.state.holding)
                await daemon.report_where(lambda r: r["hold"] and r["in_flight"] == 0)
                await server.stop()
                await asyncio.sleep(0.02)
                await server.start()
                await daemon.push(hold=False, hold_deadline_s=None)
                await until(lambda: not gate.state.holding)
            done.set()
            await asyncio.gather(*clients)
            assert {reply.status for reply in replies} == {200}
            assert gate.state.counters.holds == 20
            assert gate.state.counters.broken == 0
            print(f"{len(replies)} answers over 20 restarts, longest wait {longest_s:.2f} s")

    asyncio.run(scenario())
