"""Time stamps as logs print them: made comparable, and ISO 8601 where they are complete.

Month and weekday names come in the language of the machine ("апр 28", "3月 30", "Di Aug 12"), so dates are compared as
text and only the time of day is understood.
"""

from __future__ import annotations

import re

ISO = re.compile(r"(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d(?:[.,]\d+)?)\s?(Z|[+-]\d\d:?\d\d)?")
ENGLISH = re.compile(
    r"(?:\w{3}\s+)?([A-Z][a-z]{2})\s+(\d{1,2})\s+(\d\d:\d\d:\d\d)(?:\.\d+)?\s+(?:[A-Z]{3,5}\s+)?(\d{4})"
)
TIME_OF_DAY = re.compile(r"(\d{1,2}):(\d\d)(?::(\d\d))?")
MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), start=1
    )
}
DAY_S = 86_400


def iso_or_as_printed(stamp: str) -> str:
    """ISO 8601 when the stamp holds a full date that can be read, else the stamp as it was printed."""
    match = ISO.search(stamp)
    if match:
        zone = match[3] or ""
        if zone and zone != "Z" and ":" not in zone:
            zone = f"{zone[:3]}:{zone[3:]}"
        return f"{match[1]}T{match[2].replace(',', '.')}{zone}"
    match = ENGLISH.fullmatch(stamp.strip())
    if match and match[1] in MONTHS:
        return f"{match[4]}-{MONTHS[match[1]]:02d}-{int(match[2]):02d}T{match[3]}"
    return " ".join(stamp.split())


def seconds_apart(first: str | None, second: str | None) -> int | None:
    """Seconds between two stamps, or None when they cannot be compared.

    With different dates the answer is at least a day unless the two lie around midnight.
    """
    if first is None or second is None:
        return None
    if first == second:
        return 0
    one, two = TIME_OF_DAY.search(first), TIME_OF_DAY.search(second)
    if one is None or two is None:
        return None
    apart = abs(_of_day(one) - _of_day(two))
    if _date(first, one) == _date(second, two):
        return apart
    return DAY_S - apart if apart > DAY_S - 900 else DAY_S


def is_before(second: str | None, first: str | None) -> bool | None:
    """Whether the later printed stamp `second` is the earlier time; None when they cannot be told apart."""
    if first is None or second is None or first == second:
        return None
    one, two = TIME_OF_DAY.search(first), TIME_OF_DAY.search(second)
    if one is None or two is None or _date(first, one) != _date(second, two) or _of_day(one) == _of_day(two):
        return None
    return _of_day(two) < _of_day(one)


def _of_day(match: re.Match[str]) -> int:
    return int(match[1]) * 3600 + int(match[2]) * 60 + int(match[3] or 0)


def _date(stamp: str, match: re.Match[str]) -> str:
    return stamp[: match.start()].rstrip("T ")
