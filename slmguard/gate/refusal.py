"""Answers that the gate gives itself, in the shape that the client of each API expects.

OpenAI's clients read `error.code`; Anthropic's read `error.type`; Ollama's read a plain text. The openai
package retries 503 and 429 twice and honours Retry-After up to 120 s (openai 3.57).
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from slmguard.gate.endpoints import Dialect

MEMORY_PRESSURE = "memory_pressure"
QUEUE_FULL = "queue_full"
RESTARTING = "restarting"
UPSTREAM_DOWN = "upstream_unavailable"
UPSTREAM_CLOSED = "upstream_closed"


@dataclass(frozen=True, slots=True)
class Refusal:
    """One answer: status, code for programs, sentence for people."""

    status: int
    code: str
    message: str
    retry_after_s: int | None = None

    @property
    def kind(self) -> str:
        """OpenAI's error type for this status."""
        if self.status == 429:
            return "rate_limit_error"
        return "server_error" if self.status >= 500 else "invalid_request_error"


class RefusedError(Exception):
    """Ends the handling of a request with a refusal."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal


def refuse(status: int, code: str, message: str, retry_after_s: int | None = None) -> RefusedError:
    """An exception to raise."""
    return RefusedError(Refusal(status, code, message, retry_after_s))


def memory_pressure(retry_after_s: int) -> RefusedError:
    """The refusal of the ladder's rung of that name."""
    message = f"slmguard: the server is short of memory, retry in {retry_after_s} s"
    return refuse(503, MEMORY_PRESSURE, message, retry_after_s)


def body(refusal: Refusal, dialect: Dialect) -> bytes:
    """The JSON body in the dialect's shape."""
    return json.dumps(_document(refusal, dialect)).encode()


def stream_end(refusal: Refusal, dialect: Dialect) -> bytes:
    """What ends an event stream that can go no further; empty where the dialect has no such thing."""
    document = json.dumps(_document(refusal, dialect)).encode()
    if dialect in (Dialect.OLLAMA_CHAT, Dialect.OLLAMA_GENERATE):
        return document + b"\n"
    # An event cut in half is closed first by the empty line, so that the error stands alone.
    if dialect in (Dialect.ANTHROPIC, Dialect.OPENAI_RESPONSES):
        return b"\n\nevent: error\ndata: " + document + b"\n\n"
    return b"\n\ndata: " + document + b"\n\n"


def _document(refusal: Refusal, dialect: Dialect) -> dict[str, object]:
    if dialect in (Dialect.OLLAMA_CHAT, Dialect.OLLAMA_GENERATE):
        return {"error": refusal.message}
    if dialect is Dialect.ANTHROPIC:
        kinds = {429: "rate_limit_error", 503: "overloaded_error"}
        fallback = "api_error" if refusal.status >= 500 else "invalid_request_error"
        kind = kinds.get(refusal.status, fallback)
        error = {"type": kind, "message": refusal.message, "code": refusal.code}
        return {"type": "error", "error": error}
    if dialect is Dialect.KOBOLD:
        return {"detail": {"msg": refusal.message, "type": "service_unavailable", "code": refusal.code}}
    return {
        "error": {"message": refusal.message, "type": refusal.kind, "param": None, "code": refusal.code},
    }
