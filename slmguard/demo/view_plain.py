"""The run as lines of text: for logs, pipes and terminals without rich."""

from __future__ import annotations

from typing import TextIO

from slmguard.demo.story import Event, Story
from slmguard.ui import words
from slmguard.ui.gauge import bar

PROGRESS_EVERY_S = 5.0
# A failed request may still be joined by others; it is printed once it is this old.
SETTLED_S = 3.0
MARKS = (0.85, 0.92, 0.97)


class PlainView:
    """Prints each event once, and where things stand every five seconds."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._story: Story | None = None
        self._told: set[tuple[float, str]] = set()
        self._progress_s = 0.0

    def start(self, story: Story) -> None:
        """Remember the run."""
        self._story = story

    def update(self) -> None:
        """Print what is new."""
        self._tell(final=False)
        story = self._story
        if story is not None and story.elapsed_s() - self._progress_s >= PROGRESS_EVERY_S:
            self._progress_s = story.elapsed_s()
            self._print(self._progress_s, progress(story))

    def stop(self) -> None:
        """Print what is left."""
        self._tell(final=True)

    def _tell(self, final: bool) -> None:
        if self._story is None:
            return
        now_s = self._story.elapsed_s()
        for event in self._story.events():
            if not final and _may_grow(event, now_s):
                break  # and all after it, so that the lines stay in order
            key = (event.at_s, event.text)
            if key in self._told:
                continue
            self._told.add(key)
            self._print(event.at_s, event.text)

    def _print(self, at_s: float, text: str) -> None:
        print(f"{words.clock(at_s):>5}  {text}", file=self._stream, flush=True)


def progress(story: Story) -> str:
    """Where things stand, in one line."""
    samples = story.samples()
    figure = samples[-1].figure_bytes if samples else None
    ratio = None if figure is None else figure / story.settings.budget_bytes
    counts = story.counts()
    level = f"  {story.level}" if story.level else ""
    drawn = bar(ratio, 30, MARKS)
    numbers = f"{words.short_size(figure):>7} {words.percent(ratio):>7}{level}"
    return f"[{drawn}] {numbers}  served {counts['served']}  failed {counts['failed']}  refused {counts['refused']}"


def _may_grow(event: Event, now_s: float) -> bool:
    return event.kind in {"failed", "refused"} and now_s - event.at_s < SETTLED_S
