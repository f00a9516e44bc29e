"""The gate before a real llama.cpp server, spoken to by a client that is not ours: the openai package."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.gate.fakes import FakeDaemon, free_port, until
from tests.gate.real_server import ending, start_gate, start_server

openai = pytest.importorskip("openai", reason="pip install openai")
pytestmark = pytest.mark.server

MESSAGES: list[Any] = [{"role": "user", "content": "Name three colours."}]
WEATHER: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather in a town",
            "parameters": {"type": "object", "properties": {"town": {"type": "string"}}, "required": ["town"]},
        },
    }
]


def client_of(port: int) -> Any:
    # Without retries of its own, so that nothing is hidden.
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="sk-none", max_retries=0, timeout=120)


@pytest.fixture(scope="module")
def server_port() -> Iterator[int]:
    port = free_port()
    with ending(start_server(port)):
        yield port


@pytest.fixture(params=["normal", "elevated"])
def level(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(server_port: int, level: str) -> Iterator[Any]:
    port = free_port()
    with ending(start_gate(port, server_port, "--level", level, "--max-tokens", "16")), client_of(port) as client:
        yield client


def test_chat_and_its_limit(client: Any, level: str) -> None:
    raw = client.chat.completions.with_raw_response.create(model="m", messages=MESSAGES, max_tokens=24, temperature=0)
    answer = raw.parse()
    assert answer.choices[0].message.content
    assert answer.usage.completion_tokens <= (24 if level == "normal" else 16)
    assert raw.headers.get("x-slmguard-clamped") == (None if level == "normal" else "max_tokens")


@pytest.mark.parametrize(
    "limit", [{}, {"max_tokens": None}, {"max_completion_tokens": 90}, {"extra_body": {"n_predict": -1}}]
)
def test_no_limit_of_the_client_reaches_beyond_the_cap(server_port: int, limit: dict[str, Any]) -> None:
    port = free_port()
    with ending(start_gate(port, server_port, "--level", "elevated", "--max-tokens", "5")), client_of(port) as client:
        answer = client.chat.completions.create(
            model="m", messages=MESSAGES, **{"extra_body": {"ignore_eos": True, **limit.pop("extra_body", {})}, **limit}
        )
        assert answer.usage.completion_tokens == 5


def test_a_stream_comes_in_many_pieces(client: Any) -> None:
    pieces = list(client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=12, stream=True))
    assert len(pieces) > 3
    assert pieces[-1].choices[0].finish_reason in ("length", "stop")


def test_tools_are_passed_on(client: Any) -> None:
    answer = client.chat.completions.create(
        model="m", messages=MESSAGES, tools=WEATHER, tool_choice="required", max_tokens=60, temperature=0
    )
    assert answer.choices[0].message is not None


def test_leaving_a_stream_frees_the_slot(client: Any, server_port: int) -> None:
    stream = client.chat.completions.create(
        model="m", messages=MESSAGES, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    stream.close()
    until_s = time.monotonic() + 20
    while any(slot["is_processing"] for slot in _get(server_port, "/slots")):
        assert time.monotonic() < until_s, "the slot is still busy"
        time.sleep(0.05)


def _get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as answer:
        return json.load(answer)


def test_a_long_conversation_is_trimmed_by_the_servers_own_token_count(server_port: int) -> None:
    port = free_port()
    conversation: list[Any] = [{"role": "system", "content": "You are brief."}]
    for number in range(30):
        conversation.append({"role": "user", "content": f"Question {number}: " + "what do you think of rain? " * 12})
        conversation.append({"role": "assistant", "content": "It is wet. " * 10})
    conversation.append({"role": "user", "content": "And snow?"})
    with client_of(server_port) as direct, pytest.raises(openai.BadRequestError):
        direct.chat.completions.create(model="m", messages=conversation, max_tokens=4)
    options = ("--level", "elevated", "--keep-recent", "400")
    with ending(start_gate(port, server_port, *options)), client_of(port) as client:
        raw = client.chat.completions.with_raw_response.create(model="m", messages=conversation, max_tokens=4)
        assert int(raw.headers["x-slmguard-trimmed"]) > 40
        # The server counts the template and the system message too.
        assert raw.parse().usage.prompt_tokens < 450


def test_an_error_of_the_server_is_the_error_of_the_client(client: Any) -> None:
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="m", messages=[{"role": "user", "content": "x " * 4000}], max_tokens=4)


@pytest.mark.parametrize("level", ["high", "critical"])
def test_from_level_high_the_client_is_told_when_to_come_back(server_port: int, level: str) -> None:
    port = free_port()
    with ending(start_gate(port, server_port, "--level", level)), client_of(port) as client:
        with pytest.raises(openai.InternalServerError) as caught:
            client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=4)
        assert caught.value.status_code == 503
        assert caught.value.code == "memory_pressure"
        assert caught.value.response.headers["Retry-After"] == "10"
        assert client.models.list().data


@dataclass
class Load:
    """Clients that send without a pause, whole answers and streams in turn."""

    port: int
    answers: int = 0
    longest_s: float = 0.0
    errors: list[str] = field(default_factory=list)
    done: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run_client(self, number: int) -> None:
        with client_of(self.port) as client:
            while not self.done.is_set():
                started_s = time.monotonic()
                try:
                    self._ask(client, number, stream=self.answers % 2 == 0)
                except (openai.OpenAIError, AssertionError) as error:
                    self.errors.append(repr(error))
                with self.lock:
                    self.answers += 1
                    self.longest_s = max(self.longest_s, time.monotonic() - started_s)

    def _ask(self, client: Any, number: int, *, stream: bool) -> None:
        messages = [{"role": "user", "content": f"Client {number} asks for answer {self.answers}."}]
        answer = client.chat.completions.create(model="m", messages=messages, max_tokens=6, stream=stream)
        if stream:
            pieces = list(answer)
            assert pieces[-1].choices[0].finish_reason, "the stream ended early"
        else:
            assert answer.choices[0].finish_reason


async def wait_for_answers(load: Load, count: int) -> None:
    await until(lambda: load.answers >= count, limit_s=60)


def test_planned_restarts_of_the_real_server_are_not_noticed(tmp_path: Path) -> None:
    async def scenario(load: Load, server_port: int, control: str, daemon: FakeDaemon) -> None:
        loop = asyncio.get_running_loop()
        server = await loop.run_in_executor(None, start_server, server_port)
        gate = await loop.run_in_executor(None, lambda: start_gate(load.port, server_port, control=control))
        with ending(gate):
            await asyncio.wait_for(daemon.subscribed.wait(), 20)
            clients = [threading.Thread(target=load.run_client, args=(n,)) for n in range(4)]
            for thread in clients:
                thread.start()
            try:
                for _ in range(3):
                    before = load.answers
                    await wait_for_answers(load, before + 8)
                    await daemon.push(hold=True, hold_deadline_s=60)
                    await daemon.report_where(lambda r: r["hold"] and r["in_flight"] == 0)
                    server.kill()
                    server.wait(10)
                    server = await loop.run_in_executor(None, start_server, server_port)
                    await daemon.push(hold=False, hold_deadline_s=None)
                before = load.answers
                await wait_for_answers(load, before + 8)
            finally:
                load.done.set()
                for thread in clients:
                    await loop.run_in_executor(None, thread.join)
                server.kill()
                server.wait(10)

    async def with_daemon() -> Load:
        control = str(tmp_path / "control.sock")
        load = Load(free_port())
        async with FakeDaemon(control) as daemon:
            await asyncio.wait_for(scenario(load, free_port(), control, daemon), 300)
        return load

    load = asyncio.run(with_daemon())
    assert load.errors == []
    print(f"{load.answers} answers over 3 restarts, longest {load.longest_s:.1f} s")


def test_without_the_gate_the_clients_notice_a_restart() -> None:
    """The same load sent straight to the server: the test above can fail."""
    port = free_port()
    load = Load(port)
    server = start_server(port)
    thread = threading.Thread(target=load.run_client, args=(0,))
    thread.start()
    try:
        with ending(server):
            asyncio.run(wait_for_answers(load, 2))
        with ending(start_server(port)):
            load.done.set()
            thread.join()
    finally:
        load.done.set()
        thread.join()
    assert load.errors
