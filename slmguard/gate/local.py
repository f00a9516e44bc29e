"""What the gate answers itself: its health and metrics, the trim window, and admission for other front ends."""

from __future__ import annotations

import difflib
import hmac
import ipaddress
import json
from typing import Any

from aiohttp import web

from slmguard.gate import refusal
from slmguard.gate.bodies import invite, read_body
from slmguard.gate.metrics import render
from slmguard.gate.response import answer
from slmguard.gate.state import GateState

HEALTH, METRICS, ADMIT, TRIM = "/slmguard/health", "/slmguard/metrics", "/admit", "/api/v1/context/trim"
_PATHS = (HEALTH, METRICS, ADMIT, TRIM)
_METHODS = {HEALTH: ("GET", "HEAD"), METRICS: ("GET", "HEAD"), ADMIT: ("GET", "HEAD"), TRIM: ("GET", "POST", "DELETE")}
# A peer on loopback that carries one of these speaks for somebody else, or is a web page in a browser.
_FOREIGN = ("X-Forwarded-For", "X-Real-Ip", "Forwarded", "Via", "Origin", "Sec-Fetch-Site")
_LONGEST_ORDER_BYTES = 4096
_LARGEST_WINDOW = 1_000_000


class LocalEndpoints:
    """Answers for peers on loopback and for holders of the key."""

    def __init__(self, state: GateState, key: str | None) -> None:
        self._state = state
        self._key = key

    def owns(self, target: str) -> bool:
        """Whether a request target is one of the gate's own."""
        return target.split("?", 1)[0] in _PATHS

    async def handle(self, request: web.BaseRequest, identity: str) -> web.StreamResponse:
        """The answer; raises RefusedError."""
        path = request.raw_path.split("?", 1)[0]
        self._check_right(request, path)
        if request.method not in _METHODS[path]:
            raise refusal.refuse(405, "method_not_allowed", f"slmguard: {path} takes {', '.join(_METHODS[path])}")
        if path == METRICS:
            content = render(self._state)
            return await answer(request, 200, content, identity, content_type="text/plain; version=0.0.4")
        if path == ADMIT:
            return await self._admit(request, identity)
        document = self.health() if path == HEALTH else await self._trim(request)
        return await answer(request, 200, json.dumps(document).encode() + b"\n", identity)

    def health(self) -> dict[str, Any]:
        """What the gate knows of itself."""
        state = self._state
        admission = state.admission
        return {
            "status": "ok",
            "daemon": state.daemon,
            "level": state.policy.level.word,
            "hold": state.holding,
            "refuse": state.policy.refuse,
            "clamp_max_tokens": state.policy.clamp_max_tokens,
            "trim_window_tokens": state.trim_window_tokens,
            "in_flight": admission.at_server,
            "waiting": admission.waiting,
            "upstream": "unreachable" if state.upstream_was_down else "ok",
        }

    async def _admit(self, request: web.BaseRequest, identity: str) -> web.StreamResponse:
        policy = self._state.policy
        if policy.refuse or self._state.holding:
            raise refusal.memory_pressure(policy.retry_after_s)
        return await answer(request, 204, b"", identity)

    async def _trim(self, request: web.BaseRequest) -> dict[str, Any]:
        state = self._state
        if request.method == "POST":
            state.window_tokens = _window(await self._order(request))
        elif request.method == "DELETE":
            state.window_tokens = None
        return {
            "keep_recent": state.window_tokens,
            "keep_recent_of_daemon": state.policy.keep_recent_tokens,
            "in_force": state.trim_window_tokens,
            "max_context_tokens": state.settings.max_context_tokens or None,
            "effect": "new chat requests keep the system message, the tools and the newest whole turns that fit"
            if state.trim_window_tokens
            else "new chat requests are passed on whole",
        }

    async def _order(self, request: web.BaseRequest) -> Any:
        invite(request)
        settings = self._state.settings
        with self._state.buffers.lease() as lease:
            body = await read_body(request, lease, _LONGEST_ORDER_BYTES, settings.body_timeout_s)
        try:
            return json.loads(body.whole or b"")
        except (ValueError, RecursionError) as error:
            raise refusal.refuse(400, "bad_order", 'slmguard: send JSON, for example {"keep_recent": 512}') from error

    def _check_right(self, request: web.BaseRequest, path: str) -> None:
        """Loopback peers may; others need the key. Raises RefusedError."""
        given = request.headers.get("X-Slmguard-Key") or _bearer(request.headers.get("Authorization", ""))
        if self._key is not None and given and hmac.compare_digest(given.encode(), self._key.encode()):
            return
        # nginx asks /admit with the headers of the client on whose behalf it asks; the answer is one bit.
        foreign = path != ADMIT and any(name in request.headers for name in _FOREIGN)
        if _is_loopback(request.remote) and not foreign:
            return
        if self._key is not None:
            raise refusal.refuse(401, "key_needed", "slmguard: this address needs the gate's key")
        raise refusal.refuse(403, "loopback_only", "slmguard: this address is served to the same machine only")


def _window(order: Any) -> int:
    """The window in an order; raises RefusedError that says what is wrong."""
    example = 'for example {"keep_recent": 512}'
    if not isinstance(order, dict):
        raise refusal.refuse(400, "bad_order", f"slmguard: send a JSON object, {example}")
    for key in order:
        if key != "keep_recent":
            near = difflib.get_close_matches(key, ["keep_recent"], n=1)
            hint = "did you mean `keep_recent`?" if near else example
            raise refusal.refuse(400, "bad_order", f"slmguard: unknown key {json.dumps(key[:64])}; {hint}")
    value = order.get("keep_recent")
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _LARGEST_WINDOW:
        raise refusal.refuse(
            400, "bad_order", f"slmguard: keep_recent must be a whole number from 1 to {_LARGEST_WINDOW}, {example}"
        )
    return value


def _bearer(header: str) -> str:
    scheme, _, token = header.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _is_loopback(remote: str | None) -> bool:
    if remote is None:
        return True  # a Unix socket has no address
    try:
        address = ipaddress.ip_address(remote.split("%", 1)[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
