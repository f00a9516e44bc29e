"""The clamp lowers limits, sets missing ones, and touches nothing else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.gate.clamp import Caps, clamp
from slmguard.gate.endpoints import Dialect
from slmguard.gate.jsonscan import NotJsonError, TooComplexError

CAPS = Caps(max_tokens=100)
CHAT = Dialect.OPENAI_CHAT
PRIMARY = {
    Dialect.OPENAI_CHAT: "max_tokens",
    Dialect.OPENAI_COMPLETION: "max_tokens",
    Dialect.OPENAI_RESPONSES: "max_output_tokens",
    Dialect.ANTHROPIC: "max_tokens",
    Dialect.LLAMA: "n_predict",
    Dialect.KOBOLD: "max_length",
}
LIMITS = {"max_tokens", "max_completion_tokens", "n_predict", "max_output_tokens", "max_length", "max_new_tokens"}
CHANGED = LIMITS | {"min_tokens", "n", "n_cmpl", "best_of", "num_predict", "num_ctx", "max_context_length"}


def clamped(body: Any, dialect: Dialect = CHAT, caps: Caps = CAPS) -> Any:
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return json.loads(clamp(text, dialect, caps)[0])


@pytest.mark.parametrize(("dialect", "field"), PRIMARY.items())
@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (5000, 100),
        (101, 100),
        (100, 100),
        (7, 7),
        (0, 0),
        (-1, 100),
        (-2, 100),
        (None, 100),
        (1e9, 100),
        (7.5, 7.5),
        ("5000", 100),
        ("7", 7),
        ("lots", 100),
        ([], 100),
        ({}, 100),
        (10**30, 100),
        (-(10**30), 100),
    ],
)
def test_the_smaller_of_limit_and_cap_is_sent(dialect: Dialect, field: str, asked: Any, sent: Any) -> None:
    assert clamped({field: asked}, dialect) == {field: sent}


@pytest.mark.parametrize(("dialect", "field"), PRIMARY.items())
def test_a_missing_limit_is_set(dialect: Dialect, field: str) -> None:
    assert clamped({}, dialect) == {field: 100}
    assert clamped({"a": [1]}, dialect) == {"a": [1], field: 100}


@pytest.mark.parametrize("dialect", [Dialect.OLLAMA_CHAT, Dialect.OLLAMA_GENERATE])
@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({}, {"options": {"num_predict": 100}}),
        ({"options": None}, {"options": {"num_predict": 100}}),
        ({"options": {}}, {"options": {"num_predict": 100}}),
        ({"options": {"top_k": 1, "num_predict": -1}}, {"options": {"top_k": 1, "num_predict": 100}}),
        ({"options": {"num_predict": 9}}, {"options": {"num_predict": 9}}),
        ({"options": {"num_ctx": 32768, "num_predict": 9}}, {"options": {"num_ctx": 32768, "num_predict": 9}}),
        ({"keep_alive": -1, "options": {"num_predict": 1}}, {"keep_alive": -1, "options": {"num_predict": 1}}),
        ({"n": 9, "options": {"n": 9, "num_predict": 1}}, {"n": 9, "options": {"n": 9, "num_predict": 1}}),
        ({"OPTIONS": {"Num_Predict": 999}}, {"OPTIONS": {"Num_Predict": 100}}),
        ({"optionſ": {"num_predict": 999}}, {"optionſ": {"num_predict": 100}}),
    ],
)
def test_ollama_limits_are_in_its_options(dialect: Dialect, body: Any, sent: Any) -> None:
    assert clamped(body, dialect) == sent


def test_a_context_size_is_lowered_to_the_configured_window_and_never_set() -> None:
    caps = Caps(100, context_tokens=2048)
    assert clamped({"options": {"num_ctx": 8192}}, Dialect.OLLAMA_CHAT, caps)["options"]["num_ctx"] == 2048
    assert clamped({"options": {"num_ctx": 1024}}, Dialect.OLLAMA_CHAT, caps)["options"]["num_ctx"] == 1024
    assert "num_ctx" not in clamped({}, Dialect.OLLAMA_CHAT, caps)["options"]
    assert clamped({"max_context_length": 8192}, Dialect.KOBOLD, caps)["max_context_length"] == 2048


def test_every_name_that_a_server_may_read_is_lowered() -> None:
    body = {"max_tokens": 900, "max_completion_tokens": 900, "n_predict": -1, "min_tokens": 900}
    sent = {"max_tokens": 100, "max_completion_tokens": 100, "n_predict": 100, "min_tokens": 100}
    assert clamped(body) == sent


def test_a_small_limit_under_another_name_is_not_raised() -> None:
    assert clamped({"max_completion_tokens": 5}) == {"max_completion_tokens": 5, "max_tokens": 5}
    assert clamped({"max_tokens": None, "max_completion_tokens": 5}) == {"max_tokens": 5, "max_completion_tokens": 5}
    assert clamped({"max_tokens": 0}, Dialect.LLAMA) == {"max_tokens": 0, "n_predict": 0}


def test_the_number_of_answers_is_lowered_and_never_set() -> None:
    sent = clamped({"n": 8, "n_cmpl": 4, "best_of": "8", "max_tokens": 1})
    assert sent == {"n": 1, "n_cmpl": 1, "best_of": 1, "max_tokens": 1}
    assert clamped({"n": None, "max_tokens": 1}) == {"n": None, "max_tokens": 1}


@pytest.mark.parametrize(
    "text",
    [
        b'{"max_tokens": 1, "max_tokens": 9999}',
        b'{"max_tokens": 9999, "max_tokens": 1}',
        b'{"max_tokens": 1, "max\\u005ftokens": 9999}',
        b'{"max_tokens": 9999, "temperature": NaN}',
        b'\xef\xbb\xbf{"max_tokens": 9999}',
        b'{"max_tokens": 9999} trailing',
        b'{"max_tokens": 9999, "x": "\xff\xfe"}',
        b'{"max_tokens": 9999e0}',
        b'{"max_tokens": 99990E-1}',
        b'{"max_tokens"\n:\t9999\r\n}',
        b'{"max_tokens": Infinity}',
    ],
)
def test_no_spelling_walks_around_the_cap(text: bytes) -> None:
    sent, names = clamp(text, CHAT, CAPS)
    assert "max_tokens" in names
    assert b"9999" not in sent
    assert b"Infinity" not in sent


@pytest.mark.parametrize("text", [b"", b"hello", b"[1]", b'{"a"', b'{"a": }', b"{'a': 1}", b'{"a": 1,}', b'{"a": "'])
def test_what_is_no_json_object_is_not_guessed_at(text: bytes) -> None:
    with pytest.raises(NotJsonError):
        clamp(text, CHAT, CAPS)


@pytest.mark.parametrize("text", [b'{"a": ' + b"[" * 5000, b'{"a": [' + b"{}," * 300_000 + b"1]}"])
def test_a_body_that_would_take_long_to_look_at_is_turned_down(text: bytes) -> None:
    with pytest.raises(TooComplexError):
        clamp(text, CHAT, CAPS)


_SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
_VALUES = st.recursive(_SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
_NAMES = st.sampled_from(sorted(CHANGED | {"options", "messages", "temperature", "N_predict"})) | st.text()
_PAIRS = st.lists(st.tuples(_NAMES, _VALUES), max_size=8)


def _written(pairs: list[tuple[str, Any]], space: str, ascii_only: bool) -> bytes:
    """A JSON object that may repeat keys."""
    members = (
        f"{json.dumps(k, ensure_ascii=ascii_only)}{space}:{space}{json.dumps(v, ensure_ascii=ascii_only)}"
        for k, v in pairs
    )
    return ("{" + space + f"{space},{space}".join(members) + space + "}").encode("utf-8", "surrogatepass")


def _pairs(text: bytes) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = json.loads(text, object_pairs_hook=list, parse_float=str, parse_int=str)
    return pairs


@given(
    pairs=_PAIRS,
    space=st.sampled_from(["", " ", "\n\t "]),
    ascii_only=st.booleans(),
    dialect=st.sampled_from(sorted(PRIMARY, key=str)),
)
def test_the_clamp_changes_only_limits_and_never_raises_one(
    pairs: list[tuple[str, Any]], space: str, ascii_only: bool, dialect: Dialect
) -> None:
    text = _written(pairs, space, ascii_only)
    before, (sent, names) = _pairs(text), clamp(text, dialect, CAPS)
    after = _pairs(sent)
    if len(after) == len(before) + 1:
        assert after.pop()[0] == PRIMARY[dialect]
        assert PRIMARY[dialect] not in [key for key, _ in before]
    assert [key for key, _ in after] == [key for key, _ in before]
    for (key, old), (_, new) in zip(before, after, strict=True):
        if old != new:
            assert key in names
            assert key in CHANGED
            number = old if isinstance(old, str) else ""
            try:
                asked = float(number)
            except ValueError:
                asked = -1.0
            assert 0 <= float(new) <= 100
            assert asked < 0 or float(new) <= asked
    assert dict(after).get(PRIMARY[dialect]) is not None or len(_pairs(sent)) > len(before)


@given(pairs=_PAIRS, dialect=st.sampled_from(sorted(PRIMARY, key=str)))
def test_clamping_twice_is_clamping_once(pairs: list[tuple[str, Any]], dialect: Dialect) -> None:
    once = clamp(_written(pairs, " ", True), dialect, CAPS)[0]
    assert clamp(once, dialect, CAPS) == (once, ())


@given(pairs=_PAIRS)
def test_ollama_requests_keep_everything_but_the_limit(pairs: list[tuple[str, Any]]) -> None:
    text = _written(pairs, " ", True)
    sent = clamp(text, Dialect.OLLAMA_CHAT, CAPS)[0]
    before, after = json.loads(text), json.loads(sent)
    folded = {key for key in after if key.casefold() == "options"}
    assert {k: v for k, v in after.items() if k not in folded} == {k: v for k, v in before.items() if k not in folded}
    for key in folded & set(before):
        if isinstance(before[key], dict):
            rest = {k: v for k, v in before[key].items() if k.casefold() != "num_predict"}
            assert {k: v for k, v in after[key].items() if k.casefold() != "num_predict"} == rest


@given(text=st.binary(max_size=200) | st.text('{}[]":,\\ \n1n', max_size=60).map(str.encode))
def test_no_body_breaks_the_scanner(text: bytes) -> None:
    try:
        sent, names = clamp(text, CHAT, CAPS)
    except (NotJsonError, TooComplexError):
        return
    assert names or sent == text
