"""The chart: stacked memory against context, with RAM and limits as lines, in one HTML file without any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from slmguard.plan.plan import Plan
from slmguard.plan.sizes import MIB, mib

_WIDTH, _HEIGHT = 860, 440
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 20, 50
# Distinct in light and dark and with the common colour blindnesses (Okabe and Ito's set).
_COLOURS = {
    "weights_mapped": "#0072b2",
    "weights_repacked": "#56b4e9",
    "kv": "#e69f00",
    "compute": "#009e73",
    "prompt_cache": "#cc79a7",
    "checkpoints": "#d55e00",
    "projector": "#b8a800",
    "draft": "#8c6bb1",
    "overhead": "#8c8c8c",
}
_STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #ffffff; --faint: #d0d0d0; --limit: #b00020; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8e8e8; --paper: #16181c; --faint: #3c4048; --limit: #ff6b81; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 60rem;
  margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
.grid { stroke: var(--faint); stroke-width: 1; } .limit { stroke: var(--limit); stroke-width: 1.5; }
svg text.limit-name { fill: var(--limit); stroke: none; }
.wide { overflow-x: auto; } table { border-collapse: collapse; } td, th { padding: .2rem .7rem; text-align: right; }
th { border-bottom: 1px solid var(--faint); } td:first-child, th:first-child { text-align: left; }
code { overflow-wrap: anywhere; }
"""


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps a context's place in the table and bytes to the drawing."""

    columns: int
    top_bytes: int

    def x(self, index: int) -> float:
        plot = _WIDTH - _LEFT - _RIGHT
        return _LEFT + (plot * index / (self.columns - 1) if self.columns > 1 else plot / 2)

    def y(self, size_bytes: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * size_bytes / self.top_bytes


def chart_page(plan: Plan) -> str:
    """The page as text."""
    title = escape(f"{plan.models.file.path.name}: memory against context")
    verdict = "It fits." if plan.proposal.fits else "It does not fit."
    flags = escape(" ".join(plan.rendered.flags))
    return (
        f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<title>{title}</title>\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<style>{_STYLE}</style>\n'
        f"<h1>{title}</h1>\n<p>{verdict} Worst case of the proposal {mib(plan.proposal.chosen.total_bytes)}; "
        f"85 % of MemoryHigh is {mib(plan.limits.budget_bytes)}.</p>\n{_drawing(plan, title)}\n"
        f'<div class="wide">{_table(plan)}</div>\n'
        + (
            f"<p><code>{escape(plan.proposal.chosen.settings.server)} {flags}</code></p>\n"
            if plan.proposal.fits
            else ""
        )
        + "</html>\n"
    )


def _drawing(plan: Plan, title: str) -> str:
    limits = _limits(plan)
    highest = max(row.total_bytes for row in plan.table)
    shown = [limit for limit in limits if limit[1] <= highest * 3]
    top = int(max([highest, *(size for _, size in shown)]) * 1.05) or 1
    scale = _Scale(len(plan.table), top)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{title}">']
    parts += [*_grid(plan, scale), *_areas(plan, scale), *_limit_lines(shown, scale), "</svg>"]
    far = [f"{name} {mib(size)}" for name, size in limits if (name, size) not in shown]
    note = f"<p>Above the drawing: {escape(', '.join(far))}.</p>" if far else ""
    return "\n".join(parts) + note


def _limits(plan: Plan) -> list[tuple[str, int]]:
    limits = plan.limits
    found = [("85 % of High", limits.budget_bytes), ("MemoryHigh", limits.memory_high_bytes)]
    found.append(("MemoryMax", limits.memory_max_bytes))
    return [*found, ("RAM", limits.ram_bytes)] if limits.ram_bytes else found


def _grid(plan: Plan, scale: _Scale) -> Iterator[str]:
    right = _WIDTH - _RIGHT
    for step in range(5):
        size = scale.top_bytes * step / 4
        y = scale.y(size)
        yield f'<line class="grid" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{size / MIB:,.0f}</text>'
    for index, row in enumerate(plan.table):
        x = scale.x(index)
        yield f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{row.settings.context}</text>'
    yield f'<text x="{_LEFT}" y="{_HEIGHT - 12}">context in tokens; memory in MiB</text>'


def _areas(plan: Plan, scale: _Scale) -> Iterator[str]:
    below = [0] * len(plan.table)
    names = [component.name for component in plan.asked.components]
    legend = _HEIGHT - _BOTTOM
    for name in names:
        sizes = [row.bytes_of(name) for row in plan.table]
        if not any(sizes):
            continue
        above = [base + size for base, size in zip(below, sizes, strict=True)]
        points = _points(below, above, scale)
        yield f'<polygon fill="{_COLOURS[name]}" points="{points}"><title>{name}</title></polygon>'
        legend -= 18
        x = _WIDTH - _RIGHT + 14
        yield f'<rect x="{x}" y="{legend}" width="11" height="11" fill="{_COLOURS[name]}"/>'
        yield f'<text x="{x + 17}" y="{legend + 10}">{name}</text>'
        below = above


def _points(below: list[int], above: list[int], scale: _Scale) -> str:
    places = [scale.x(index) for index in range(len(above))]
    if len(places) == 1:
        # One context only: a bar instead of an area.
        places, below, above = [places[0] - 30, places[0] + 30], below * 2, above * 2
    upper = [f"{x:.1f},{scale.y(size):.1f}" for x, size in zip(places, above, strict=True)]
    lower = [f"{x:.1f},{scale.y(size):.1f}" for x, size in zip(places, below, strict=True)]
    return " ".join([*upper, *reversed(lower)])


def _limit_lines(limits: list[tuple[str, int]], scale: _Scale) -> Iterator[str]:
    right = _WIDTH - _RIGHT
    last = float(_HEIGHT)
    for name, size in sorted(limits, key=lambda limit: limit[1]):
        y = scale.y(size)
        # Names of limits that lie close together are moved apart.
        last = min(y + 4, last - 13)
        yield f'<line class="limit" stroke-dasharray="6 4" x1="{_LEFT}" x2="{right}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="limit-name" x="{right + 6}" y="{last:.1f}">{escape(name)} {mib(size)}</text>'


def _table(plan: Plan) -> str:
    rows = [
        f"<tr><td>{row.settings.context}</td><td>{mib(row.cache.total)}</td><td>{mib(row.bytes_of('compute'))}</td>"
        f"<td>{mib(row.total_bytes)}</td><td>{'fits' if plan.limits.holds(row.total_bytes) else 'too large'}</td></tr>"
        for row in plan.table
    ]
    head = "<tr><th>context</th><th>KV cache</th><th>compute</th><th>total</th><th></th></tr>"
    return f"<table>{head}{''.join(rows)}</table>"
