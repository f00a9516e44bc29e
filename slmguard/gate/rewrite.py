"""Applies what is in force to the body of one request, and says in headers what was done."""

from __future__ import annotations

from collections.abc import AsyncIterator

from aiohttp import web

from slmguard.gate import jsonscan, refusal
from slmguard.gate.bodies import Body
from slmguard.gate.clamp import Caps, clamp
from slmguard.gate.endpoints import Dialect
from slmguard.gate.state import GateState
from slmguard.gate.tokens import TokenCounter
from slmguard.gate.trim import Windows, trim
from slmguard.gate.upstream import Upstream

CLAMPED, TRIMMED = "x-slmguard-clamped", "x-slmguard-trimmed"
Content = bytes | AsyncIterator[bytes] | None


class Rewriter:
    """Clamps and trims; leaves every body alone while nothing is in force."""

    def __init__(self, state: GateState, upstream: Upstream) -> None:
        self._state = state
        self._counter = TokenCounter(upstream)

    async def rewrite(
        self, request: web.BaseRequest, dialect: Dialect, body: Body
    ) -> tuple[Content, list[tuple[str, str]]]:
        """What is to be sent and the headers for the client; raises RefusedError."""
        caps = self._caps()
        windows = Windows(self._state.trim_window_tokens, self._state.settings.max_context_tokens or None)
        if caps is None and not windows.any:
            return body.to_send(), []
        text = _text(request, body, self._state.settings.max_body_bytes)
        notes: list[tuple[str, str]] = []
        try:
            if windows.any:
                authorization = {
                    name: request.headers[name] for name in ("Authorization", "X-Api-Key") if name in request.headers
                }
                text, dropped = await trim(text, dialect, windows, self._counter.bound(authorization))
                if dropped:
                    notes.append((TRIMMED, str(dropped)))
                    self._state.counters.trimmed += 1
                    self._state.counters.trimmed_messages += dropped
            if caps is not None:
                text, names = clamp(text, dialect, caps)
                if names:
                    notes.append((CLAMPED, ", ".join(names)))
                    self._state.counters.clamped += 1
        except jsonscan.NotJsonError:
            # Not ours to judge: the server answers it as it would without a gate.
            return body.to_send(), []
        except jsonscan.TooComplexError as error:
            raise refusal.refuse(
                400, "body_too_complex", "slmguard: the request body nests too deeply or has too many parts"
            ) from error
        return text, notes

    def _caps(self) -> Caps | None:
        settings, policy = self._state.settings, self._state.policy
        if policy.clamp_max_tokens is None:
            return None
        return Caps(policy.clamp_max_tokens, settings.clamp_choices, settings.max_context_tokens or None)


def _text(request: web.BaseRequest, body: Body, limit_bytes: int) -> bytes:
    """The body as text that can be edited; raises RefusedError where editing it is impossible."""
    if body.whole is None:
        message = f"slmguard: under memory pressure a request body may have {limit_bytes} bytes at most"
        raise refusal.refuse(413, "body_too_large", message)
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("identity", ""):
        message = "slmguard: under memory pressure request bodies must not be compressed"
        raise refusal.refuse(415, "encoded_body", message)
    if jsonscan.looks_wide(body.whole):
        raise refusal.refuse(415, "encoded_body", "slmguard: the request body must be UTF-8")
    return body.whole
