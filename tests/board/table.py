"""`python -m tests.board.table`: the last results of the board as Markdown, with and without the guard."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.board.harness.image import cache_dir


def result(folder: Path, boot: str, label: str) -> dict[str, Any]:
    """What the scenario left. FileNotFoundError when it has not run."""
    record = json.loads((folder / boot / "share/results" / f"{label}.json").read_text())
    found: dict[str, Any] = record["result"]
    return found


def rows(alone: dict[str, Any], guarded: dict[str, Any]) -> list[tuple[str, object, object]]:
    """Label, figure without the guard, figure with it."""
    restarts = [run for run in guarded["status"]["rungs"] if run["rung"].endswith("restart")]
    both = [
        ("answers in the first minute", "answered_in_first_half"),
        ("answers in two minutes", "answered"),
        ("requests that failed", "failed"),
        ("tokens/s over two minutes", "tokens_per_s"),
        ("`memory.events` high", "high_events"),
        ("OOM kills", "oom_kills"),
    ]
    lines: list[tuple[str, object, object]] = [(label, alone[key], guarded[key]) for label, key in both]
    second = (
        alone["answered"] - alone["answered_in_first_half"],
        guarded["answered"] - guarded["answered_in_first_half"],
    )
    lines.insert(1, ("answers in the second minute", *second))
    lines.append(("slowest answer, s", max(alone["answer_seconds"]), max(guarded["answer_seconds"])))
    freed = ", ".join(f"{(run['freed_bytes'] or 0) / 2**20:.0f} MiB in {run['seconds']:.1f} s" for run in restarts)
    lines.append(("planned restarts: freed, time", "–", freed or "none"))
    lines.append(("state by systemd at the end", alone["unit"]["ActiveState"], guarded["unit"]["ActiveState"]))
    return lines


def main() -> None:
    """Prints the table."""
    folder = cache_dir() / "results"
    alone, guarded = result(folder, "unguarded_board", "unguarded"), result(folder, "guarded_board", "guarded")
    print("| | without slmguard | with slmguard |\n|---|---|---|")
    for label, without, with_guard in rows(alone, guarded):
        print(f"| {label} | {without} | {with_guard} |")


if __name__ == "__main__":
    main()
