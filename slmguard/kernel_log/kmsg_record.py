r"""Raw `/dev/kmsg` records: `priority,sequence,microseconds,flags[,key=value…];text`.

Format as in the kernel's Documentation/ABI/testing/dev-kmsg: priority is facility << 3 | level, bytes outside
printable ASCII and the backslash are written as `\xHH`, unknown further header fields are to be ignored, and lines
that start with a space are a dictionary that belongs to the record above.
"""

from __future__ import annotations

import re

from slmguard.kernel_log.record import Record

# Extended netconsole may put the kernel's release first.
HEADER = re.compile(r"(?:\d{1,2}\.\d[^,;\s]{0,60},)?(\d{1,10}),(\d{1,20}),(\d{1,20}),([^;]{0,200});")
ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")
CALLER = re.compile(r"(?:^|,)caller=([TC]\d+)")


def unescape(text: str) -> str:
    r"""The text with `\xHH` undone; bytes that are no UTF-8 (a name cut inside a character) become U+FFFD."""
    if "\\x" not in text:
        return text
    raw = ESCAPE.sub(lambda match: bytes((int(match[1], 16),)), text.encode("utf-8", "replace"))
    return raw.decode("utf-8", "replace")


def parse_kmsg(raw: str, *, line: int = 0, time: str | None = None) -> Record | None:
    """The record, or None when `raw` is not one (a dictionary line, a cut head).

    Facility 0 is the kernel; userspace can write to /dev/kmsg but the kernel never stores it under facility 0.
    """
    match = HEADER.match(raw)
    if match is None:
        return None
    priority, seq, microseconds = int(match[1]), int(match[2]), int(match[3])
    text = raw[match.end() :].split("\n", 1)[0]
    caller = CALLER.search(match[4]) if "caller=" in match[4] else None
    uptime = f"{microseconds // 1_000_000}.{microseconds % 1_000_000:06d}"
    return Record(
        text=unescape(text),
        form="kmsg",
        from_kernel=priority >> 3 == 0,
        time=time or uptime,
        uptime_s=microseconds / 1e6,
        facility=priority >> 3,
        seq=seq,
        caller=caller[1] if caller else None,
        line=line,
    )
