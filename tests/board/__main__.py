"""`python -m tests.board LABEL…`: boots the board once and runs the named scenarios of the plans by hand."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.board.harness.boot import boot
from tests.board.harness.image import cache_dir
from tests.board.harness.lacks import BoardUnavailableError
from tests.board.harness.models import ensure_models
from tests.board.plans import BOOTS


def main() -> int:
    """0 when every scenario left a result, 1 when one failed, 3 when this machine cannot run the board."""
    steps = {step.label: step for plan in BOOTS.values() for step in plan}
    parser = argparse.ArgumentParser(prog="python -m tests.board", description=__doc__)
    parser.add_argument("label", nargs="+", choices=sorted(steps))
    parser.add_argument("--memory", type=int, default=768, metavar="MIB", help="RAM of the board (default 768)")
    parser.add_argument("--folder", type=Path, default=cache_dir() / "by-hand", help="console, journal and results")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    try:
        chosen = [steps[label] for label in args.label]
        run = boot(chosen, args.folder, models=ensure_models(), memory_mib=args.memory)
    except BoardUnavailableError as error:
        print(f"the virtual board cannot run here: {error}", file=sys.stderr)
        return 3
    print(f"booted in {run.boot_s} s, done after {run.total_s:.0f} s, everything is in {args.folder}")
    for label in args.label:
        record = run.results.get(label, {"error": f"no result; see {args.folder}/console.txt"})
        print(f"{label}: {record.get('error') or json.dumps(record['result'], indent=1)}")
    return 0 if all("result" in run.results.get(label, {}) for label in args.label) else 1


if __name__ == "__main__":
    sys.exit(main())
