"""The figures of one run of an engine."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields


@dataclass(slots=True)
class RunFigures:
    """Tokens, milliseconds and tokens per second; None where the output does not say."""

    prefill_tokens: int | None = None
    prefill_ms: float | None = None
    prefill_tps: float | None = None
    decode_tokens: int | None = None
    decode_ms: float | None = None
    decode_tps: float | None = None
    load_ms: float | None = None
    total_ms: float | None = None

    def is_empty(self) -> bool:
        """True when nothing is known."""
        return all(getattr(self, field.name) is None for field in fields(self))

    def same_timings(self, other: RunFigures) -> bool:
        """True when both describe the same run: a reply's timings and the server's log lines of it."""
        pairs = ((self.prefill_ms, other.prefill_ms), (self.decode_ms, other.decode_ms))
        return all(mine is not None and theirs is not None and abs(mine - theirs) <= 0.006 for mine, theirs in pairs)

    def document(self) -> dict[str, float | int | None]:
        """The figures by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


def number(text: str | None) -> float | None:
    """A finite number at least 0 from an engine's output; None for `inf`, `nan`, `-nan(ind)` and anything else."""
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if math.isfinite(value) and value >= 0 else None


def count(text: str | None) -> int | None:
    """A whole number of tokens, None for anything else."""
    value = number(text)
    return int(value) if value is not None and value == int(value) and value < 2**53 else None


def rate(tokens: int | None, milliseconds: float | None) -> float | None:
    """Tokens per second, None when either is unknown or no time passed."""
    return tokens * 1000 / milliseconds if tokens and milliseconds else None
