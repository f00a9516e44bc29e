"""`slmguard run`: validate the configuration, then become the daemon."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import NoReturn

from slmguard.options import DEFAULT_CONFIG

HELP = "guard the unit named in the configuration (this is the daemon)"
DESCRIPTION = """Guard one service: read its memory, judge it, climb the ladder when the limit comes near.
Started by systemd (slmguard.service); run it by hand to try a configuration."""
EPILOG = """examples:
  slmguard run --dry-run                            watch and say what would be done, do nothing
  slmguard run --config ./slmguard.toml             a configuration of your own
  slmguard run --record run.jsonl                   keep samples for `slmguard simulate`
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--config", default=DEFAULT_CONFIG, metavar="FILE", help=f"default {DEFAULT_CONFIG}")
    parser.add_argument("--dry-run", action="store_true", help="decide and tell, but run no rung")
    parser.add_argument("--record", metavar="FILE", help="append samples and results as JSON lines")


def run(args: argparse.Namespace) -> NoReturn:
    """Validate, then replace this process by the lean daemon. Raises UserError for a bad configuration."""
    from dataclasses import replace

    from slmguard import config
    from slmguard.handover import give, interpreter

    options = config.load(Path(args.config))
    if args.dry_run:
        options = replace(options, core=replace(options.core, dry_run=True))
    if args.record:
        options = replace(options, record_path=str(Path(args.record).absolute()))
    command = [*interpreter(), "-m", "slmguard", "run", "--validated-fd", str(give(options)), args.config]
    # One arena: resident memory stays the same, but the address space that mlockall accounts falls from 264 to 73 MiB.
    environment = {"MALLOC_ARENA_MAX": "1", **os.environ}
    os.execve(command[0], command, environment)  # noqa: S606 - becoming the daemon is the purpose
