"""Debian's llama-server under MemoryHigh/MemoryMax with conversations and no guard: what happens to it."""

from __future__ import annotations

from typing import Any

from tests.board.guest import talk
from tests.board.guest.machine import Machine


def run(machine: Machine) -> dict[str, Any]:
    """Talks for `seconds`; the record of memory and answers."""
    ready_s = talk.serve(machine)
    try:
        return {"ready_s": ready_s, **talk.talk(machine)}
    finally:
        talk.end_server(machine)
