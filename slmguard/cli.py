"""The command line: finds the command's module by its name and runs it.

One file per command in `slmguard/commands/`. Only the module of the command that was asked for is imported,
so that the daemon does not carry the others for life. A command module offers

    HELP: str                                        one line for the overview
    def add_arguments(parser: ArgumentParser) -> None
    def run(args: Namespace) -> int                  returns the exit code, raises UserError
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from types import ModuleType

from slmguard import __version__
from slmguard.core.errors import UserError

EPILOG = """examples:
  slmguard status                      how is the guarded unit doing?
  slmguard top                         the same, live
  slmguard check-config                is /etc/slmguard/slmguard.toml valid, and what does it mean?
  slmguard oom /var/log/kern.log       which OOM kills does this log hold?
  slmguard demo                        watch the guard at work on a real model, without root

exit codes: 0 ok, 1 a check or gate failed, 2 usage or configuration error, 3 the environment lacks something
"""


def command_names() -> list[str]:
    """Names of all commands, as typed."""
    import slmguard.commands

    modules = pkgutil.iter_modules(slmguard.commands.__path__)
    return sorted(module.name.replace("_", "-") for module in modules if not module.name.startswith("_"))


def load_command(name: str) -> ModuleType:
    """The module of one command; `name` must be one of `command_names()`."""
    return importlib.import_module("slmguard.commands." + name.replace("-", "_"))


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser, with all commands or just one of them."""
    parser = argparse.ArgumentParser(
        prog="slmguard",
        description="Keeps a local language-model server alive on a small board.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"slmguard {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in [only] if only else command_names():
        module = load_command(name)
        sub = subparsers.add_parser(
            name,
            help=module.HELP,
            description=getattr(module, "DESCRIPTION", module.HELP),
            epilog=getattr(module, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(sub)
        sub.set_defaults(run_command=module.run)
    return parser


def run(argv: list[str]) -> int:
    """Run one command line; returns the exit code. Never lets a traceback out for a person's mistake."""
    only = argv[0] if argv and argv[0] in command_names() else None
    completing = "_ARGCOMPLETE" in os.environ
    parser = build_parser(None if completing else only)
    if completing:
        import argcomplete

        argcomplete.autocomplete(parser)
    args = parser.parse_args(argv)
    try:
        exit_code: int = args.run_command(args)
        sys.stdout.flush()
    except UserError as error:
        print(f"slmguard {args.command}: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) went away; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return exit_code
