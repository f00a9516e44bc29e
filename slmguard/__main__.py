"""Entry point of `slmguard` and of `python -m slmguard`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line, or the daemon behind `slmguard run`, and leave with the exit code."""
    if sys.argv[1:3] == ["run", "--validated-fd"] and len(sys.argv) == 5:
        sys.exit(_daemon(sys.argv[3], sys.argv[4]))
    from slmguard.cli import run

    sys.exit(run(sys.argv[1:]))


def _daemon(settings_fd: str, config_path: str) -> int:
    """The second stage of `slmguard run`: no argparse, no pydantic."""
    from slmguard import lean_imports
    from slmguard.core.errors import UserError

    lean_imports.prepare()
    from slmguard.daemon import main as daemon_main

    try:
        return daemon_main(int(settings_fd), config_path)
    except UserError as error:
        print(f"slmguard run: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    main()
