"""What one run of the demo is told to do."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
LEVEL_RATIOS = (0.85, 0.92, 0.97)
# Time kept at the end of a run for ending the load and the children, so that `seconds` is the whole run.
WIND_DOWN_S = 8.0


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """One run. `budget_bytes` plays MemoryHigh, `budget_max_bytes` plays MemoryMax."""

    model: Path
    guard: bool = True
    gate: bool = True
    budget_bytes: int = 320 * MIB
    budget_max_bytes: int = 360 * MIB
    seconds: float = 170.0
    port: int = 0
    seed: int = 1
    clients: int = 4
    record: Path | None = None
    chart: Path | None = None
