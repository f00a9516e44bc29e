"""`slmguard simulate`: replay a recorded run and print the decisions."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TextIO

from slmguard.core.errors import UserError
from slmguard.core.model import RungResult, Sample
from slmguard.core.settings import Settings
from slmguard.journal import printable

HELP = "replay recorded samples and print the decisions they would have led to"
DESCRIPTION = """Reads JSON lines as written by `slmguard run --record`: {"sample": {...}} and {"result": {...}}, or
bare samples. The decisions depend on nothing else, so a run can be replayed with other
settings before they are used."""
EPILOG = """examples:
  slmguard simulate run.jsonl
  slmguard simulate run.jsonl --config new.toml     what would these settings have done?
  zcat run.jsonl.gz | slmguard simulate - --json
"""
MAX_LINE = 1 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("samples", metavar="SAMPLES.jsonl", help="a recording, or - for standard input")
    parser.add_argument("--config", metavar="FILE", help="settings to replay with (default: the built-in ones)")
    parser.add_argument("--high", metavar="SIZE", help="pretend that MemoryHigh was this, for example 2600M")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def run(args: argparse.Namespace) -> int:
    """Print every step that changed something; raises UserError when the input is no recording."""
    from slmguard.core.replay import replay

    settings, high_bytes = _settings(args)
    if args.samples == "-":
        _print_steps(replay(settings, _records(sys.stdin, "standard input", high_bytes)), as_json=args.json)
        return 0
    try:
        with Path(args.samples).open(encoding="utf-8", errors="replace") as file:
            _print_steps(replay(settings, _records(file, args.samples, high_bytes)), as_json=args.json)
    except OSError as error:
        raise UserError(f"{args.samples}: cannot be read: {error.strerror}") from None
    return 0


def _settings(args: argparse.Namespace) -> tuple[Settings, int | None]:
    high_bytes = None
    if args.config or args.high:
        from slmguard import config

        if args.high:
            try:
                high_bytes = int(str(config.parse_size(args.high)))
            except ValueError as error:
                raise UserError(f"--high: {error}") from None
        if args.config:
            return config.load(Path(args.config)).core, high_bytes
    return Settings(), high_bytes


def _records(file: TextIO, where: str, high_bytes: int | None) -> Iterator[Sample | RungResult]:
    from slmguard.core.replay import parse_record

    number = 0
    while line := file.readline(MAX_LINE):
        number += 1
        if not line.strip():
            continue
        try:
            record = parse_record(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}, line {number}: no sample: {error}") from None
        if high_bytes is not None and isinstance(record, Sample) and record.memory is not None:
            record = replace(record, memory=replace(record.memory, high_bytes=high_bytes))
        yield record


def _print_steps(steps: Iterator[object], *, as_json: bool) -> None:
    from slmguard.core.replay import Step

    total = 0
    for step in steps:
        if not isinstance(step, Step):
            continue
        total += 1
        decision = step.decision
        if not decision.events:
            continue
        ratio = decision.figures.ratio if decision.figures else None
        for event in decision.events:
            if as_json:
                line = {
                    "now_s": step.sample.now_s,
                    "event": event.kind.value,
                    "level": decision.level.word,
                    "ratio": None if ratio is None else round(ratio, 4),
                    "text": event.text,
                }
                print(json.dumps(line))
            else:
                shown = "  --  " if ratio is None else f"{ratio:6.1%}"
                level, kind = decision.level.word, event.kind.value
                print(f"{step.sample.now_s:12.1f} s  {shown}  {level:8}  {kind:16}  {printable(event.text)}")
    if not as_json:
        print(f"{total} samples replayed.")
