"""HAProxy's agent-check: one line a connection that says how much traffic the server should get.

`maint` and `drain` set by an agent stay until it says `ready`, and `maxconn` stays until another one is said,
so every line states all of it.
"""

from __future__ import annotations

import asyncio
import contextlib

from slmguard.core.model import Level
from slmguard.gate.state import GateState

_WRITE_TIMEOUT_S = 5.0


def agent_line(state: GateState) -> str:
    """The line for the state at this moment."""
    policy = state.policy
    if state.holding or policy.level >= Level.CRITICAL:
        return "maint"
    if policy.refuse or policy.level >= Level.HIGH:
        return "up drain"
    places = state.settings.max_inflight
    if policy.level >= Level.ELEVATED:
        return f"up ready maxconn:{max(1, places // 2)}"
    return f"up ready maxconn:{places}"


async def serve_agent(state: GateState, host: str, port: int) -> asyncio.Server:
    """Listen; the caller closes the server. Raises OSError."""

    async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            writer.write(agent_line(state).encode() + b"\n")
            await asyncio.wait_for(writer.drain(), _WRITE_TIMEOUT_S)
        writer.close()

    return await asyncio.start_server(answer, host, port, backlog=16)
