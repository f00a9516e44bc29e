"""Draws a run as one self-contained SVG, legible on light and on dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.sax.saxutils import escape

from slmguard.demo.settings import LEVEL_RATIOS
from slmguard.demo.story import Event, Sample, Story
from slmguard.ui import words

WIDTH, HEIGHT = 860, 420
LEFT, RIGHT, TOP, BOTTOM = 62, 744, 84, 330
REQUESTS_Y = 348
STEP_MIB = 100
LABEL_WIDTH = 84
RESTART_TOLD_WITHIN_S = 20.0
STYLE = """
svg { font: 12px system-ui, sans-serif }
.page { fill: #ffffff } .text { fill: #1f2328 } .soft { fill: #59636e } .grid { stroke: #d1d9e0 }
.line { stroke: #0969da; fill: none; stroke-width: 2 } .area { fill: #0969da; opacity: .12 }
.elevated { stroke: #9a6700 } .high { stroke: #bc4c00 } .critical { stroke: #cf222e } .limit { stroke: #1f2328 }
.rung { stroke: #1a7f37 } .rungtext { fill: #1a7f37 } .bad { fill: #cf222e } .badline { stroke: #cf222e }
.served { stroke: #8c959f }
@media (prefers-color-scheme: dark) {
.page { fill: #0d1117 } .text { fill: #f0f6fc } .soft { fill: #9198a1 } .grid { stroke: #3d444d }
.line { stroke: #4493f8 } .area { fill: #4493f8 } .elevated { stroke: #d29922 } .high { stroke: #db6d28 }
.critical { stroke: #f85149 } .limit { stroke: #f0f6fc } .rung { stroke: #3fb950 } .rungtext { fill: #3fb950 }
.bad { fill: #f85149 } .badline { stroke: #f85149 } .served { stroke: #656c76 }
}
"""


class Scale:
    """From seconds and bytes to places on the page."""

    def __init__(self, seconds: float, top_bytes: float) -> None:
        self.seconds = max(seconds, 1.0)
        self.top_bytes = max(top_bytes, 1.0)

    def x(self, at_s: float) -> float:
        """The place of an instant."""
        return LEFT + min(1.0, max(0.0, at_s / self.seconds)) * (RIGHT - LEFT)

    def y(self, size_bytes: float) -> float:
        """The place of a size."""
        return BOTTOM - min(1.0, size_bytes / self.top_bytes) * (BOTTOM - TOP)


def render(story: Story, summary: dict[str, Any]) -> str:
    """The SVG document."""
    settings = story.settings
    scale = Scale(summary["seconds"], max(settings.budget_max_bytes, story.peak_bytes) * 1.04)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        f"<title>{escape(_title(summary))}</title><style>{STYLE}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        _text(LEFT, 28, _title(summary), "text", size=16),
        _text(LEFT, 48, _caption(summary), "soft"),
        *_axes(scale),
        *_thresholds(settings.budget_bytes, settings.budget_max_bytes, scale),
        *_memory(story.samples(), scale),
        *_rungs(story, scale),
        *_kills(story.events(), scale),
        *_requests(story, scale),
        _text(LEFT, HEIGHT - 14, _legend(), "soft", size=11),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _title(summary: dict[str, Any]) -> str:
    requests = summary["requests"]
    guard = "With slmguard" if summary["guard"] else "Without slmguard"
    kills = f"{summary['kills']} kill{'' if summary['kills'] == 1 else 's'}"
    return f"{guard}: {requests['served']} requests served, {requests['failed']} lost, {kills}"


def _caption(summary: dict[str, Any]) -> str:
    gate = ", gate in front" if summary["gate"] else ""
    refused = f", {summary['requests']['refused']} told to come back later" if summary["requests"]["refused"] else ""
    kill = "" if summary["guard"] or not summary["kills"] else "; no cgroup here: the demo itself kills at the limit"
    model = summary["model"].removesuffix(".gguf")
    return f"llama.cpp, {model}, {summary['seconds']:.0f} s of conversations{gate}{refused}{kill}"


def _legend() -> str:
    return (
        "line: anonymous memory and mapped files of the server · ticks below: requests served (grey), "
        "told to come back later (orange), lost (red)"
    )


def _axes(scale: Scale) -> Iterator[str]:
    for number in range(0, int(scale.top_bytes / words.MIB) + 1, STEP_MIB):
        y = scale.y(number * words.MIB)
        yield f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield _text(LEFT - 6, y + 4, f"{number} MiB", "soft", anchor="end", size=11)
    step_s = 30 if scale.seconds <= 240 else 300
    for at_s in range(0, int(scale.seconds) + 1, step_s):
        yield _text(scale.x(at_s), HEIGHT - 38, words.clock(at_s), "soft", anchor="middle", size=11)


def _thresholds(budget_bytes: int, max_bytes: int, scale: Scale) -> Iterator[str]:
    for ratio, name in zip(LEVEL_RATIOS, ("elevated", "high", "critical"), strict=True):
        yield from _threshold(scale.y(budget_bytes * ratio), name, f"{ratio:.0%} {name}")
    yield from _threshold(scale.y(max_bytes), "limit", f"kill: {words.short_size(max_bytes)} anon.")


def _threshold(y: float, style: str, label: str) -> Iterator[str]:
    yield f'<line class="{style}" x1="{LEFT}" x2="{RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke-dasharray="5 4"/>'
    yield _text(RIGHT + 8, y + 4, label, "text", size=11)


def _memory(samples: list[Sample], scale: Scale) -> Iterator[str]:
    for life in _lives(samples):
        points = [(scale.x(sample.at_s), scale.y(sample.figure_bytes or 0)) for sample in life]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        yield f'<polygon class="area" points="{points[0][0]:.1f},{BOTTOM} {path} {points[-1][0]:.1f},{BOTTOM}"/>'
        yield f'<polyline class="line" points="{path}"/>'


def _lives(samples: list[Sample]) -> Iterator[list[Sample]]:
    """Stretches of samples between which there was no server process, or another one."""
    life: list[Sample] = []
    for sample in samples:
        fell = life and sample.figure_bytes is not None and sample.figure_bytes < (life[-1].figure_bytes or 0) * 0.7
        if (sample.figure_bytes is None or fell) and life:
            yield life
            life = []
        if sample.figure_bytes is not None:
            life.append(sample)
    if life:
        yield life


def _rungs(story: Story, scale: Scale) -> Iterator[str]:
    """A labelled line for every rung that gave memory back, a short tick at the top for every other one."""
    exits = [event.at_s for event in story.events() if event.kind == "exit"]
    free_x = 0.0
    for at_s, run in story.rungs():
        if run.outcome != "ok":
            continue
        gave_back = (run.freed_bytes or 0) >= words.MIB
        # The guard tells of a restart once its effect is measured; on the page it belongs where the server ended.
        ended_s = max((end for end in exits if at_s - RESTART_TOLD_WITHIN_S < end <= at_s), default=at_s)
        x = scale.x(ended_s if gave_back else at_s)
        yield f'<line class="rung" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM if gave_back else TOP + 8}"/>'
        if not gave_back or x < free_x:
            continue
        free_x = x + LABEL_WIDTH
        anchor = "end" if x > RIGHT - LABEL_WIDTH / 2 else "middle"
        yield _text(x, TOP - 19, run.rung.rpartition("_")[2], "rungtext", anchor=anchor, size=11)
        yield _text(x, TOP - 6, f"freed {words.short_size(run.freed_bytes)}", "rungtext", anchor=anchor, size=11)


def _kills(events: list[Event], scale: Scale) -> Iterator[str]:
    for event in events:
        if event.kind == "kill":
            x = scale.x(event.at_s)
            yield f'<line class="badline" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP}" y2="{BOTTOM}"/>'
            yield _text(x, TOP - 6, "killed", "bad", anchor="middle")


def _requests(story: Story, scale: Scale) -> Iterator[str]:
    for request in story.requests():
        x = scale.x(request.at_s)
        style, width, reach = ("served", 1, 8) if request.verdict == "served" else ("badline", 2, 14)
        if request.verdict == "refused":
            style, width, reach = "high", 2, 11
        y1, y2 = REQUESTS_Y, REQUESTS_Y + reach
        yield f'<line class="{style}" stroke-width="{width}" x1="{x:.1f}" x2="{x:.1f}" y1="{y1}" y2="{y2}"/>'


def _text(x: float, y: float, text: str, style: str, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text class="{style}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'
    )
