"""What the board has: kernel, systemd, controllers, memory files. Proves that the harness itself works."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Versions and capabilities of the running guest."""
    root = Path("/sys/fs/cgroup")
    meminfo = Path("/proc/meminfo").read_text()
    return {
        "kernel": platform.release(),
        "python": platform.python_version(),
        "systemd": machine.systemctl("--version").split()[1],
        "controllers": (root / "cgroup.controllers").read_text().split(),
        "memory_files": sorted(path.name for path in (root / "system.slice").glob("memory.*")),
        "psi": Path("/proc/pressure/memory").exists(),
        "total_kb": int(meminfo.split("MemTotal:")[1].split()[0]),
        "available_kb": int(meminfo.split("MemAvailable:")[1].split()[0]),
        "failed_units": machine.systemctl("list-units", "--failed", "--plain", "--no-legend").splitlines(),
        "blame": machine.run("systemd-analyze", "blame", "--no-pager").stdout.splitlines()[:12],
        "time": machine.run("systemd-analyze", "time").stdout.strip(),
    }
