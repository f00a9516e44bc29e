"""`slmguard gate`: the front door."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from pathlib import Path

from slmguard.core.errors import EnvironmentLacksError
from slmguard.core.model import Level

HELP = "the front door: clamps, trims, refuses and holds requests on their way to the server"
DESCRIPTION = (
    "A reverse proxy in front of one inference server. At level normal everything passes through untouched. "
    "The level comes from the daemon over its control socket; without a daemon the gate passes through."
)
EPILOG = """examples:
  slmguard gate                                             as /etc/slmguard/slmguard.toml says
  slmguard gate --listen 0.0.0.0:8080 --upstream http://127.0.0.1:8081
  slmguard gate --control none --level elevated --max-tokens 64     try the clamp without a daemon

exit codes: 0 stopped by a signal, 2 usage or configuration error, 3 the environment lacks something
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "--config", metavar="FILE", type=Path, help="configuration (default: /etc/slmguard/slmguard.toml)"
    )
    parser.add_argument("--listen", metavar="HOST:PORT", help="where clients connect")
    parser.add_argument("--upstream", metavar="URL", help="the inference server, for example http://127.0.0.1:8081")
    parser.add_argument("--control", metavar="SOCKET|none", help="the daemon's control socket, or none")
    parser.add_argument(
        "--level", choices=[level.word for level in Level], help="a fixed level, for trying it without a daemon"
    )
    parser.add_argument("--keep-recent", metavar="N", type=int, help="trim window in tokens, 0: off")
    parser.add_argument("--max-tokens", metavar="N", type=int, help="cap for the tokens of an answer")
    parser.add_argument("--max-queue", metavar="N", type=int, help="requests that may wait for a place")
    parser.add_argument("--max-inflight", metavar="N", type=int, help="requests at the server at the same time")
    parser.add_argument("--verbose", action="store_true", help="log each refusal")


def run(args: argparse.Namespace) -> int:
    """Run until a signal ends it."""
    try:
        from slmguard.gate.service import serve
    except ImportError as error:
        raise EnvironmentLacksError(f"the gate needs the package {error.name}: pip install 'slmguard[gate]'") from error
    from slmguard.gate.settings import load_settings

    settings = load_settings(args.config).replaced(
        listen=args.listen,
        upstream=args.upstream,
        control=args.control,
        keep_recent_tokens=args.keep_recent,
        clamp_max_tokens=args.max_tokens,
        max_queue=args.max_queue,
        max_inflight=args.max_inflight,
    )
    level = None if args.level is None else Level[args.level.upper()]
    logging.basicConfig(
        level=logging.DEBUG if args.verbose else logging.INFO, format="slmguard gate: %(message)s", stream=sys.stderr
    )
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    asyncio.run(serve(settings, level, lambda text: logging.getLogger("slmguard.gate").info(text)))
    return 0
