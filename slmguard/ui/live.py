"""The status, drawn again and again with rich: what `slmguard top` shows."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from slmguard.core.errors import EnvironmentLacksError
from slmguard.ui.control_client import fetch_status
from slmguard.ui.gauge import spark
from slmguard.ui.glance import WIDTH, Paint, render
from slmguard.ui.picture import read
from slmguard.ui.words import clean, percent

LABEL = "history     "


class Board:
    """The newest status, and the ratios of the last minutes."""

    def __init__(self) -> None:
        self._ratios: deque[float] = deque(maxlen=WIDTH - len(LABEL))
        self._text = ""
        self._trouble = ""

    def note(self, document: Mapping[str, Any]) -> None:
        """The daemon has answered."""
        picture = read(document)
        if picture.ratio is not None:
            self._ratios.append(picture.ratio)
        self._text, self._trouble = render(picture, Paint(True)), ""

    def note_trouble(self, message: str) -> None:
        """The daemon has not answered; what it last said stays on the screen."""
        self._trouble = message

    def drawn(self, colour: bool) -> Group:
        """What to show now."""
        status = Text.from_ansi(self._text)
        if not colour:
            status = Text(status.plain)
        parts = [Text(clean(self._trouble), "bold red")] if self._trouble else []
        if self._ratios:
            low, high = min(self._ratios), max(self._ratios)
            line = spark(list(self._ratios), WIDTH - len(LABEL), min(low, 0.95 * high), high)
            parts.append(Text(f"{LABEL}{line}", no_wrap=True))
            parts.append(Text(f"            {percent(low)} to {percent(high)}", "dim"))
        return Group(status, *parts)


def watch(path: Path, first: Mapping[str, Any], interval_s: float, console: Console | None = None) -> None:
    """Draw until Ctrl-C. The daemon may go away and come back meanwhile."""
    console = console or Console()
    board = Board()
    board.note(first)
    with Live(console=console, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        try:
            while True:
                live.update(board.drawn(not console.no_color), refresh=True)
                time.sleep(interval_s)
                try:
                    board.note(fetch_status(path))
                except EnvironmentLacksError as error:
                    board.note_trouble(str(error))
        except KeyboardInterrupt:
            return
