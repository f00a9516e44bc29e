"""hog.service: the hog under limits, without swap."""

from __future__ import annotations

from tests.board.guest.machine import UNIT_DIR, Machine

UNIT = "hog.service"


def install(machine: Machine, high_mib: int, max_mib: int, wanted_mib: int) -> None:
    """Writes the unit; it is not started."""
    machine.write(
        UNIT_DIR / UNIT,
        "[Service]\n"
        f"ExecStart=/usr/bin/python3 -m tests.board.guest.hog {wanted_mib}\n"
        "Environment=PYTHONPATH=/host/payload PYTHONDONTWRITEBYTECODE=1\n"
        f"MemoryHigh={high_mib}M\nMemoryMax={max_mib}M\nMemorySwapMax=0\nTimeoutStopSec=5\n",
    )
    machine.systemctl("daemon-reload")


def beats(machine: Machine) -> int:
    """How many signs of life the hog has given in this boot."""
    return machine.run("journalctl", "-b", "-u", UNIT, "--no-pager", "-o", "cat").stdout.count("holds ")


def remove(machine: Machine) -> None:
    """Ends the hog at once and forgets the unit."""
    machine.systemctl("kill", "--signal=SIGKILL", UNIT, check=False)
    machine.systemctl("stop", UNIT, check=False)
    (UNIT_DIR / UNIT).unlink(missing_ok=True)
    machine.systemctl("daemon-reload")
