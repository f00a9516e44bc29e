"""Figures and foreign text as a person reads them."""

from __future__ import annotations

MIB = 1 << 20
GIB = 1 << 30
UNKNOWN = "–"


def size(number: float | None) -> str:
    """Bytes with one decimal: `345.0 MiB`, `7.6 GiB`; a dash when unknown."""
    if number is None:
        return UNKNOWN
    if abs(number) >= 10 * GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{round(number / MIB, 1) + 0.0:.1f} MiB"  # + 0.0 makes -0.0 positive


def short_size(number: float | None) -> str:
    """Bytes without decimals: `345 MiB`."""
    return UNKNOWN if number is None else f"{round(number / MIB)} MiB"


def percent(ratio: float | None) -> str:
    """A ratio with one decimal, rounded down: 84.99 % must not read as the 85 % line."""
    return UNKNOWN if ratio is None else f"{int(ratio * 1000) / 10:.1f} %"


def duration(seconds: float | None) -> str:
    """`6.5 s`, `4 min 10 s`, `3 h 20 min`, `2 d 4 h`."""
    if seconds is None:
        return UNKNOWN
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    for unit, small, unit_s, small_s in (("min", "s", 60, 1), ("h", "min", 3600, 60), ("d", "h", 86400, 3600)):
        if whole < 60 * unit_s or unit == "d":
            if unit == "h" and whole >= 48 * 3600:
                continue
            return f"{whole // unit_s} {unit} {whole % unit_s // small_s} {small}"
    raise AssertionError("days take everything")  # pragma: no cover


def clock(seconds: float) -> str:
    """Minutes and seconds on a run's clock: `1:07`."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def clean(text: object, limit: int = 300) -> str:
    """Text from elsewhere, safe for a terminal: one line, control characters escaped, cut at `limit` letters."""
    shown = "".join(letter if letter.isprintable() else f"\\x{ord(letter):02x}" for letter in str(text)[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
