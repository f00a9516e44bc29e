"""Runs the planned scenarios one after the other and leaves each one's result for the host."""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
import traceback
from pathlib import Path
from types import FrameType
from typing import Any

from tests.board.guest.machine import SHARE, Machine


class ScenarioTimeoutError(BaseException):
    """The scenario used up its time; not an Exception, so that no handler of a scenario swallows it."""


def _time_is_up(_signal: int, _frame: FrameType | None) -> None:
    raise ScenarioTimeoutError


def write_result(folder: Path, label: str, record: dict[str, Any]) -> None:
    """The record as `label.json`, complete or not at all."""
    part = folder / f"{label}.part"
    with part.open("w") as handle:
        json.dump(record, handle, indent=1, default=str)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(folder / f"{label}.json")


def run_step(step: dict[str, Any]) -> dict[str, Any]:
    """One scenario under its time limit: what it returned or why it did not."""
    machine = Machine(parameters=step["parameters"])
    started = time.monotonic()
    record: dict[str, Any] = {"label": step["label"], "scenario": step["scenario"], "parameters": step["parameters"]}
    signal.signal(signal.SIGALRM, _time_is_up)
    signal.setitimer(signal.ITIMER_REAL, step["limit_s"])
    try:
        machine.note(f"{step['label']} begins")
        module = importlib.import_module(f"tests.board.scenarios.{step['scenario']}")
        record["result"] = module.run(machine)
    except ScenarioTimeoutError:
        record["error"] = f"not done within {step['limit_s']} s\n{traceback.format_exc()}"
    except Exception:  # noqa: BLE001 - whatever goes wrong in a scenario is its result; the next one still runs
        record["error"] = traceback.format_exc()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    record["seconds"] = round(time.monotonic() - started, 1)
    record["notes"] = machine.notes
    machine.note(f"{step['label']} ended after {record['seconds']} s{' with an error' if 'error' in record else ''}")
    return record


def main() -> None:
    """All steps of the plan, then journal and kernel log."""
    (SHARE / "began").write_text(f"{time.monotonic():.1f}")
    steps = json.loads((SHARE / "plan.json").read_text())
    for step in steps:
        write_result(SHARE / "results", step["label"], run_step(step))
        Machine().collect()
    os.sync()


if __name__ == "__main__":
    main()
