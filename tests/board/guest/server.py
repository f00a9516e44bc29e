"""Debian's llama-server.service: configured as its users do, limited by a drop-in, started and waited for."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.board.guest.load import get
from tests.board.guest.machine import SHARE, Machine

UNIT = "llama-server.service"
PORT = 8080
DEFAULTS = Path("/etc/default/llama-server")


def ready() -> bool:
    """Whether the server says that its model is loaded."""
    return get(PORT, "/health", 5)[0] == 200


def configure(machine: Machine, model: str, high_mib: int | None, max_mib: int, settings: dict[str, Any]) -> None:
    """Writes /etc/default/llama-server and the limits; `settings` are LLAMA_ARG_* without the prefix.

    Without `high_mib` there is no throttling: what outgrows MemoryMax is killed.
    """
    source = SHARE / "models" / model
    target = Path("/srv") / model
    if not target.exists():
        shutil.copyfile(source, target)
        target.chmod(0o644)
    lines = [f"LLAMA_ARG_MODEL={target}", "LLAMA_ARG_HOST=127.0.0.1", f"LLAMA_ARG_PORT={PORT}"]
    lines += ["LLAMA_ARG_ENDPOINT_METRICS=1", "LLAMA_ARG_UI=0"]
    lines += [f"LLAMA_ARG_{name.upper()}={value}" for name, value in settings.items()]
    machine.write(DEFAULTS, "\n".join(lines) + "\n")
    high = "infinity" if high_mib is None else f"{high_mib}M"
    machine.drop_in(
        UNIT,
        f"[Service]\nMemoryAccounting=yes\nMemoryHigh={high}\nMemoryMax={max_mib}M\n"
        "MemorySwapMax=0\nTimeoutStopSec=15\n",
    )
    machine.free_memory()  # an earlier scenario must not have warmed the weights for this one


def start(machine: Machine, limit_s: float = 90) -> None:
    """Starts the unit and waits until the model is loaded."""
    machine.systemctl("start", UNIT)
    machine.wait_until(ready, "llama-server to be ready", limit_s, 1)
