"""Everything that happened in one run, as it happens: what the views draw, the summary counts and the record keeps."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

from slmguard.demo.load import Request
from slmguard.demo.settings import LEVEL_RATIOS, DemoSettings
from slmguard.demo.supervisor import Exit
from slmguard.ui import words
from slmguard.ui.picture import Picture, RungRun

EventKind = Literal["info", "line", "level", "rung", "kill", "exit", "failed", "refused"]
# Requests that fail this close together are told as one event.
MERGE_S = 3.0
MAX_EVENTS = 500


@dataclass(frozen=True, slots=True)
class Sample:
    """One instant. Byte figures are None while there is no server process."""

    at_s: float
    figure_bytes: int | None
    unreclaimable_bytes: int | None
    level: str
    served: int
    failed: int
    refused: int


@dataclass(frozen=True, slots=True)
class Event:
    """Something worth a line. `count` is how many requests a failed or refused one stands for."""

    at_s: float
    kind: EventKind
    text: str
    count: int = 1


class Story:
    """The run so far. Written by several threads; every reader takes a copy. Times are seconds since the start."""

    def __init__(self, settings: DemoSettings, clock: Callable[[], float]) -> None:
        self.settings = settings
        self._clock = clock
        self._started_s = clock()
        self._started_wall_s = time.time()
        self._lock = threading.Lock()
        self._samples: list[Sample] = []
        self._events: list[Event] = []
        self._requests: list[Request] = []
        self._counts = {"served": 0, "failed": 0, "refused": 0}
        self._rungs: dict[tuple[str, float], tuple[float, RungRun]] = {}
        self._levels: list[str] = []
        self._lines: set[float] = set()
        self._over: float | None = None
        self.picture: Picture | None = None
        self.gated = False
        self.metrics_url = ""
        self.peak_bytes = 0
        self.kills = 0
        self.restarts = 0

    def elapsed_s(self) -> float:
        """Seconds since the start of the run."""
        return self._clock() - self._started_s

    @property
    def level(self) -> str:
        """The guard's level, empty without a guard."""
        return self.picture.level if self.picture else ""

    def tell(self, text: str, kind: EventKind = "info") -> None:
        """Add an event."""
        with self._lock:
            self._add(Event(self.elapsed_s(), kind, text))

    def note_memory(self, figure_bytes: int | None, unreclaimable_bytes: int | None, keep: bool) -> None:
        """A reading; `keep` puts it into the samples (the lines and the peak look at every one)."""
        with self._lock:
            now_s = self.elapsed_s()
            if figure_bytes is not None:
                self.peak_bytes = max(self.peak_bytes, figure_bytes)
                self._note_lines(figure_bytes, now_s)
            if keep:
                counts = self._counts
                self._samples.append(
                    Sample(
                        round(now_s, 2),
                        figure_bytes,
                        unreclaimable_bytes,
                        self.level,
                        counts["served"],
                        counts["failed"],
                        counts["refused"],
                    )
                )

    def note_request(self, request: Request) -> None:
        """A request has ended."""
        with self._lock:
            now_s = self.elapsed_s()
            self._requests.append(replace(request, at_s=now_s))
            self._counts[request.verdict] += 1
            if request.verdict == "served":
                return
            last = self._events[-1] if self._events else None
            count = 1
            if last is not None and last.kind == request.verdict and now_s - last.at_s < MERGE_S:
                count = last.count + 1
                self._events.pop()
            some = "a request was" if count == 1 else f"{count} requests were"
            word = "told to come back later" if request.verdict == "refused" else "lost"
            self._add(Event(now_s, request.verdict, f"{some} {word} ({request.detail})", count))

    def note_exit(self, end: Exit) -> None:
        """The server has ended and is started again."""
        with self._lock:
            self.restarts += 1
            self._over = None
            if end.killed_at_limit:
                self.kills += 1
            else:
                self._add(Event(self.elapsed_s(), "exit", f"the server {end.words} and is started again"))

    def note_picture(self, picture: Picture) -> None:
        """The guard's newest status."""
        with self._lock:
            now_s = self.elapsed_s()
            before = self.level
            self.picture = picture
            for run in picture.rungs:
                key = (run.rung, run.at_wall_s)
                if key not in self._rungs:
                    self._rungs[key] = (self._began_s(run, now_s), run)
                    self._add(Event(now_s, "rung", rung_sentence(run)))
                self._note_level(run.level)
            self._note_level(picture.level)
            if before != picture.level and picture.level:
                at = f" at {words.percent(picture.ratio)}" if picture.ratio is not None else ""
                self._add(Event(now_s, "level", f"the guard says {picture.level}{at}"))

    def samples(self) -> list[Sample]:
        """All samples so far."""
        with self._lock:
            return list(self._samples)

    def events(self) -> list[Event]:
        """All events so far, oldest first."""
        with self._lock:
            return list(self._events)

    def requests(self) -> list[Request]:
        """All requests that ended so far."""
        with self._lock:
            return list(self._requests)

    def counts(self) -> dict[str, int]:
        """Requests served, failed and refused so far."""
        with self._lock:
            return dict(self._counts)

    def rungs(self) -> list[tuple[float, RungRun]]:
        """The rungs that were run, each with its time in the run."""
        with self._lock:
            return list(self._rungs.values())

    def levels_seen(self) -> list[str]:
        """The guard's levels in the order in which they were first seen."""
        with self._lock:
            return list(self._levels)

    def lines_crossed(self) -> list[float]:
        """The lines that the figure passed at least once, as shares of the budget."""
        with self._lock:
            return sorted(self._lines)

    def _began_s(self, run: RungRun, now_s: float) -> float:
        """When the rung was run; the guard tells of it only after its effect was measured."""
        at_s = run.at_wall_s - self._started_wall_s
        return at_s if 0 <= at_s <= now_s else now_s

    def _note_lines(self, figure_bytes: int, now_s: float) -> None:
        ratio = figure_bytes / self.settings.budget_bytes
        passed = [line for line in LEVEL_RATIOS if ratio >= line]
        self._lines.update(passed)
        highest = passed[-1] if passed else None
        if highest is not None and (self._over is None or highest > self._over):
            size = words.short_size(figure_bytes)
            self._add(Event(now_s, "line", f"memory passes {highest:.0%} of the budget ({size})"))
            self._over = highest

    def _note_level(self, level: str) -> None:
        if level and level not in self._levels:
            self._levels.append(level)

    def _add(self, event: Event) -> None:
        self._events.append(event)
        del self._events[:-MAX_EVENTS]


def rung_sentence(run: RungRun) -> str:
    """What a run of a rung did, in one line."""
    name = run.rung.replace("_", " ")
    if run.outcome != "ok":
        return f"{name}: {run.outcome}{': ' + run.detail if run.detail else ''}"
    if run.freed_bytes is None:
        return f"{name}: {run.detail or 'done'}"
    freed = f"freed {words.short_size(run.freed_bytes)}"
    return f"{name} {freed} in {words.duration(run.seconds)}{': ' + run.detail if run.detail else ''}"
