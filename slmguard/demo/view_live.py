"""The run as a live picture in the terminal, drawn by rich."""

from __future__ import annotations

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from slmguard.demo.settings import LEVEL_RATIOS
from slmguard.demo.story import Event, Sample, Story
from slmguard.ui import words
from slmguard.ui.gauge import bar

CHART_ROWS = 9
AXIS = 10
EVENT_ROWS = 8
LEVEL_STYLES = {"normal": "green", "elevated": "yellow", "high": "dark_orange", "critical": "bold red"}
EVENT_STYLES = {
    "line": "yellow",
    "level": "cyan",
    "rung": "bold green",
    "kill": "bold red",
    "exit": "magenta",
    "failed": "red",
    "refused": "dark_orange",
}
BLOCKS = " ▁▂▃▄▅▆▇█"


class LiveView:
    """Redraws the picture at every update; leaves the last one on the screen."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console()
        self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="crop")
        self._story: Story | None = None

    def start(self, story: Story) -> None:
        """Take over the terminal."""
        self._story = story
        self._live.start()

    def update(self) -> None:
        """Draw the present."""
        if self._story is not None:
            width = min(self._console.width, 110)
            self._live.update(picture(self._story, width), refresh=True)

    def stop(self) -> None:
        """Draw the end and give the terminal back."""
        self.update()
        self._live.stop()


def picture(story: Story, width: int) -> Panel:
    """The whole picture, `width` columns wide."""
    inner = width - 4
    samples = story.samples()
    body = Group(
        _headline(story, samples, inner),
        Text(),
        *chart(samples, story, inner),
        Text(),
        _facts(story),
        Text(),
        *_events(story.events(), inner),
    )
    guard = "slmguard and its gate" if story.gated else "slmguard" if story.settings.guard else "NO GUARD"
    left_s = max(0.0, story.settings.seconds - story.elapsed_s())
    title = f" llama.cpp under load, {guard} "
    subtitle = f" ends by itself in {words.clock(left_s)}, Ctrl-C ends it now "
    return Panel(body, title=title, subtitle=subtitle, width=width, border_style="dim")


def _headline(story: Story, samples: list[Sample], width: int) -> Text:
    figure = samples[-1].figure_bytes if samples else None
    budget = story.settings.budget_bytes
    ratio = None if figure is None else figure / budget
    style = LEVEL_STYLES.get(story.level) or _ratio_style(ratio)
    numbers = f"{words.short_size(figure):>8} of {words.short_size(budget)} {words.percent(ratio):>7} "
    level = f" {story.level.upper() or ('' if story.settings.guard else 'UNGUARDED'):9}"
    drawn = bar(ratio, max(10, width - len(numbers) - len(level)), LEVEL_RATIOS)
    return Text.assemble(numbers, (drawn, style), (level, f"bold {style}"))


def chart(samples: list[Sample], story: Story, width: int) -> list[Text]:
    """Memory over time in block letters, the three lines and the kill line marked at the right."""
    columns = max(10, width - AXIS)
    settings = story.settings
    top = settings.budget_max_bytes * 1.05
    low = min((sample.figure_bytes for sample in samples if sample.figure_bytes), default=0) * 0.9
    figures = _columns(samples, columns, settings.seconds)
    marks = {_row(settings.budget_bytes * ratio, low, top): f"┄ {ratio:.0%}" for ratio in LEVEL_RATIOS}
    marks[_row(settings.budget_max_bytes, low, top)] = "┄ kill"
    rows = []
    for row in range(CHART_ROWS - 1, -1, -1):
        mark = marks.get(row, "")
        line = Text()
        for figure in figures:
            cell = _cell(figure, row, low, top)
            if cell == " " and mark:
                line.append("┄", "dim")
            else:
                ratio = None if figure is None else figure / settings.budget_bytes
                line.append(cell, _ratio_style(ratio))
        line.append(f" {mark}", "dim")
        rows.append(line)
    return rows


def _columns(samples: list[Sample], columns: int, seconds: float) -> list[float | None]:
    """For each column the largest figure of its share of the run; None where there was no server or no time yet."""
    figures: list[float | None] = [None] * columns
    for sample in samples:
        column = min(columns - 1, int(sample.at_s / seconds * columns))
        if sample.figure_bytes is not None:
            figures[column] = max(figures[column] or 0, sample.figure_bytes)
    return figures


def _row(size: float, low: float, top: float) -> int:
    return min(CHART_ROWS - 1, int((size - low) / (top - low) * CHART_ROWS))


def _cell(figure: float | None, row: int, low: float, top: float) -> str:
    if figure is None:
        return " "
    filled = (figure - low) / (top - low) * CHART_ROWS - row
    return BLOCKS[max(0, min(8, int(filled * 8)))]


def _ratio_style(ratio: float | None) -> str:
    if ratio is None or ratio < LEVEL_RATIOS[0]:
        return "green"
    return "yellow" if ratio < LEVEL_RATIOS[1] else "dark_orange" if ratio < LEVEL_RATIOS[2] else "red"


def _facts(story: Story) -> Table:
    counts = story.counts()
    table = Table.grid(padding=(0, 2))
    table.add_row(
        Text.assemble("requests  ", (f"{counts['served']} served", "green")),
        Text(f"{counts['failed']} failed", "red" if counts["failed"] else "dim"),
        Text(f"{counts['refused']} refused", "dark_orange" if counts["refused"] else "dim"),
        Text(f"{story.kills} kills", "bold red" if story.kills else "dim"),
        Text(f"{story.restarts} restarts", "magenta" if story.restarts else "dim"),
        Text(story.metrics_url, "dim"),
    )
    return table


def _events(events: list[Event], width: int) -> list[Text]:
    shown = events[-EVENT_ROWS:]
    lines = []
    for event in shown:
        line = Text.assemble((f"{words.clock(event.at_s):>5}  ", "dim"), (event.text, EVENT_STYLES.get(event.kind, "")))
        line.truncate(width, overflow="ellipsis")
        lines.append(line)
    return lines + [Text()] * (EVENT_ROWS - len(shown))
