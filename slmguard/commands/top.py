"""`slmguard top`: the status of the guarded service, live."""

from __future__ import annotations

import argparse
import importlib.util
import sys

HELP = "how is the guarded unit doing, live"
DESCRIPTION = "What `slmguard status` shows, drawn again and again, with the memory figure of the last minutes."
EPILOG = """examples:
  slmguard top                          until Ctrl-C
  slmguard top --interval 0.5           twice a second
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this command."""
    parser.add_argument("--socket", metavar="PATH", help="control socket; default: what the configuration says")
    parser.add_argument("--config", metavar="FILE", help="default /etc/slmguard/slmguard.toml")
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="0.1 to 60, default 1")


def run(args: argparse.Namespace) -> int:
    """Show the status until Ctrl-C.

    Raises UserError for a bad option or without a terminal, EnvironmentLacksError without rich or a daemon.
    """
    from slmguard.core.errors import EnvironmentLacksError, UserError
    from slmguard.ui import control_client

    if not 0.1 <= args.interval <= 60:
        raise UserError(f"--interval {args.interval:g}: must be between 0.1 and 60 seconds")
    if importlib.util.find_spec("rich") is None:
        raise EnvironmentLacksError("top draws with rich, which is not installed: pip install 'slmguard[ui]'")
    if not sys.stdout.isatty():
        raise UserError("top needs a terminal; for pipes and files there is: slmguard status")
    path = control_client.socket_path(args.socket, args.config)
    first = control_client.fetch_status(path)
    from slmguard.ui.live import watch

    watch(path, first, args.interval)
    return 0
