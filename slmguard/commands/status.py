"""`slmguard status`: how the guarded service is doing, asked of the daemon over its control socket."""

from __future__ import annotations

import argparse
import json
import sys

HELP = "how is the guarded unit doing?"
DESCRIPTION = """Show the guarded unit: memory figure and level, limits, what the guard did last, and what it cannot
see here. Exits with 3 when the daemon is not running."""
EPILOG = """examples:
  slmguard status                      at a glance, in 80 columns
  slmguard status --json | jq .level   for scripts; the keys are documented in docs/reference/status.md
  slmguard top                         the same, live
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--json", action="store_true", help="print the status document as JSON")
    parser.add_argument("--socket", metavar="PATH", help="control socket; default: what the configuration says")
    parser.add_argument("--config", metavar="FILE", help="default /etc/slmguard/slmguard.toml")


def run(args: argparse.Namespace) -> int:
    """Print the status. Raises UserError for a bad --config, EnvironmentLacksError when there is no daemon to ask."""
    from slmguard.ui import control_client, glance, picture

    document = control_client.fetch_status(control_client.socket_path(args.socket, args.config))
    if args.json:
        print(json.dumps(document, indent=2, ensure_ascii=False))
    else:
        paint = glance.Paint(glance.wants_colour(sys.stdout))
        print(glance.render(picture.read(document), paint), end="")
    return 0
