"""How many tokens an answer shows to have been generated, for the daemon's stall detector.

A stream shows one event or line a token, near enough; a whole answer states its count.
"""

from __future__ import annotations

import re

# Inside a text of the model these names would stand with backslashes before their quotes.
_STATED = re.compile(rb'"(?:completion_tokens|tokens_predicted|output_tokens|eval_count)"\s*:\s*(\d{1,9})')
_EVENT, _LINE = b"data:", b"\n"


def event_mark(content_type: str) -> bytes | None:
    """What begins or ends one event of a stream of this type; None when it is no stream."""
    if content_type == "text/event-stream":
        return _EVENT
    return _LINE if content_type == "application/x-ndjson" else None


def stated_tokens(answer: bytes) -> int:
    """The count that a whole answer states, 0 when it states none."""
    stated = _STATED.search(answer)
    return int(stated.group(1)) if stated else 0
