"""Parsers of the small text files in which the kernel states its figures.

All of them take whatever bytes there are, never raise, and leave out what they cannot be sure of: a row that is not
`key number` is skipped, and so is a last row without its newline, since the kernel always writes one and a cut number
is a wrong number.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

# The largest page counter a cgroup can state: older systemd and some tools print it where the kernel prints "max".
UNLIMITED_BYTES = 2**63 - 1
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_MAX_DIGITS = 20  # 2**64 has 20 digits


def parse_number(data: bytes | None) -> int | None:
    """The one number of a file such as memory.current; None for `max`, an empty or an absent file, or anything else."""
    if data is None:
        return None
    text = data.strip()
    if not text.isdigit() or len(text) > _MAX_DIGITS:
        return None
    return int(text)


def parse_limit(data: bytes | None) -> int | None:
    """A limit in bytes, or None for `max` and for numbers that mean the same."""
    number = parse_number(data)
    return None if number is None or number >= UNLIMITED_BYTES - 0xFFFF else number


def whole_rows(data: bytes) -> list[bytes]:
    """The rows of a file that end in a newline."""
    rows = data.split(b"\n")
    rows.pop()
    return rows


def parse_keyed(data: bytes) -> dict[bytes, int]:
    """Rows of `key number`, as in memory.stat, memory.events and vmstat; the first of equal keys counts."""
    figures: dict[bytes, int] = {}
    for row in whole_rows(data):
        key, _, value = row.partition(b" ")
        if value.isdigit() and len(value) <= _MAX_DIGITS and key and key not in figures:
            figures[key] = int(value)
    return figures


def find_keyed(data: bytes, key: bytes) -> int | None:
    """One row of a long file of `key number` rows (vmstat has 180), without parsing the others."""
    start = 0 if data.startswith(key + b" ") else data.find(b"\n" + key + b" ") + 1
    end = data.find(b"\n", start)
    found = data.startswith(key + b" ", start) and end >= 0
    return parse_number(data[start + len(key) + 1 : end]) if found else None


def parse_colon_rows(data: bytes, wanted: frozenset[bytes] | None = None) -> dict[bytes, int]:
    """Rows of `Key: number [kB]`, as in meminfo, /proc/PID/status and smaps_rollup; kB become bytes.

    Only keys in `wanted` are looked at when it is given. The first of equal keys counts.
    """
    figures: dict[bytes, int] = {}
    for row in whole_rows(data):
        key, colon, rest = row.partition(b":")
        if not colon or (wanted is not None and key not in wanted) or key in figures:
            continue
        words = rest.split()
        if not words or not words[0].isdigit() or len(words[0]) > _MAX_DIGITS:
            continue
        number = int(words[0])
        if len(words) == 1:
            figures[key] = number
        elif words[1] == b"kB":
            figures[key] = number * 1024
    return figures


def parse_pids(data: bytes) -> list[int]:
    """Process ids of cgroup.procs, one a row. 0 (a process of another pid namespace) is left out."""
    return [int(row) for row in whole_rows(data) if row.isdigit() and len(row) <= _MAX_DIGITS and int(row) > 0]


def in_4k_pages(pages: int | None) -> int | None:
    """Pages as this kernel counts them (16 KiB each on a Raspberry Pi 5) in units of 4 KiB."""
    return None if pages is None else pages * _PAGE_BYTES // 4096


def sum_known(figures: dict[bytes, int], keys: Iterable[bytes]) -> int:
    """The sum of those keys that the file has."""
    return sum(figures.get(key, 0) for key in keys)


def printable(text: str, limit: int = 200) -> str:
    """Text from outside made safe to show on a terminal: control characters are escaped, length is bounded."""
    shown = "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in text[:limit]
    )
    return shown + "…" if len(text) > limit else shown
