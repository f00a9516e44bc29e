"""Conversations with the model server and a record of its memory while they run."""

from __future__ import annotations

import http.client
import json
import random
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.board.guest.machine import Machine, figure, keyed

WORDS = (
    *("amber", "basalt", "cedar", "delta", "ember", "fjord", "garnet", "harbor", "island", "jasper", "kelp", "lagoon"),
    *("meadow", "nectar", "opal", "pine", "quartz", "river", "sage", "tundra", "umber", "valley", "willow", "xenon"),
    *("yarrow", "zinc", "anchor", "beacon", "copper", "drift", "echo", "flint", "grove", "heron", "iris", "juniper"),
)


@dataclass
class Tally:
    """What the clients saw."""

    answered: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    last_answer_s: float | None = None
    failures: dict[str, int] = field(default_factory=dict)
    seconds: list[float] = field(default_factory=list)


def post(port: int, path: str, body: dict[str, Any], limit_s: float) -> tuple[int, dict[str, Any]]:
    """Status and JSON answer of one request to the server on loopback; OSError when it does not answer in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read()
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()
    return answer.status, json.loads(text or b"{}")


def get(port: int, path: str, limit_s: float = 5) -> tuple[int, str]:
    """Status and text of one GET on loopback; OSError when there is no answer in time."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=limit_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except http.client.HTTPException as error:
        raise ConnectionError(str(error)) from error
    finally:
        connection.close()


class Conversations:
    """One client that holds one new conversation after the other until it is stopped."""

    def __init__(
        self, port: int, *, words: int, answer_tokens: int, limit_s: float, period_s: float = 0, seed: int = 1
    ) -> None:
        self.tally = Tally()
        self._port = port
        self._words = words
        self._answer_tokens = answer_tokens
        self._limit_s = limit_s
        # At most one new conversation in this time: growth then follows the clock, not the speed of the host.
        self._period_s = period_s
        self._noise = random.Random(seed)  # noqa: S311 - prompts, not secrets
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._talk, daemon=True)

    def start(self) -> Conversations:
        """Begins talking in the background."""
        self._thread.start()
        return self

    def give_up(self) -> None:
        """No new request from now on, without waiting for the one in flight: a stalled server may never answer it."""
        self._stop.set()

    def ask(self) -> dict[str, Any]:
        """One new conversation; the server's answer. OSError or ValueError when there is none."""
        prompt = " ".join(self._noise.choice(WORDS) for _ in range(self._words))
        body = {"prompt": prompt, "n_predict": self._answer_tokens, "ignore_eos": True, "cache_prompt": True}
        status, answer = post(self._port, "/completion", body, self._limit_s)
        if status != 200:
            raise ValueError(f"status {status}")
        return answer

    def _talk(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                timings = self.ask().get("timings", {})
            except (OSError, ValueError) as error:
                self.tally.failed += 1
                name = type(error).__name__ if isinstance(error, OSError) else str(error)
                self.tally.failures[name] = self.tally.failures.get(name, 0) + 1
                self._stop.wait(1)
                continue
            now = time.monotonic()
            self.tally.answered += 1
            self.tally.prompt_tokens += int(timings.get("prompt_n", 0))
            self.tally.generated_tokens += int(timings.get("predicted_n", 0))
            self.tally.last_answer_s = now
            self.tally.seconds.append(round(now - started, 2))
            self._stop.wait(max(0, started + self._period_s - now))


@dataclass
class Point:
    """The unit's memory at one instant of the scenario, MiB."""

    at_s: float
    current: float | None
    anon: float
    file_mapped: float
    high_events: int
    oom_kills: int
    answered: int
    failed: int


class Recorder:
    """Samples a unit's cgroup once a second, whichever cgroup the unit has at that moment."""

    def __init__(self, machine: Machine, unit: str, tally: Tally | None = None, interval_s: float = 1.0) -> None:
        self.points: list[Point] = []
        self.oom_kills = 0
        self.high_events = 0
        self.throttled_since_s: float | None = None  # monotonic time of the first sample with `high` events
        self._folder = Path("/sys/fs/cgroup/system.slice") / unit
        self._tally = tally or Tally()
        self._interval_s = interval_s
        self._started = time.monotonic()
        self._stop = threading.Event()
        self._previous: dict[str, int] = {}
        self._thread = threading.Thread(target=self._record, daemon=True)

    def start(self) -> Recorder:
        """Begins sampling in the background."""
        self._thread.start()
        return self

    def stop(self) -> list[dict[str, Any]]:
        """Ends sampling; all points."""
        self._stop.set()
        self._thread.join(10)
        return [asdict(point) for point in self.points]

    def sample(self) -> Point:
        """The figures of this moment; counters add up over all lives of the cgroup."""
        stat = keyed(self._folder / "memory.stat")
        events = keyed(self._folder / "memory.events")
        self.oom_kills += self._growth(events, "oom_kill")
        self.high_events += self._growth(events, "high")
        self._previous = events or self._previous
        if self.high_events and self.throttled_since_s is None:
            self.throttled_since_s = time.monotonic()
        current = figure(self._folder / "memory.current")
        return Point(
            round(time.monotonic() - self._started, 1),
            None if current is None else round(current / 2**20, 1),
            round(stat.get("anon", 0) / 2**20, 1),
            round(stat.get("file_mapped", 0) / 2**20, 1),
            self.high_events,
            self.oom_kills,
            self._tally.answered,
            self._tally.failed,
        )

    def _growth(self, events: dict[str, int], name: str) -> int:
        now, before = events.get(name, 0), self._previous.get(name, 0)
        return now - before if now >= before else now

    def _record(self) -> None:
        while not self._stop.wait(self._interval_s):
            self.points.append(self.sample())
