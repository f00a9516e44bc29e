"""Entry point of `slmguard` and of `python -m slmguard`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and leave with its exit code."""
    from slmguard.cli import run

    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
