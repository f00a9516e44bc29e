"""Groups the messages of a conversation into turns that can be dropped as a whole.

A turn begins with a message of the user and holds everything up to the next one. System messages belong to no
turn. Turns that a tool call and its result span are one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

# What a template adds around one message: role markers and line ends.
MESSAGE_OVERHEAD_TOKENS = 8
# A picture's tokens depend on the model (256 to over 1000).
IMAGE_TOKENS = 768

_SYSTEM_ROLES = ("system", "developer")
_IMAGE_TYPES = ("image", "image_url", "input_image")
_TEXT_KEYS = ("text", "thinking", "arguments", "name", "output", "input", "reasoning_content")


@dataclass(frozen=True, slots=True)
class Message:
    """One message, as far as trimming must know it."""

    is_system: bool
    begins_turn: bool
    calls: frozenset[str]
    results: frozenset[str]
    text: str
    extra_tokens: int


@dataclass(frozen=True, slots=True)
class Turn:
    """Places in the list of messages."""

    places: tuple[int, ...]


def read_message(value: Any) -> Message:
    """What a parsed message means, in the dialects of OpenAI (chat and responses), Anthropic and Ollama."""
    if not isinstance(value, dict):
        return Message(False, False, frozenset(), frozenset(), json.dumps(value), MESSAGE_OVERHEAD_TOKENS)
    role = value.get("role")
    parts = [part for part in _parts(value.get("content")) if isinstance(part, dict)]
    calls = _ids(value.get("tool_calls"), "id") | _ids(parts, "id", "tool_use")
    results = _ids(parts, "tool_use_id")
    kind = value.get("type")
    if kind == "function_call":
        calls |= _ids([value], "call_id")
    elif kind == "function_call_output":
        results |= _ids([value], "call_id")
    results |= _ids([value], "tool_call_id")
    images = sum(part.get("type") in _IMAGE_TYPES for part in parts)
    attached = value.get("images")
    images += len(attached) if isinstance(attached, list) else 0
    return Message(
        is_system=role in _SYSTEM_ROLES,
        begins_turn=role == "user" and not results,
        calls=calls,
        results=results,
        text="\n".join(_texts(value)),
        extra_tokens=MESSAGE_OVERHEAD_TOKENS + images * IMAGE_TOKENS,
    )


def group(messages: Sequence[Message]) -> list[Turn]:
    """The turns in their order; every message that is no system message is in exactly one."""
    groups: list[list[int]] = []
    turn_of_call: dict[str, int] = {}
    for place, message in enumerate(messages):
        if message.is_system:
            continue
        if message.begins_turn or not groups:
            groups.append([])
        groups[-1].append(place)
        for call in message.calls:
            turn_of_call.setdefault(call, len(groups) - 1)
        first = min((turn_of_call[r] for r in message.results if r in turn_of_call), default=len(groups) - 1)
        if first < len(groups) - 1:
            merged = [place for turn in groups[first:] for place in turn]
            groups[first:] = [merged]
            turn_of_call = {call: min(turn, first) for call, turn in turn_of_call.items()}
    return [Turn(tuple(places)) for places in groups]


def _parts(content: Any) -> list[Any]:
    return content if isinstance(content, list) else []


def _ids(values: Any, key: str, kind: str | None = None) -> frozenset[str]:
    if not isinstance(values, list):
        return frozenset()
    return frozenset(
        value[key]
        for value in values
        if isinstance(value, dict) and isinstance(value.get(key), str) and (kind is None or value.get("type") == kind)
    )


def _texts(value: Any, key: str = "") -> Iterator[str]:
    """Every text in a message that ends up in the prompt; pictures (data URLs) are left out."""
    if isinstance(value, str):
        if key in _TEXT_KEYS or key in ("content", "role"):
            yield value
    elif isinstance(value, list):
        for item in value:
            yield from _texts(item, key)
    elif isinstance(value, dict):
        if value.get("type") in _IMAGE_TYPES:
            return
        for name, item in value.items():
            # A tool's arguments may be an object; all of it is rendered.
            yield from _texts(item, "input" if key in ("arguments", "input") else name)
