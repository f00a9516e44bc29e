"""Sizes as people type them and as they are shown."""

from __future__ import annotations

import re

from slmguard.core.errors import UserError

MIB = 1024 * 1024
_UNITS = {"": 1, "K": 1024, "M": MIB, "G": 1024 * MIB, "T": 1024 * 1024 * MIB}
_SIZE = re.compile(r"^\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?\s*$", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of `4G`, `2600M`, `2.5G`, `512MiB` or a plain number; units are binary, as systemd takes them.

    Raises UserError when the text is no size above 0.
    """
    match = _SIZE.match(text)
    size = int(float(match["number"]) * _UNITS[match["unit"].upper()]) if match and len(text) < 32 else 0
    if size <= 0:
        raise UserError(f"{text!r} is no size: write it like 4G, 2600M or in bytes")
    return size


def mib(size_bytes: float) -> str:
    """`1,833 MiB`."""
    return f"{size_bytes / MIB:,.0f} MiB"


def systemd_size(size_bytes: int) -> str:
    """`2600M`, rounded down, as MemoryHigh= takes it."""
    return f"{size_bytes // MIB}M"
