"""Caps the number of tokens that a request may ask for, by editing its JSON text in place.

min(), never more: a smaller limit of the client stays, a missing, null, negative or unusable one becomes the cap,
0 stays 0 (llama.cpp then evaluates the prompt only). Every occurrence of a repeated key is capped, because parsers
differ in which one counts. All other bytes stay as they are.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from slmguard.gate.endpoints import Dialect
from slmguard.gate.jsonscan import Member, Object, Span, scan_object


@dataclass(frozen=True, slots=True)
class _Fields:
    """The fields of one API.

    `primary` is set when it is missing; `aliases` are capped where present, for llama-server reads several names
    and prefers `n_predict`; `ceilings` only ever go down (missing means a small default there).
    `inside` names the object that holds them (Ollama's `options`).
    """

    primary: str
    aliases: tuple[str, ...] = ()
    ceilings: tuple[str, ...] = ("min_tokens",)
    choices: tuple[str, ...] = ("n", "n_cmpl", "best_of")
    inside: str = ""
    fold_case: bool = False


_OPENAI_ALIASES = ("max_completion_tokens", "n_predict", "max_new_tokens")
# Go matches keys without regard to case.
_OLLAMA = _Fields("num_predict", ceilings=(), choices=(), inside="options", fold_case=True)
_FIELDS: dict[Dialect, _Fields] = {
    Dialect.OPENAI_CHAT: _Fields("max_tokens", _OPENAI_ALIASES),
    Dialect.OPENAI_COMPLETION: _Fields("max_tokens", _OPENAI_ALIASES),
    Dialect.OPENAI_RESPONSES: _Fields("max_output_tokens", ("max_tokens", "n_predict")),
    Dialect.ANTHROPIC: _Fields("max_tokens", ("n_predict",)),
    Dialect.LLAMA: _Fields("n_predict", ("max_tokens", "max_completion_tokens")),
    Dialect.OLLAMA_CHAT: _OLLAMA,
    Dialect.OLLAMA_GENERATE: _OLLAMA,
    Dialect.KOBOLD: _Fields("max_length", ("max_tokens", "n_predict")),
}
# Sizes of the context that a request may ask for; capped by the configured window only, never set:
# another num_ctx makes Ollama load the model again.
_CONTEXT_FIELDS: dict[Dialect, str] = {
    Dialect.OLLAMA_CHAT: "num_ctx",
    Dialect.OLLAMA_GENERATE: "num_ctx",
    Dialect.KOBOLD: "max_context_length",
}
_INTEGER = re.compile(r"-?\d+")
# More digits than any counter has; int() of thousands of digits is slow and refused by Python.
_MANY_DIGITS = 18


@dataclass(frozen=True, slots=True)
class Caps:
    """The limits in force; `context_tokens` None leaves context sizes alone."""

    max_tokens: int
    choices: int = 1
    context_tokens: int | None = None


@dataclass(slots=True)
class _Edit:
    """Replacements collected for one text."""

    replaced: list[tuple[Span, bytes]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)

    def put(self, name: str, span: Span, value: bytes) -> None:
        self.replaced.append((span, value))
        if name not in self.names:
            self.names.append(name)

    def apply(self, text: bytes) -> bytes:
        pieces: list[bytes] = []
        at = 0
        for span, value in sorted(self.replaced, key=lambda item: item[0].start):
            pieces += (text[at : span.start], value)
            at = span.end
        pieces.append(text[at:])
        return b"".join(pieces)


def clamp(text: bytes, dialect: Dialect, caps: Caps) -> tuple[bytes, tuple[str, ...]]:
    """The text with its limits capped and the names of the fields that were changed.

    Raises NotJsonError and TooComplexError of `jsonscan`.
    """
    fields = _FIELDS.get(dialect)
    if fields is None:
        return text, ()
    edit = _Edit()
    top = scan_object(text)
    if fields.inside:
        _clamp_inside(text, top, fields, dialect, caps, edit)
    else:
        _clamp_object(text, top, fields, dialect, caps, edit)
    return (edit.apply(text), tuple(edit.names)) if edit.replaced else (text, ())


def _clamp_inside(text: bytes, top: Object, fields: _Fields, dialect: Dialect, caps: Caps, edit: _Edit) -> None:
    holders = [member for member in top.members if _folded(member.key, fields) == fields.inside]
    new = f'{{"{fields.primary}": {caps.max_tokens}}}'.encode()
    for member in holders:
        first = text[member.value.start : member.value.start + 1]
        if first == b"{":
            inner = scan_object(text, member.value.start)
            _clamp_object(text, inner, fields, dialect, caps, edit)
        elif member.value.of(text) == b"null":
            edit.put(fields.primary, member.value, new)
    if not holders:
        _insert(top, f'"{fields.inside}": '.encode() + new, fields.primary, edit)


def _clamp_object(text: bytes, obj: Object, fields: _Fields, dialect: Dialect, caps: Caps, edit: _Edit) -> None:
    limits = {fields.primary, *fields.aliases}
    primary_seen = False
    smallest = caps.max_tokens
    open_ended: list[tuple[Member, str]] = []
    for member in obj.members:
        name = _folded(member.key, fields)
        if name in limits:
            primary_seen = primary_seen or name == fields.primary
            asked = _number(member.value.of(text))
            if asked is None or asked < 0:
                open_ended.append((member, name))
            else:
                smallest = min(smallest, math.floor(asked)) if asked < smallest else smallest
                _lower(text, member, name, caps.max_tokens, edit)
        elif name in fields.ceilings:
            _lower(text, member, name, caps.max_tokens, edit)
        elif name in fields.choices:
            _lower(text, member, name, caps.choices, edit)
        elif caps.context_tokens is not None and name == _CONTEXT_FIELDS.get(dialect):
            _lower(text, member, name, caps.context_tokens, edit)
    # An open limit beside a stated one means the stated one: the client asked for no more.
    for member, name in open_ended:
        edit.put(name, member.value, str(smallest).encode())
    if not primary_seen:
        _insert(obj, f'"{fields.primary}": {smallest}'.encode(), fields.primary, edit)


def _lower(text: bytes, member: Member, name: str, cap: int, edit: _Edit) -> None:
    raw = member.value.of(text)
    asked = _number(raw)
    if asked is None:
        return
    if asked > cap:
        edit.put(name, member.value, str(cap).encode())
    elif raw[:1] == b'"' and name not in ("n", "n_cmpl", "best_of"):
        # llama-server ignores a limit in quotes and then has none.
        edit.put(name, member.value, str(math.floor(asked)).encode())


def _insert(obj: Object, pair: bytes, name: str, edit: _Edit) -> None:
    if obj.members:
        end = obj.members[-1].value.end
        edit.put(name, Span(end, end), b", " + pair)
    else:
        edit.put(name, Span(obj.close, obj.close), pair)


def _folded(key: str, fields: _Fields) -> str:
    return key.casefold() if fields.fold_case else key


def _number(raw: bytes) -> float | None:
    """The number that the most generous server reads from a value, None when there is none in it."""
    if raw in (b"true", b"false"):
        return 1.0 if raw == b"true" else 0.0
    text = raw.decode("utf-8", errors="replace").strip('"').strip()
    if _INTEGER.fullmatch(text) and len(text) > _MANY_DIGITS:
        return -1.0 if text.startswith("-") else math.inf
    try:
        value = float(text)
    except ValueError:
        return None
    return None if math.isnan(value) else value
