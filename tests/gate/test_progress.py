"""Tokens that pass the gate are counted, so that a stall can be told from a long answer."""

from __future__ import annotations

import asyncio

import pytest

from slmguard.gate.progress import event_mark, stated_tokens
from tests.gate.fakes import CHAT, FakeServer, Seen, ask, begin_stream, chat, chunk, end_stream, gate_before, send


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b'{"usage":{"prompt_tokens":5,"completion_tokens":17}}', 17),
        (b'{"content":"x","tokens_predicted" : 9}', 9),
        (b'{"usage":{"output_tokens":3}}', 3),
        (b'{"eval_count":4,"prompt_eval_count":100}', 4),
        (b'{"content":"he said \\"completion_tokens\\": 99"}', 0),
        (b"", 0),
    ],
)
def test_a_whole_answer_states_its_tokens(answer: bytes, tokens: int) -> None:
    assert stated_tokens(answer) == tokens


@pytest.mark.parametrize(
    ("content_type", "piece"),
    [("text/event-stream", b'data: {"x": 1}\n\n'), ("application/x-ndjson", b'{"response": "x"}\n')],
)
def test_events_and_lines_are_counted_while_they_pass(content_type: str, piece: bytes) -> None:
    async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
        if seen.json().get("stream"):
            await begin_stream(writer, content_type)
            for _ in range(3):
                await chunk(writer, piece)
            await end_stream(writer)
        else:
            await send(writer, 200, b'{"usage":{"completion_tokens":20}}')

    async def scenario() -> None:
        async with FakeServer(answer) as server, gate_before(server) as gate:
            await ask(gate, "POST", CHAT, chat(stream=True))
            assert gate.state.counters.progress_tokens == 3
            await ask(gate, "POST", CHAT, chat())
            assert gate.state.counters.progress_tokens == 23

    asyncio.run(scenario())


def test_other_answers_are_no_streams() -> None:
    assert event_mark("application/json") is None
