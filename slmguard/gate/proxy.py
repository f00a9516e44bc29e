"""The front door itself: decides for each request whether it is answered here, refused, or passed on."""

from __future__ import annotations

import hashlib
import logging
import secrets
from collections.abc import Hashable

from aiohttp import web

from slmguard.gate import refusal
from slmguard.gate.bodies import Body, invite, read_body
from slmguard.gate.endpoints import Endpoint, Kind, classify
from slmguard.gate.exchange import Exchange
from slmguard.gate.headers import REQUEST_ID, forwarded, request_id
from slmguard.gate.local import LocalEndpoints
from slmguard.gate.refusal import RefusedError
from slmguard.gate.response import answer
from slmguard.gate.rewrite import Content, Rewriter
from slmguard.gate.state import GateState
from slmguard.gate.upstream import Upstream, UpstreamRequest

log = logging.getLogger("slmguard.gate")

# Other requests are kept for sending again only while they are small.
_SMALL_BODY_BYTES = 64 * 1024
_LENGTH_HEADERS = frozenset({"content-length", "expect", REQUEST_ID.lower()})
_EXPECT_HEADERS = frozenset({"expect", REQUEST_ID.lower()})


class Proxy:
    """Handles every request that the listening socket brings."""

    def __init__(self, state: GateState, upstream: Upstream, local: LocalEndpoints) -> None:
        self._state = state
        self._upstream = upstream
        self._local = local
        self._rewriter = Rewriter(state, upstream)
        # Tells clients apart without keeping their keys.
        self._salt = secrets.token_bytes(16)

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """The answer to one request."""
        self._state.counters.requests += 1
        identity = request_id(request.headers.get(REQUEST_ID))
        target = request.raw_path
        endpoint = classify(request.method, target)
        try:
            _check_target(request, target)
            if self._local.owns(target):
                return await self._local.handle(request, identity)
            return await self._pass(request, endpoint, target, identity)
        except RefusedError as error:
            return await self._refuse(request, endpoint, identity, error.refusal)

    async def _pass(
        self, request: web.BaseRequest, endpoint: Endpoint, target: str, identity: str
    ) -> web.StreamResponse:
        computes = endpoint.kind in (Kind.GENERATE, Kind.COMPUTE)
        policy = self._state.policy
        if computes and policy.refuse and not self._state.holding:
            raise refusal.memory_pressure(policy.retry_after_s)
        invite(request)
        settings = self._state.settings
        with self._state.buffers.lease() as lease:
            limit_bytes = settings.max_body_bytes if computes else _SMALL_BODY_BYTES
            body = await read_body(request, lease, limit_bytes, settings.body_timeout_s)
            exchange = Exchange(self._state, self._upstream, request, endpoint, identity)

            async def prepare() -> tuple[UpstreamRequest, list[tuple[str, str]]]:
                content: Content = body.to_send()
                notes: list[tuple[str, str]] = []
                if endpoint.kind is Kind.GENERATE:
                    content, notes = await self._rewriter.rewrite(request, endpoint.dialect, body)
                return self._upstream_request(request, target, identity, body, content), notes

            return await exchange.run(self._client(request), prepare)

    def _upstream_request(
        self, request: web.BaseRequest, target: str, identity: str, body: Body, content: Content
    ) -> UpstreamRequest:
        # A body that is known whole is sent with its length, however it came.
        headers = forwarded(request.raw_headers, _EXPECT_HEADERS if body.rest else _LENGTH_HEADERS)
        headers[REQUEST_ID] = identity
        if body.rest is None and (content or request.method in ("POST", "PUT", "PATCH")):
            headers["Content-Length"] = str(len(content) if isinstance(content, bytes) else 0)
        return UpstreamRequest(request.method, target, headers, content)

    def _client(self, request: web.BaseRequest) -> Hashable:
        key = request.headers.get("Authorization", request.headers.get("X-Api-Key", ""))
        mark = hashlib.blake2b(key.encode("utf-8", "replace"), key=self._salt, digest_size=8).digest()
        return (request.remote, mark)

    async def _refuse(
        self, request: web.BaseRequest, endpoint: Endpoint, identity: str, reason: refusal.Refusal
    ) -> web.StreamResponse:
        self._state.count_refusal(reason.code)
        log.debug("refused id=%s code=%s status=%d", identity, reason.code, reason.status)
        extra = []
        if reason.retry_after_s is not None:
            extra.append(("Retry-After", str(reason.retry_after_s)))
        if reason.status == 401:
            extra.append(("WWW-Authenticate", 'Bearer realm="slmguard"'))
        content = refusal.body(reason, endpoint.dialect)
        return await answer(request, reason.status, content, identity, extra)


def _check_target(request: web.BaseRequest, target: str) -> None:
    """Raise RefusedError for what only a forward proxy would take, and for other versions than 1.0 and 1.1."""
    method = request.method
    if tuple(request.version) not in ((1, 0), (1, 1)):
        raise refusal.refuse(505, "http_version", "slmguard: HTTP/1.1 is spoken here")
    if method == "CONNECT":
        raise refusal.refuse(405, "method_not_allowed", "slmguard: CONNECT is not served here")
    if not target.startswith("/") and not (method == "OPTIONS" and target == "*"):
        raise refusal.refuse(400, "bad_target", "slmguard: the request target must be a path")
    if "\\" in target or any(ord(char) <= 0x20 or ord(char) == 0x7F for char in target):
        raise refusal.refuse(400, "bad_target", "slmguard: the request target holds forbidden characters")
