"""Kernel records wrapped in JSON: `journalctl -o json`, `dmesg --json`, and container log files."""

from __future__ import annotations

import json
import re
from typing import cast

from slmguard.kernel_log.record import Record
from slmguard.kernel_log.stamps import iso_or_as_printed

DMESG_MESSAGE = re.compile(r'"msg"\s*:\s*("(?:[^"\\]|\\.)*")')


def frame_json(line: str, number: int) -> Record | None:
    """The record in one JSON object a line, or None when it holds no log message.

    A journal entry is the kernel's when its `_TRANSPORT` says so: journald sets that field, a program cannot.
    """
    text = DMESG_MESSAGE.match(line)
    if text:  # `dmesg --json` is pretty-printed: the message stands on a line of its own
        return Record(text=str(json.loads(text[1])), form="dmesg", line=number)
    try:
        entry = json.loads(line.rstrip(","))
    except (ValueError, RecursionError):
        return None
    if not isinstance(entry, dict):
        return None
    fields = cast("dict[str, object]", entry)
    if "MESSAGE" in fields:
        return journal_entry(fields, number)
    return _wrapped(fields, number)


def journal_entry(entry: dict[str, object], number: int = 0) -> Record | None:
    """One entry of `journalctl -o json`; a message that is no UTF-8 comes as a list of bytes."""
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        message = bytes(byte for byte in message if isinstance(byte, int) and 0 <= byte < 256).decode(errors="replace")
    if not isinstance(message, str):
        return None
    transport = entry.get("_TRANSPORT")
    if transport is None:  # exported without trusted fields
        from_kernel = entry.get("SYSLOG_IDENTIFIER") == "kernel" and "_PID" not in entry
    else:
        from_kernel = transport == "kernel"
    return Record(
        text=message,
        form="journal",
        from_kernel=from_kernel,
        time=_wall(entry.get("__REALTIME_TIMESTAMP")),
        uptime_s=_seconds(entry.get("_SOURCE_MONOTONIC_TIMESTAMP")),
        line=number,
    )


def _wrapped(entry: dict[str, object], number: int) -> Record | None:
    """A log line inside another program's JSON: believed only when the line inside has a kernel prefix of its own."""
    from slmguard.kernel_log.framing import frame

    for key in ("log", "message", "msg"):
        inner = entry.get(key)
        if not isinstance(inner, str) or inner.lstrip().startswith("{"):
            continue
        record = frame(inner.split("\n", 1)[0], number=number)
        if record is None:
            return None
        tag = next((entry[name] for name in ("ident", "tag", "appname", "programname", "app") if name in entry), None)
        trusted = record.from_kernel and (record.uptime_s is not None or tag == "kernel")
        stamp = entry.get("time") or entry.get("timestamp") or entry.get("@timestamp")
        return Record(
            text=record.text,
            form="syslog",
            from_kernel=trusted,
            time=iso_or_as_printed(stamp) if isinstance(stamp, str) else record.time,
            uptime_s=record.uptime_s,
            caller=record.caller,
            line=number,
        )
    return None


def _seconds(microseconds: object) -> float | None:
    return int(microseconds) / 1e6 if isinstance(microseconds, str) and microseconds.isdecimal() else None


def _wall(microseconds: object) -> str | None:
    if not (isinstance(microseconds, str) and microseconds.isdecimal() and len(microseconds) < 18):
        return None
    from datetime import datetime, timezone

    return datetime.fromtimestamp(int(microseconds) / 1e6, timezone.utc).isoformat(timespec="microseconds")
