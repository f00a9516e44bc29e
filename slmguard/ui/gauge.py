"""The bar that shows a figure against its limit, with the levels marked on it."""

from __future__ import annotations

from collections.abc import Sequence

EIGHTHS = " ▏▎▍▌▋▊▉█"
SPARKS = "▁▂▃▄▅▆▇█"


def bar(ratio: float | None, width: int, marks: Sequence[float], full: float = 1.0) -> str:
    """`width` cells for 0 to `full`; `marks` are ratios shown as thin lines where the bar has not yet come."""
    width = max(0, width)
    cells = [" "] * width
    for mark in marks:
        if width and 0 < mark < full:
            cells[min(width - 1, int(mark / full * width))] = "┊"
    if full == 1.0 and width:
        cells[-1] = "│"
    filled = max(0.0, min(1.0, (ratio or 0.0) / full)) * width
    whole = int(filled)
    cells[:whole] = "█" * whole
    part = EIGHTHS[int((filled - whole) * 8)]
    if whole < width and part != " " and cells[whole] == " ":
        cells[whole] = part
    return "".join(cells)


def spark(values: Sequence[float], width: int, low: float, high: float) -> str:
    """The newest `width` values as a line of blocks between `low` and `high`."""
    span = max(high - low, 1e-9)
    newest = values[-width:] if width > 0 else []
    return "".join(SPARKS[max(0, min(7, int((value - low) / span * 8)))] for value in newest)
