"""`slmguard demo`: a real server, a real model and a real load in one terminal."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slmguard.demo.run import View
    from slmguard.demo.settings import DemoSettings

HELP = "watch the guard at work on a real model, without root"
DESCRIPTION = """Start a real llama.cpp server with a real model (135 M parameters, 98 MB, downloaded once),
the guard and a load of conversations, and show how memory climbs, what the guard does and what it frees.
Ends by itself within three minutes. Needs no root and no cgroup; everything stays on this machine."""
EPILOG = """examples:
  slmguard demo                         with the guard
  slmguard demo --guard off             the same load without it
  slmguard demo --json > summary.json   the summary for scripts, progress on stderr
  slmguard demo --chart run.svg         draw the run
"""
LEAST_SECONDS = 20.0
MOST_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--guard", choices=["on", "off"], default="on", help="off: see what happens without it")
    parser.add_argument(
        "--gate", choices=["auto", "off"], default="auto", help="auto: the gate in front of the server where installed"
    )
    parser.add_argument("--json", action="store_true", help="print only the summary, as JSON; progress goes to stderr")
    parser.add_argument("--plain", action="store_true", help="lines of text instead of the live view")
    parser.add_argument("--budget", default="320M", metavar="SIZE", help="plays MemoryHigh (default 320M)")
    parser.add_argument("--budget-max", metavar="SIZE", help="plays MemoryMax (default: the budget and an eighth)")
    parser.add_argument("--seconds", type=float, default=170.0, help="length of the whole run (default 170)")
    parser.add_argument("--port", type=int, default=0, help="port of the server on 127.0.0.1 (default: a free one)")
    parser.add_argument("--seed", type=int, default=1, help="another seed, other conversations (default 1)")
    parser.add_argument("--clients", type=int, default=4, help="clients at the same time (default 4)")
    parser.add_argument("--model", type=Path, metavar="FILE", help="another GGUF file")
    parser.add_argument("--cache-dir", type=Path, metavar="DIR", help="where the model is kept (~/.cache/slmguard)")
    parser.add_argument("--record", type=Path, metavar="FILE", help="write the run as JSON lines")
    parser.add_argument("--chart", type=Path, metavar="FILE", help="draw the run as SVG")


def run(args: argparse.Namespace) -> int:
    """Run the demo; returns 0, or 130 after Ctrl-C. Raises UserError and EnvironmentLacksError."""
    from slmguard.demo import record, summary
    from slmguard.demo.run import run_demo

    settings = _settings(args)
    view = _view(args)
    # A closed terminal or `kill` must end the children as Ctrl-C does.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    result, story = run_demo(settings, view)
    record.save(story, result, settings)
    if args.json:
        print(json.dumps(result, indent=2))
    else:
        print(summary.text(result), end="")
        for path in (settings.record, settings.chart):
            if path is not None:
                print(f"  written    {path}")
    return 130 if result["interrupted"] else 0


def _settings(args: argparse.Namespace) -> DemoSettings:
    from slmguard.core.errors import UserError
    from slmguard.demo.model import check_model, default_cache_dir, ensure_model
    from slmguard.demo.settings import DemoSettings

    if not LEAST_SECONDS <= args.seconds <= MOST_SECONDS:
        raise UserError(f"--seconds {args.seconds:g}: must be between {LEAST_SECONDS:g} and {MOST_SECONDS:g}")
    if not 1 <= args.clients <= 64:
        raise UserError(f"--clients {args.clients}: must be between 1 and 64")
    if not 0 <= args.port <= 65535:
        raise UserError(f"--port {args.port}: must be between 0 and 65535")
    budget = _size("--budget", args.budget)
    budget_max = _size("--budget-max", args.budget_max) if args.budget_max else budget * 9 // 8
    if budget_max < budget:
        raise UserError(f"--budget-max {args.budget_max}: is below the budget of {args.budget}")
    for path in (args.record, args.chart):
        if path is not None and not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
            raise UserError(f"{path}: cannot be written there; is {path.parent} a folder of yours?")
    if args.model is None:
        print("slmguard demo: looking for the model (98 MB, downloaded once)", file=sys.stderr)
    return DemoSettings(
        model=check_model(args.model) if args.model else ensure_model(args.cache_dir or default_cache_dir()),
        guard=args.guard == "on",
        gate=args.gate == "auto",
        budget_bytes=budget,
        budget_max_bytes=budget_max,
        seconds=args.seconds,
        port=args.port,
        seed=args.seed,
        clients=args.clients,
        record=args.record,
        chart=args.chart,
    )


def _size(option: str, value: str) -> int:
    from slmguard.config import parse_size
    from slmguard.core.errors import UserError

    try:
        size = parse_size(value)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
    assert isinstance(size, int)  # noqa: S101 - text in, bytes out; for mypy
    return size


def _view(args: argparse.Namespace) -> View:
    from slmguard.demo.view_plain import PlainView

    if args.json:
        return PlainView(sys.stderr)
    if args.plain or not sys.stdout.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        return PlainView(sys.stdout)
    if importlib.util.find_spec("rich") is None:
        print("slmguard demo: plain lines, for rich is not installed: pip install 'slmguard[ui]'", file=sys.stderr)
        return PlainView(sys.stdout)
    from slmguard.demo.view_live import LiveView

    return LiveView()
