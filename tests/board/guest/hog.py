"""A program that wants more anonymous memory than it may have, and touches all of it over and over.

Run by hog.service; stands for a model server whose caches outgrew its limit on a board without swap.
"""

from __future__ import annotations

import sys
import time

PAGE_BYTES = 4096
STEP_BYTES = 1 << 20


def main() -> None:
    """Grows by a MiB every tenth of a second up to the MiB in argv; says so on stdout every second."""
    wanted = int(sys.argv[1])
    kept: list[bytearray] = []
    beat = time.monotonic()
    while True:
        if len(kept) < wanted:
            kept.append(bytearray(b"x") * STEP_BYTES)
        for block in kept[-4:]:
            for offset in range(0, STEP_BYTES, PAGE_BYTES):
                block[offset] = (block[offset] + 1) & 0xFF
        time.sleep(0.1)
        if time.monotonic() - beat >= 1:
            beat = time.monotonic()
            print(f"holds {len(kept)} MiB", flush=True)


if __name__ == "__main__":
    main()
