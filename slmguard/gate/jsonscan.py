"""Where things stand in a JSON text, so that a value can be replaced without touching any other byte.

Parsing and writing JSON again would change numbers, spacing and the order of repeated keys. This scanner only
finds the places. It is lenient on purpose: whatever some server's parser accepts (NaN, repeated keys, a byte
order mark, text after the value, invalid UTF-8 inside strings) must be found here too, or a limit could be
walked around. It is iterative and stops at fixed bounds, so that no body can keep the event loop busy.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

MAX_DEPTH = 128
# Brackets and strings in one text. 200,000 of them take about 0.1 s on one x86-64 core.
MAX_TOKENS = 200_000

_SPACE = re.compile(rb"[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_SCALAR = re.compile(rb'[^\s,:"\[\]{}]+')
_NEXT_TOKEN = re.compile(rb'[^"\[\]{}]*')
_BOM = b"\xef\xbb\xbf"
_OPENING = b"[{"
_CLOSING = b"]}"


class NotJsonError(Exception):
    """The text is no JSON object or array, even by lenient rules."""


class TooComplexError(Exception):
    """The text nests too deeply or holds too many parts to be looked at in bounded time."""


@dataclass(frozen=True, slots=True)
class Span:
    """A value's place: `start` is its first byte, `end` is one past its last."""

    start: int
    end: int

    def of(self, text: bytes) -> bytes:
        """The bytes at this place."""
        return text[self.start : self.end]


@dataclass(frozen=True, slots=True)
class Member:
    """One `"key": value` of an object; the key is decoded, escapes and all."""

    key: str
    value: Span


@dataclass(frozen=True, slots=True)
class Object:
    """An object's members in their order, repeated keys included; `close` is the place of its `}`."""

    members: tuple[Member, ...]
    close: int


class _Budget:
    """Counts parts across one text."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = MAX_TOKENS

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise TooComplexError


def looks_wide(text: bytes) -> bool:
    """Whether a text may be UTF-16 or UTF-32, which Python servers decode and the scanner does not."""
    return b"\x00" in text[:8] or text[:2] in (b"\xff\xfe", b"\xfe\xff")


def scan_object(text: bytes, start: int = 0) -> Object:
    """The members of the object that begins at or after `start`; raises NotJsonError, TooComplexError."""
    at = _skip_space(text, start)
    if at == 0 and text.startswith(_BOM):
        at = _skip_space(text, len(_BOM))
    if text[at : at + 1] != b"{":
        raise NotJsonError
    budget = _Budget()
    members: list[Member] = []
    at = _skip_space(text, at + 1)
    if text[at : at + 1] == b"}":
        return Object((), at)
    while True:
        key_match = _STRING.match(text, at)
        if key_match is None:
            raise NotJsonError
        budget.spend()
        at = _skip_space(text, key_match.end())
        if text[at : at + 1] != b":":
            raise NotJsonError
        value = _value_span(text, _skip_space(text, at + 1), budget)
        members.append(Member(decode_string(key_match.group()), value))
        at = _skip_space(text, value.end)
        separator = text[at : at + 1]
        if separator == b"}":
            return Object(tuple(members), at)
        if separator != b",":
            raise NotJsonError
        at = _skip_space(text, at + 1)


def scan_array(text: bytes, span: Span) -> list[Span]:
    """Places of the elements of the array at `span`; raises NotJsonError, TooComplexError."""
    if text[span.start : span.start + 1] != b"[":
        raise NotJsonError
    budget = _Budget()
    elements: list[Span] = []
    at = _skip_space(text, span.start + 1)
    if text[at : at + 1] == b"]":
        return elements
    while True:
        element = _value_span(text, at, budget)
        elements.append(element)
        at = _skip_space(text, element.end)
        separator = text[at : at + 1]
        if separator == b"]":
            return elements
        if separator != b",":
            raise NotJsonError
        at = _skip_space(text, at + 1)


def decode_string(raw: bytes) -> str:
    """The characters of a string token; escapes decoded, invalid UTF-8 replaced, a bad escape kept as it is."""
    inner = raw.decode("utf-8", errors="replace")
    if "\\" not in inner:
        return inner[1:-1]
    try:
        decoded = json.loads(inner, strict=False)
    except ValueError:
        return inner[1:-1]
    return decoded if isinstance(decoded, str) else inner[1:-1]


def _skip_space(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _value_span(text: bytes, at: int, budget: _Budget) -> Span:
    budget.spend()
    first = text[at : at + 1]
    if first == b'"':
        match = _STRING.match(text, at)
        if match is None:
            raise NotJsonError
        return Span(at, match.end())
    if first in (b"{", b"["):
        return Span(at, _container_end(text, at, budget))
    match = _SCALAR.match(text, at)
    if match is None:
        raise NotJsonError
    return Span(at, match.end())


def _container_end(text: bytes, at: int, budget: _Budget) -> int:
    depth = 0
    length = len(text)
    while at < length:
        char = text[at]
        if char == 0x22:
            match = _STRING.match(text, at)
            if match is None:
                raise NotJsonError
            at = match.end()
        else:
            if char in _OPENING:
                depth += 1
                if depth > MAX_DEPTH:
                    raise TooComplexError
            elif char in _CLOSING:
                depth -= 1
                if depth == 0:
                    return at + 1
            at += 1
        budget.spend()
        skipped = _NEXT_TOKEN.match(text, at)
        at = skipped.end() if skipped else at
    raise NotJsonError
