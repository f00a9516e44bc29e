"""Which headers travel on, and which belong to one connection only."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable

from multidict import CIMultiDict

# RFC 9110 section 7.6.1, and the older names that proxies still send.
HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-connection",
        "proxy-authorization",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
REQUEST_ID = "X-Request-Id"
_GOOD_REQUEST_ID = re.compile(r"[\x21-\x7e]{1,128}")
_LATIN = "latin-1"


def forwarded(raw: Iterable[tuple[bytes, bytes]], drop: frozenset[str] = frozenset()) -> CIMultiDict[str]:
    """End-to-end headers in their order and spelling, without `drop` (lower case) and what Connection names.

    Bytes above 127 pass as they came: latin-1 both ways for names, surrogate-escaped UTF-8 for values, which is
    how aiohttp writes them out again.
    """
    pairs = [(name.decode(_LATIN), value.decode("utf-8", "surrogateescape")) for name, value in raw]
    named = {
        token.strip().lower() for name, value in pairs if name.lower() == "connection" for token in value.split(",")
    }
    # A sender cannot have these taken away by naming them in Connection.
    gone = HOP_BY_HOP | drop | (named - {"content-length", "host", "authorization", "content-type"})
    return CIMultiDict((name, value) for name, value in pairs if name.lower() not in gone)


def request_id(given: str | None) -> str:
    """The client's request id when it is printable and short, else a new one of 32 hex digits."""
    if given is not None and _GOOD_REQUEST_ID.fullmatch(given):
        return given
    return secrets.token_hex(16)
