"""The guard stays small: an hour of looks and scrapes leaves RSS and descriptors where they were."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUDGET_KIB = 30 * 1024
GROWTH_KIB = 512


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_after_an_hour_of_looks_the_guard_is_within_its_budget_and_has_not_grown(tmp_path: Path) -> None:
    script = Path(__file__).with_name("compressed_hour.py")
    command = [sys.executable, str(script), str(tmp_path), str(free_port()), f"http://127.0.0.1:{free_port()}"]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT), "MALLOC_ARENA_MAX": "1"},
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout)
    assert figures["scrapes"] == 3 * 240
    assert figures["end"]["rss_kib"] <= BUDGET_KIB, figures
    assert figures["end"]["rss_kib"] - figures["warm"]["rss_kib"] <= GROWTH_KIB, figures
    assert figures["end"]["fds"] <= figures["warm"]["fds"] + 1, figures
