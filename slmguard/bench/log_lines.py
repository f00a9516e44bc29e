"""Lines of saved engine output as they were meant: without terminal control, carriage returns and JSON wrapping."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import IO, Any

_LONGEST_LINE_BYTES = 1024 * 1024
# Braces that begin no JSON, per line: bounded, since each costs a scan.
_MOST_FAILURES = 16
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_BREAKS = re.compile(r"[\r\n]+")
# Where log writers put the text of a message: llama-server's JSON log, --log-jsonl, Docker, journalctl -o json.
_MESSAGE_KEYS = ("message", "msg", "text", "log", "MESSAGE", "content")


def text_lines(stream: IO[bytes]) -> Iterator[str]:
    """The lines of a file, one at a time; a line of more than 1 MiB is read in pieces."""
    first = stream.readline(_LONGEST_LINE_BYTES)
    encoding = "utf-16" if first.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"
    if encoding == "utf-16":
        # A redirect in PowerShell.
        yield from (first + stream.read()).decode(encoding, "replace").splitlines(keepends=True)
        return
    raw = first.removeprefix(b"\xef\xbb\xbf")
    while raw:
        yield raw.decode(encoding, "replace")
        raw = stream.readline(_LONGEST_LINE_BYTES)


def cleaned(line: str) -> Iterator[str]:
    """The parts of one line between carriage returns (progress bars overwrite themselves), without escape codes."""
    for part in _BREAKS.split(_ANSI.sub("", line).replace("\0", "")):
        if part.strip():
            yield part


def json_objects(line: str) -> list[dict[str, Any]]:
    """The JSON objects that a line holds, also behind a prefix such as `data: `; empty when there is none."""
    start = line.find("{")
    if start < 0 or '"' not in line:
        return []
    decoder = json.JSONDecoder()
    found = []
    failures = 0
    while start >= 0 and failures < _MOST_FAILURES:
        try:
            value, end = decoder.raw_decode(line, start)
        except (ValueError, RecursionError):
            failures += 1
            start = line.find("{", start + 1)
            continue
        if isinstance(value, dict):
            found.append(value)
        start = line.find("{", end)
    return found


def messages(record: dict[str, Any]) -> Iterator[str]:
    """The lines of text inside a JSON log record: its message, or any text that looks like a figure's line."""
    for key, value in record.items():
        if isinstance(value, str) and (key in _MESSAGE_KEYS or " time " in value or "buffer size" in value):
            yield from (part for part in _BREAKS.split(value) if part.strip())
