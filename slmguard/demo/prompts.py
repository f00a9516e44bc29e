"""The conversations of the demo's load: seeded, all different, each with follow-up questions.

Every conversation begins with a shift log of its own, so its prompt shares next to nothing with the one before. That is
what makes llama.cpp's RAM prompt cache grow: one more entry of tokens × KV bytes per token for each of them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

MACHINES = ("pump", "valve", "conveyor", "compressor", "boiler", "fan", "press", "mixer", "crane", "dryer")
PLACES = ("in the north hall", "by the loading dock", "on the second floor", "in the paint shop", "near the gate")
EVENTS = (
    "ran warm and was throttled",
    "was stopped for cleaning",
    "lost pressure for a short while",
    "made a grinding noise",
    "was handed over without remarks",
    "needed a new filter",
    "started late after the break",
    "was checked twice and found sound",
)
QUESTIONS = (
    "Which machine should the next shift look at first?",
    "Say that again in one short sentence.",
    "Which of these events repeats?",
    "What would you write on the whiteboard?",
    "Was anything stopped on purpose?",
)
SYSTEM = "You are the assistant of a small factory. Answer briefly."
LINES_PER_LOG = 16


@dataclass(frozen=True, slots=True)
class Conversation:
    """What one client asks: the first question carries the log, the others follow up on it."""

    questions: tuple[str, ...]
    think_s: tuple[float, ...]


def conversations(seed: int, lines: int = LINES_PER_LOG) -> Iterator[Conversation]:
    """Endless conversations; the same `seed` gives the same ones. A log line is about 17 tokens for SmolLM2."""
    chance = random.Random(seed)  # noqa: S311 - the load must be repeatable, not secret
    while True:
        log = "\n".join(_line(chance) for _ in range(lines))
        first = f"Shift log of team {chance.randrange(1000)}:\n{log}\nSum up this log."
        follow_ups = chance.sample(QUESTIONS, chance.randint(1, 2))
        yield Conversation((first, *follow_ups), (*(chance.uniform(0.2, 1.0) for _ in follow_ups), 0.0))


def _line(chance: random.Random) -> str:
    clock = f"{chance.randrange(24):02d}:{chance.randrange(60):02d}"
    machine = f"{chance.choice(MACHINES)} {chance.randrange(10, 100)}"
    return f"{clock} {machine} {chance.choice(PLACES)} {chance.choice(EVENTS)}."
