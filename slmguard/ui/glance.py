"""`slmguard status` for people: everything at a glance in 80 columns, without any package."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Mapping
from typing import TextIO

from slmguard.ui import words
from slmguard.ui.gauge import bar
from slmguard.ui.picture import Picture, RungRun

WIDTH = 80
LABEL = 11
RUNGS_SHOWN = 5
LEVEL_CODES = {"normal": "32", "elevated": "33", "high": "1;33", "critical": "1;31"}
OUTCOME_CODES = {"ok": "32", "failed": "31", "timeout": "31"}
LIMIT_MARKS = ("elevated_bytes", "high_level_bytes", "critical_bytes")


class Paint:
    """ANSI colours, or none."""

    def __init__(self, enabled: bool) -> None:
        self.enabled = enabled

    def __call__(self, text: str, code: str) -> str:
        """`text` in the colour `code` (the number of an SGR sequence)."""
        return f"\x1b[{code}m{text}\x1b[0m" if self.enabled and code else text


def wants_colour(stream: TextIO, environment: Mapping[str, str] = os.environ) -> bool:
    """True on a terminal that can show colours, unless NO_COLOR is set to anything (no-color.org)."""
    return stream.isatty() and not environment.get("NO_COLOR") and environment.get("TERM", "dumb") != "dumb"


def render(picture: Picture, paint: Paint) -> str:
    """The whole text, ending in a newline."""
    lines = [_headline(picture, paint), *_figure(picture, paint), *_facts(picture)]
    lines += _rungs(picture, paint)
    if picture.degraded:
        lines.append("")
        lines.append("degraded   (what slmguard cannot see or do here)")
        for sentence in picture.degraded:
            lines += textwrap.wrap(sentence, WIDTH, initial_indent="  - ", subsequent_indent="    ")
    return "\n".join(lines) + "\n"


def _headline(picture: Picture, paint: Paint) -> str:
    level = picture.level.upper() + (" (dry run)" if picture.dry_run else "")
    left = f"{picture.unit or 'whole board'}  "
    ratio = f"  {words.percent(picture.ratio)} of {words.size(picture.limit_bytes)}" if picture.limit_bytes else ""
    right = f"slmguard {picture.version}"
    gap = max(2, WIDTH - len(left) - len(level) - len(ratio) - len(right))
    return paint(left, "1") + paint(level, LEVEL_CODES.get(picture.level, "")) + ratio + " " * gap + right


def _figure(picture: Picture, paint: Paint) -> list[str]:
    limit = picture.limit_bytes
    line = _fact(picture.figure or "figure", words.size(picture.figure_bytes))
    if not limit:
        return [line + "   no limit is set: only the board's headroom is guarded"]
    marks = [(picture.limits.get(key) or 0) / limit for key in LIMIT_MARKS]
    room = WIDTH - len(line) - 4
    drawn = bar(picture.ratio, room, marks)
    levels = (f"{word} {words.size(picture.limits.get(key))}" for word, key in zip(LEVELS, LIMIT_MARKS, strict=True))
    return [f"{line}  {paint(drawn, LEVEL_CODES.get(picture.level, ''))}", _fact("levels", "   ".join(levels))]


LEVELS = ("elevated", "high", "critical")


def _facts(picture: Picture) -> list[str]:
    memory = "   ".join(
        f"{key.removesuffix('_bytes').replace('_', ' ')} {words.size(value)}" for key, value in picture.memory.items()
    )
    facts = [
        ("limits", _limits(picture)),
        ("memory", memory),
        ("outlook", _outlook(picture)),
        ("board", f"{words.size(picture.host_headroom_bytes)} free of {words.size(picture.host_total_bytes)}"),
        ("server", f"{picture.server.kind} {picture.server.url}  {picture.server.words}"),
        ("source", picture.source),
        ("restarts", f"{_count(picture.restarts_in_last_hour)} of {_count(picture.restart_budget)} in the last hour"),
        ("seen", _counters(picture)),
        ("ladder", "   ".join(f"{rung} {state}" for rung, state in picture.rung_states.items())),
        ("metrics", picture.metrics_url or "off"),
        ("up since", words.duration(picture.uptime_s)),
    ]
    return [line for label, text in facts if text for line in _wrapped(label, text)]


def _limits(picture: Picture) -> str:
    high, maximum = picture.limits.get("high_bytes"), picture.limits.get("max_bytes")
    names = ("MemoryHigh", "MemoryMax") if picture.source == "cgroup" else ("budget", "budget max")
    return f"{names[0]} {words.size(high)}   {names[1]} {words.size(maximum)}"


def _outlook(picture: Picture) -> str:
    parts = []
    if picture.growth_bytes_per_s is not None:
        parts.append(f"{picture.growth_bytes_per_s / words.MIB:+.2f} MiB/s")
    if picture.forecast_s is not None:
        parts.append(f"limit in {words.duration(picture.forecast_s)}")
    if picture.freeable_bytes is not None:
        parts.append(f"a restart would free {words.size(picture.freeable_bytes)}")
    if picture.stalled_for_s is not None:
        parts.append(f"STALLED for {words.duration(picture.stalled_for_s)}")
    return "   ".join(parts)


def _counters(picture: Picture) -> str:
    return "   ".join(f"{key.replace('_', ' ')} {_count(value)}" for key, value in picture.counters.items())


def _rungs(picture: Picture, paint: Paint) -> list[str]:
    if not picture.rungs:
        return ["", "last rungs  none yet"]
    return ["", "last rungs", *(line for run in picture.rungs[-RUNGS_SHOWN:] for line in _rung(run, paint))]


def _rung(run: RungRun, paint: Paint) -> list[str]:
    freed = "" if run.freed_bytes is None else f"freed {words.size(run.freed_bytes)}"
    outcome = paint(f"{run.outcome:8}", OUTCOME_CODES.get(run.outcome, ""))
    first = f"  {run.clock}  {run.rung:15} {outcome} {freed:17} in {words.duration(run.seconds)}, at {run.level}"
    return [first, *textwrap.wrap(run.detail, WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 12)]


def _fact(label: str, text: str) -> str:
    return f"{label.replace('_', ' '):{LABEL}} {text}"


def _wrapped(label: str, text: str) -> list[str]:
    """`text` behind `label`, broken between facts (three spaces) and never inside one."""
    lines = [_fact(label, "")]
    for fact in text.split("   "):
        first = len(lines[-1]) <= LABEL + 1
        if not first and len(lines[-1]) + 3 + len(fact) > WIDTH:
            lines.append(" " * (LABEL + 1))
            first = True
        lines[-1] += fact if first else "   " + fact
    return lines


def _count(value: int | None) -> str:
    return words.UNKNOWN if value is None else str(value)
