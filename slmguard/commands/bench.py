"""`slmguard bench`: measuring engines. One file per sub-command in `slmguard/bench/cmd_NAME.py`."""

from __future__ import annotations

import argparse
import importlib
import pkgutil

HELP = "measure an engine's memory and speed, or read what it printed"
EPILOG = """examples:
  slmguard bench parse server.log          tokens/s and buffers from a saved log
  llama-bench -m model.gguf -o json | slmguard bench parse --json
"""
_PREFIX = "cmd_"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One sub-parser for each sub-command."""
    import slmguard.bench

    subparsers = parser.add_subparsers(dest="bench_command", metavar="SUBCOMMAND", required=True)
    for found in sorted(pkgutil.iter_modules(slmguard.bench.__path__), key=lambda found: found.name):
        if not found.name.startswith(_PREFIX):
            continue
        module = importlib.import_module(f"slmguard.bench.{found.name}")
        sub = subparsers.add_parser(
            found.name.removeprefix(_PREFIX).replace("_", "-"),
            help=module.HELP,
            description=getattr(module, "DESCRIPTION", module.HELP),
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run_bench=module.run)


def run(args: argparse.Namespace) -> int:
    """Run the sub-command."""
    exit_code: int = args.run_bench(args)
    return exit_code
