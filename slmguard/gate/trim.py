"""Drops the oldest turns of a conversation until the rest fits a window, by cutting them out of the JSON text.

The system message, the tool definitions and the newest turn always stay, even when the newest turn alone is
larger than the window: half a turn would be a different question. Prompts that are one text are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from slmguard.gate.endpoints import Dialect
from slmguard.gate.jsonscan import NotJsonError, Span, scan_array, scan_object
from slmguard.gate.tokens import Count
from slmguard.gate.turns import MESSAGE_OVERHEAD_TOKENS, Message, Turn, group, read_message

_LIST_KEYS: dict[Dialect, str] = {
    Dialect.OPENAI_CHAT: "messages",
    Dialect.ANTHROPIC: "messages",
    Dialect.OLLAMA_CHAT: "messages",
    Dialect.OPENAI_RESPONSES: "input",
}
# Beside the list, these too take room in the context.
_FIXED_KEYS = ("system", "instructions", "tools", "functions")


@dataclass(frozen=True, slots=True)
class Windows:
    """What must fit: `recent_tokens` counts the turns only, `context_tokens` the whole prompt. None: no bound."""

    recent_tokens: int | None = None
    context_tokens: int | None = None

    @property
    def any(self) -> bool:
        """Whether there is a window at all."""
        return self.recent_tokens is not None or self.context_tokens is not None


async def trim(text: bytes, dialect: Dialect, windows: Windows, count: Count) -> tuple[bytes, int]:
    """The text without its oldest turns and the number of messages dropped.

    Raises NotJsonError and TooComplexError of `jsonscan`.
    """
    list_key = _LIST_KEYS.get(dialect)
    if list_key is None:
        return text, 0
    top = scan_object(text)
    fixed = "\n".join(
        member.value.of(text).decode("utf-8", "replace") for member in top.members if member.key in _FIXED_KEYS
    )
    dropped = 0
    # From the end, so that earlier places stay right; a repeated key is trimmed wherever it stands.
    for member in reversed(top.members):
        key = member.key.casefold() if dialect is Dialect.OLLAMA_CHAT else member.key
        if key == list_key and text[member.value.start : member.value.start + 1] == b"[":
            text, count_here = await _trim_list(text, member.value, fixed, windows, count)
            dropped += count_here
    return text, dropped


async def _trim_list(text: bytes, place: Span, fixed: str, windows: Windows, count: Count) -> tuple[bytes, int]:
    spans = scan_array(text, place)
    if _surely_fits(place, len(spans), fixed, windows):
        return text, 0
    messages = [read_message(_parsed(span.of(text))) for span in spans]
    turns = group(messages)
    room = await _room(messages, fixed, windows, count)
    kept = await _newest_that_fit(messages, turns, room, count)
    gone = {place for turn in turns[: len(turns) - kept] for place in turn.places}
    return _without(text, spans, gone), len(gone)


def _surely_fits(place: Span, messages: int, fixed: str, windows: Windows) -> bool:
    """A token has at least one byte: short conversations need no counting."""
    most = place.end - place.start + messages * MESSAGE_OVERHEAD_TOKENS
    most_altogether = most + len(fixed.encode("utf-8", "replace"))
    recent_fits = windows.recent_tokens is None or most <= windows.recent_tokens
    return recent_fits and (windows.context_tokens is None or most_altogether <= windows.context_tokens)


async def _room(messages: Sequence[Message], fixed: str, windows: Windows, count: Count) -> int:
    rooms: list[int] = [] if windows.recent_tokens is None else [windows.recent_tokens]
    if windows.context_tokens is not None:
        system = [message for message in messages if message.is_system]
        taken = await count(fixed) + await _tokens(system, count)
        rooms.append(windows.context_tokens - taken)
    return min(rooms)


async def _newest_that_fit(messages: Sequence[Message], turns: Sequence[Turn], room: int, count: Count) -> int:
    """How many of the newest turns fit; at least one."""
    used = 0
    for kept, turn in enumerate(reversed(turns)):
        used += await _tokens([messages[place] for place in turn.places], count)
        if used > room and kept:
            return kept
    return len(turns)


async def _tokens(messages: Sequence[Message], count: Count) -> int:
    if not messages:
        return 0
    return await count("\n".join(m.text for m in messages)) + sum(m.extra_tokens for m in messages)


def _parsed(raw: bytes) -> object:
    try:
        return json.loads(raw, strict=False)
    except (ValueError, RecursionError) as error:
        raise NotJsonError from error


def _without(text: bytes, spans: Sequence[Span], gone: set[int]) -> bytes:
    """The text without some elements of a list and the commas after them; the last element is never gone."""
    pieces: list[bytes] = []
    at = 0
    for place in sorted(gone):
        pieces.append(text[at : spans[place].start])
        at = spans[place + 1].start
    pieces.append(text[at:])
    return b"".join(pieces)
