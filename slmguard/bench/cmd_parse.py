"""`slmguard bench parse`: timings and buffer sizes from saved engine output."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

HELP = "timings and buffer sizes from saved output of an engine"
DESCRIPTION = """Reads what llama.cpp's tools and servers of any version since March 2023 printed (llama-cli, main,
llama-bench, llama-server's log or replies; also Ollama and RKLLM) and gives tokens, milliseconds and tokens per second
of each run, the buffers of the last load, and how the engine ended if the output tells. What is not there is unknown:
null, never 0."""
EPILOG = """examples:
  llama-completion -m model.gguf -p Hello -n 64 2>&1 | slmguard bench parse
  slmguard bench parse server.log --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The sub-command's options."""
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="saved output, - for stdin (default)")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the figures; an output without any is no error."""
    from slmguard.bench.saved_output import SavedOutput
    from slmguard.core.errors import UserError

    output = SavedOutput()
    if args.file == "-":
        output.read(sys.stdin.buffer)
    else:
        try:
            with Path(args.file).open("rb") as stream:
                output.read(stream)
        except OSError as error:
            raise UserError(f"cannot read {args.file!r}: {error.strerror or error}") from error
    found = output.document()
    if args.json:
        print(json.dumps(found, indent=2, allow_nan=False))
    else:
        _print(found)
    return 0


def _print(found: dict[str, Any]) -> None:
    """The figures as a table; `-` is unknown."""
    rows = [["run", "prefill tok", "ms", "tok/s", "decode tok", "ms", "tok/s", "load ms", "total ms"]]
    for index, run_figures in enumerate(found["runs"], start=1):
        rows.append([str(index), *("-" if value is None else f"{value:g}" for value in run_figures.values())])
    for row in rows if found["runs"] else []:
        print("  ".join(f"{cell:>11}" for cell in row))
    for name, value in found["buffers"].items():
        if value is not None:
            print(f"{name.removesuffix('_bytes'):>18}: {value / 1024 / 1024:,.2f} MiB")
    if found["exit"]:
        print(
            f"{'exit':>18}: "
            + ", ".join(f"{name} {value}" for name, value in found["exit"].items() if value is not None)
        )
    if not found["runs"]:
        print("no timings found")
