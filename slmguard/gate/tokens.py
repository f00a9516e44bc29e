"""How many tokens a text has: the server's own `/tokenize` where it has one, else bytes divided by three.

Three bytes a token errs on the safe side for English (about four) and is about right for CJK in UTF-8 (one
character, three bytes). llama-server's `/tokenize` runs on an HTTP thread and does not wait for the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from slmguard.gate.upstream import Upstream, UpstreamLostError

log = logging.getLogger("slmguard.gate")

ESTIMATED_BYTES_PER_TOKEN = 3
_ASK_TIMEOUT_S = 2.0
# Beyond this a text is estimated: no window of a small board is that large.
_LARGEST_TEXT_BYTES = 64 * 1024
_LARGEST_ANSWER_BYTES = 1024 * 1024
_CACHED_COUNTS = 1024
# How long a server that could not answer is not asked again.
_ABSENT_S = 300.0
_SLOW_S = 10.0

Count = Callable[[str], Awaitable[int]]


def estimate(text: str) -> int:
    """Tokens by the length in bytes, rounded up."""
    return -(-len(text.encode("utf-8", "replace")) // ESTIMATED_BYTES_PER_TOKEN)


class TokenCounter:
    """Asks the server, remembers what it said about the same text, and estimates when it cannot be asked."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream
        self._known: OrderedDict[bytes, int] = OrderedDict()
        self._not_before_s = 0.0

    def bound(self, headers: dict[str, str]) -> Count:
        """A counter that shows the server the key of the client whose text is counted."""

        async def count(text: str) -> int:
            return await self.count(text, headers)

        return count

    async def count(self, text: str, headers: dict[str, str]) -> int:
        """Tokens of a text; never raises for what the server does."""
        if not text:
            return 0
        raw = text.encode("utf-8", "replace")
        now_s = asyncio.get_running_loop().time()
        if len(raw) > _LARGEST_TEXT_BYTES or now_s < self._not_before_s:
            return estimate(text)
        key = hashlib.blake2b(raw, digest_size=16).digest()
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            return known
        counted = await self._ask(text, headers, now_s)
        if counted is None:
            return estimate(text)
        self._known[key] = counted
        if len(self._known) > _CACHED_COUNTS:
            self._known.popitem(last=False)
        return counted

    async def _ask(self, text: str, headers: dict[str, str], now_s: float) -> int | None:
        try:
            status, content = await self._upstream.post_json(
                "/tokenize", {"content": text}, headers, _ASK_TIMEOUT_S, _LARGEST_ANSWER_BYTES
            )
        except UpstreamLostError:
            self._not_before_s = now_s + _SLOW_S
            return None
        counted = _count_in(content) if status == 200 else None
        if counted is None and status not in (401, 403):
            log.info("the server has no usable /tokenize (status %d): token counts are estimated", status)
            self._not_before_s = now_s + _ABSENT_S
        return counted


def _count_in(content: bytes) -> int | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    tokens = document.get("tokens") if isinstance(document, dict) else None
    return len(tokens) if isinstance(tokens, list) else None
