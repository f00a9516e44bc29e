"""`slmguard check-config`: is the configuration valid, and what does it mean?"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from slmguard.core import codec
from slmguard.options import DEFAULT_CONFIG, Options

HELP = "validate the configuration and say in words what it means"
EPILOG = """examples:
  slmguard check-config                      the installed configuration
  slmguard check-config --config my.toml --json
  slmguard check-config --probe              also ask the server which rungs it has

exit codes: 0 valid, 2 invalid (one line on stderr says what, where and what to do)
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--config", default=DEFAULT_CONFIG, metavar="FILE", help=f"default {DEFAULT_CONFIG}")
    parser.add_argument("--json", action="store_true", help="print the effective settings as JSON")
    parser.add_argument("--quiet", "-q", action="store_true", help="print nothing when it is valid")
    parser.add_argument("--probe", action="store_true", help="ask the configured server whether it answers")
    parser.add_argument("--emit", action="store_true", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> int:
    """Print the verdict; raises UserError when the file is invalid."""
    from slmguard import config

    options = config.load(Path(args.config))
    if args.emit:
        sys.stdout.write(json.dumps(codec.to_json(options)))
        return 0
    probed = probe(options) if args.probe else None
    if args.json:
        print(json.dumps({"valid": True, "settings": codec.to_json(options), "server_answers": probed}, indent=2))
    elif not args.quiet:
        print(f"{args.config} is valid.")
        for sentence in explain(options):
            print(f"  {sentence}")
        for path, answer in (probed or {}).items():
            print(f"  {options.server.url}{path}: {answer}")
    return 0


def explain(options: Options) -> list[str]:
    """The rules in force, as sentences."""
    core, levels = options.core, options.core.levels
    limit = "its MemoryHigh (or MemoryMax)"
    if options.memory.source == "process":
        budget = options.memory.budget_bytes or options.memory.budget_max_bytes or 0
        limit = f"the budget of {budget >> 20} MiB"
    mode = "watches (dry run, nothing is done)" if core.dry_run else "guards"
    sentences = [
        f"slmguard {mode} {options.unit}, memory source {options.memory.source}, figure {core.figure}.",
        (
            f"elevated from {levels.elevated_ratio:.0%}, high from {levels.high_ratio:.0%}, critical from "
            f"{levels.critical_ratio:.0%} of {limit}; a level is left after {levels.hold_s:.0f} s below its threshold "
            f"less {levels.hysteresis_ratio:.0%}."
        ),
    ]
    if core.host.enabled:
        sentences.append(
            f"The board itself counts as elevated, high, critical below {core.host.elevated_ratio:.0%}, "
            f"{core.host.high_ratio:.0%}, {core.host.critical_ratio:.0%} of its RAM left."
        )
    for name in ("clamp", "trim", "drop_caches", "refuse", "planned_restart", "forced_restart"):
        rung = getattr(core.ladder, name)
        when = f"from level {rung.at.word}" if rung.enabled else "never (switched off)"
        sentences.append(f"{name.replace('_', ' ')}: {when}.")
    sentences.append(
        f"Restarts by {options.restart.method}, at most {core.restart.budget_per_hour} an hour, "
        f"{core.restart.min_interval_s:.0f} s apart; by force {core.stall.deadline_s:.0f} s after a stall is found."
    )
    return sentences


def probe(options: Options) -> dict[str, Any]:
    """What the server's usual paths answer: a status code or the reason why there is none."""
    import requests

    with requests.Session() as session:
        session.trust_env = False

        def ask(path: str) -> Any:
            try:
                with session.get(options.server.url + path, timeout=options.server.timeout_s, stream=True) as reply:
                    return reply.status_code
            except requests.RequestException as error:
                return type(error).__name__

        return {path: ask(path) for path in ("/health", "/v1/models", "/slots", "/metrics", "/props")}
