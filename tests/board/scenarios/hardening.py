"""How exposed the running unit is, and what its sandbox really is."""

from __future__ import annotations

from typing import Any

from tests.board.guest import guard
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """`systemd-analyze security` and `verify` of the shipped unit."""
    analysis = machine.run("systemd-analyze", "security", "--no-pager", guard.UNIT, limit_s=120)
    overall = next(line for line in analysis.stdout.splitlines() if "Overall exposure level" in line)
    verified = machine.run(
        "systemd-analyze", "verify", "--man=no", f"/usr/lib/systemd/system/{guard.UNIT}", limit_s=120
    )
    names = (
        "MemoryMin",
        "MemoryMax",
        "OOMScoreAdjust",
        "TasksMax",
        "Slice",
        "NoNewPrivileges",
        "CapabilityBoundingSet",
    )
    return {
        "overall": overall.strip(),
        "exposure": float(overall.split(":", 1)[1].split()[0]),
        "exposed": [line for line in analysis.stdout.splitlines() if "✗" in line],
        "verify_code": verified.returncode,
        "verify": (verified.stdout + verified.stderr).splitlines(),
        "properties": machine.show(guard.UNIT, *names),
    }
