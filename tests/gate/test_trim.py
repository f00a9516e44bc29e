"""Trimming drops whole old turns and nothing else."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.gate.endpoints import Dialect
from slmguard.gate.tokens import estimate
from slmguard.gate.trim import Windows, trim

SYSTEM = {"role": "system", "content": "You are brief."}


async def _estimated(text: str) -> int:
    return estimate(text)


def trimmed(
    body: Any, recent: int | None = None, context: int | None = None, dialect: Dialect = Dialect.OPENAI_CHAT
) -> tuple[Any, int]:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    sent, dropped = asyncio.run(trim(text, dialect, Windows(recent, context), _estimated))
    return json.loads(sent), dropped


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def model(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def call(call_id: str) -> dict[str, Any]:
    function = {"name": "look", "arguments": '{"q": "' + "x" * 120 + '"}'}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def result(call_id: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": "y" * 120}


def test_the_system_message_and_the_newest_turns_stay() -> None:
    messages = [SYSTEM, user("a" * 300), model("b" * 300), user("c" * 90), model("d" * 90), user("e" * 90)]
    sent, dropped = trimmed({"messages": messages, "tools": [{"x": 1}]}, recent=130)
    assert sent == {"messages": [SYSTEM, *messages[3:]], "tools": [{"x": 1}]}
    assert dropped == 2


def test_the_newest_turn_stays_even_when_it_is_larger_than_the_window() -> None:
    messages = [user("a" * 300), model("b"), user("c" * 3000)]
    assert trimmed({"messages": messages}, recent=10)[0] == {"messages": messages[2:]}


def test_a_conversation_that_fits_keeps_every_byte() -> None:
    text = b'{ "messages" : [ {"role":"user","content":"a"} , {"role":"user", "content":"b"} ] , "x":1.10 }'
    for windows in (Windows(512), Windows(25), Windows(None, 512)):
        assert asyncio.run(trim(text, Dialect.OPENAI_CHAT, windows, _estimated)) == (text, 0)


def test_bytes_outside_the_dropped_messages_stay_as_they_are() -> None:
    old = json.dumps(user("a" * 600))
    text = ('{ "seed" : 1.50,"messages":[ ' + old + ' ,\n {"content":"n\\u0065w", "role" : "user"} ],"z":1e3}').encode()
    sent, dropped = asyncio.run(trim(text, Dialect.OPENAI_CHAT, Windows(100), _estimated))
    assert sent == b'{ "seed" : 1.50,"messages":[ {"content":"n\\u0065w", "role" : "user"} ],"z":1e3}'
    assert dropped == 1


def test_a_tool_call_and_its_result_go_or_stay_together() -> None:
    messages = [user("a"), call("1"), result("1"), model("b"), user("c"), call("2"), result("2"), model("d")]
    for window in range(10, 400, 10):
        sent, _ = trimmed({"messages": messages}, recent=window)
        kept = sent["messages"]
        made = {c["id"] for m in kept for c in m.get("tool_calls") or ()}
        assert made == {m["tool_call_id"] for m in kept if m["role"] == "tool"}


def test_a_result_that_comes_after_another_question_keeps_its_call() -> None:
    messages = [user("a" * 900), call("1"), user("still there?"), result("1"), user("new")]
    sent, _ = trimmed({"messages": messages}, recent=60)
    assert sent["messages"] == [user("new")]
    sent, _ = trimmed({"messages": messages[:-1]}, recent=60)
    assert sent["messages"] == messages[:-1]


def test_anthropic_tool_results_belong_to_the_turn_of_their_call() -> None:
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "look", "input": {"q": "x" * 90}}]}
    back = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "y" * 90}]}
    messages = [user("a" * 600), model("b"), user("c"), use, back]
    sent, dropped = trimmed({"system": "s", "messages": messages}, recent=150, dialect=Dialect.ANTHROPIC)
    assert sent == {"system": "s", "messages": messages[2:]}
    assert dropped == 2


def test_items_of_the_responses_api_are_trimmed_by_turns() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a" * 600}]},
        {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "y"},
        {"type": "message", "role": "user", "content": "new"},
    ]
    sent, dropped = trimmed({"input": items}, recent=100, dialect=Dialect.OPENAI_RESPONSES)
    assert (sent, dropped) == ({"input": items[3:]}, 3)
    assert trimmed({"input": "x" * 9000}, recent=10, dialect=Dialect.OPENAI_RESPONSES)[1] == 0


def test_a_window_for_the_whole_context_counts_the_system_message_and_the_tools() -> None:
    messages = [SYSTEM, user("a" * 120), model("b" * 120), user("c")]
    assert trimmed({"messages": messages}, context=200)[1] == 0
    assert trimmed({"messages": messages, "tools": [{"d": "z" * 400}]}, context=200)[1] == 2


def test_a_picture_counts_although_its_data_is_not_text() -> None:
    picture = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:" + "A" * 9000}}]}
    assert trimmed({"messages": [picture, model("b"), user("c")]}, recent=500)[1] == 2
    assert trimmed({"messages": [picture, model("b"), user("c")]}, recent=1000)[1] == 0


@pytest.mark.parametrize("dialect", [Dialect.LLAMA, Dialect.OLLAMA_GENERATE, Dialect.KOBOLD, Dialect.OPENAI_COMPLETION])
def test_a_prompt_that_is_one_text_is_left_alone(dialect: Dialect) -> None:
    body = {"prompt": "x" * 9000, "messages": [user("a" * 900), user("b")]}
    assert trimmed(body, recent=10, dialect=dialect) == (body, 0)


_CONTENT = (
    st.text(max_size=40) | st.none() | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": st.text()}))
)
_MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "odd"]), "content": _CONTENT},
        optional={
            "tool_calls": st.lists(st.fixed_dictionaries({"id": st.sampled_from("abc")}), max_size=2),
            "tool_call_id": st.sampled_from("abc"),
            "extra": st.integers(),
        },
    )
    | st.integers()
    | st.text(max_size=5),
    max_size=12,
)


def _is_system(message: Any) -> bool:
    return isinstance(message, dict) and message["role"] in ("system", "developer")


@given(messages=_MESSAGES, window=st.integers(1, 200), others=st.dictionaries(st.text(), st.integers(), max_size=3))
def test_trimming_keeps_order_systems_the_newest_turn_and_everything_else(
    messages: list[Any], window: int, others: dict[str, int]
) -> None:
    body = {**others, "messages": messages}
    sent, dropped = trimmed(body, recent=window)
    kept = sent["messages"]
    assert {k: v for k, v in sent.items() if k != "messages"} == {k: v for k, v in others.items() if k != "messages"}
    assert len(kept) == len(messages) - dropped
    assert [m for m in kept if _is_system(m)] == [m for m in messages if _is_system(m)]
    rest = [m for m in messages if not _is_system(m)]
    kept_rest = [m for m in kept if not _is_system(m)]
    assert kept_rest == rest[dropped:]
    assert not rest or kept_rest
    called = {c["id"] for m in rest[:dropped] if isinstance(m, dict) for c in m.get("tool_calls", ())}
    called_later = {c["id"] for m in kept_rest if isinstance(m, dict) for c in m.get("tool_calls", ())}
    answered = {m["tool_call_id"] for m in kept_rest if isinstance(m, dict) and "tool_call_id" in m}
    assert not (answered & called) - called_later
