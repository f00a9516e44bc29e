"""Results of llama-bench in its five formats, and of llama-batched-bench; columns are found by name, never by place.

llama-bench gained and lost columns with nearly every release (`use_mmap` became `load_mode`, `cuda` became `backends`).
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from typing import Any

from slmguard.bench.run_figures import RunFigures, count, number, rate

_NEEDED = {"n_prompt", "n_gen"}
_TEST = re.compile(r"^(?:pp(?P<prompt>\d+))?\+?(?:tg(?P<gen>\d+))?(?:\s*@\s*d(?P<depth>\d+))?$")
_INSERT = re.compile(
    r"^\s*INSERT INTO\s+\S+\s*\((?P<names>[^)]*)\)\s*VALUES\s*\((?P<values>.*)\)\s*;?\s*$", re.IGNORECASE
)


def is_record(record: dict[str, Any]) -> bool:
    """True for one result of llama-bench as JSON or of llama-batched-bench as JSON line."""
    return (record.keys() >= _NEEDED and ("avg_ts" in record or "avg_ns" in record)) or record.keys() >= {
        "pp",
        "tg",
        "speed_pp",
    }


def run_from_record(record: dict[str, Any]) -> RunFigures:
    """The figures of one result, whose values may be numbers or text."""
    values = {name: str(value) for name, value in record.items() if isinstance(value, str | int | float)}
    if "speed_pp" in values:
        return _batched(values)
    prompt, gen = count(values.get("n_prompt")) or 0, count(values.get("n_gen")) or 0
    nanoseconds = number(values.get("avg_ns"))
    milliseconds = nanoseconds / 1e6 if nanoseconds is not None else None
    tps = number(values.get("avg_ts"))
    if tps is None:
        tps = rate(prompt + gen, milliseconds)
    return _figures(prompt, gen, milliseconds, tps)


def _figures(prompt: int, gen: int, milliseconds: float | None, tps: float | None) -> RunFigures:
    if prompt and gen:
        # pp+tg in one test: only their common time is known.
        return RunFigures(prefill_tokens=prompt, decode_tokens=gen, total_ms=milliseconds)
    if prompt:
        return RunFigures(prefill_tokens=prompt, prefill_ms=milliseconds, prefill_tps=tps)
    return RunFigures(decode_tokens=gen, decode_ms=milliseconds, decode_tps=tps)


def _batched(values: dict[str, str]) -> RunFigures:
    def milliseconds(name: str) -> float | None:
        seconds = number(values.get(name))
        return seconds * 1000 if seconds is not None else None

    sequences = count(values.get("pl")) or 1
    shared = values.get("is_pp_shared") in {"1", "True", "true"}
    prompt, gen = count(values.get("pp")), count(values.get("tg"))
    return RunFigures(
        prefill_tokens=prompt * (1 if shared else sequences) if prompt is not None else None,
        prefill_ms=milliseconds("t_pp"),
        prefill_tps=number(values.get("speed_pp")),
        decode_tokens=gen * sequences if gen is not None else None,
        decode_ms=milliseconds("t_tg"),
        decode_tps=number(values.get("speed_tg")),
        total_ms=milliseconds("t"),
    )


class TableReader:
    """Rows of a Markdown or CSV table, or of SQL inserts; one line at a time."""

    def __init__(self) -> None:
        self._markdown: list[str] = []
        self._csv: list[str] = []

    def line(self, line: str) -> Iterator[RunFigures]:
        """The run that the line holds, if it is a result's row."""
        stripped = line.strip()
        if stripped.startswith("|") and stripped.endswith("|") and stripped.count("|") > 2:
            yield from self._markdown_row([cell.strip() for cell in stripped.strip("|").split("|")])
        elif insert := _INSERT.match(stripped):
            names = _cells(insert["names"])
            values = _cells(insert["values"], quote="'")
            yield from self._named(names, values)
        elif "n_prompt" in stripped and "n_gen" in stripped and "," in stripped and "{" not in stripped:
            names = _cells(stripped)
            self._csv = names if set(names) >= _NEEDED else []
        elif self._csv and "," in stripped:
            yield from self._named(self._csv, _cells(stripped))

    def _named(self, names: list[str], values: list[str]) -> Iterator[RunFigures]:
        if len(names) == len(values):
            record = dict(zip(names, values, strict=True))
            if is_record(record):
                yield run_from_record(record)

    def _markdown_row(self, cells: list[str]) -> Iterator[RunFigures]:
        if {"test", "t/s"} <= set(cells) or {"PP", "TG"} <= set(cells):
            self._markdown = cells
            return
        if len(cells) != len(self._markdown):
            return
        row = dict(zip(self._markdown, cells, strict=True))
        if "test" in row:
            test = _TEST.match(row["test"])
            if test is not None and (test["prompt"] or test["gen"]):
                tps = number(re.split(r"\s*(?:±|\+/-|Â±)\s*", row["t/s"])[0].strip() or None)
                yield _figures(int(test["prompt"] or 0), int(test["gen"] or 0), None, tps)
        elif number(row["PP"]) is not None:
            columns = {"PP": "pp", "TG": "tg", "B": "pl", "T_PP s": "t_pp", "S_PP t/s": "speed_pp"}
            columns |= {"T_TG s": "t_tg", "S_TG t/s": "speed_tg", "T s": "t"}
            yield _batched({columns[name]: value for name, value in row.items() if name in columns})


def _cells(text: str, quote: str = '"') -> list[str]:
    try:
        row = next(csv.reader([text], quotechar=quote, skipinitialspace=True), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in row]
