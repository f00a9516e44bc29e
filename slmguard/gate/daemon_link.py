"""The gate's end of the control socket (docs/reference/control-socket.md).

Takes the level that the daemon pushes, and reports what is in flight.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator
from typing import Any

from slmguard.gate.hold import HoldControl
from slmguard.gate.policy import Policy, policy_from_line
from slmguard.gate.state import GateState

log = logging.getLogger("slmguard.gate")

_LONGEST_LINE_BYTES = 64 * 1024
_CONNECT_TIMEOUT_S = 5.0
# The daemon pushes every 5 s; three pushes missed mean that it hangs.
_SILENCE_S = 15.0
_REPORT_EVERY_S = 5.0
_REPORT_GAP_S = 0.2
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.5, 5.0


class DaemonLink:
    """Keeps the connection; falls back to pass-through when it is lost."""

    def __init__(self, path: str, state: GateState, hold: HoldControl) -> None:
        self._path = path
        self._state = state
        self._hold = hold
        self._report_due = asyncio.Event()

    async def run(self) -> None:
        """Until cancelled."""
        self._state.daemon = "lost"
        self._state.on_change = self._report_due.set
        pause_s = _FIRST_PAUSE_S
        told = False
        while True:
            try:
                async with _connection(self._path) as (reader, writer):
                    log.info("connected to the daemon at %s", self._path)
                    pause_s, told = _FIRST_PAUSE_S, False
                    await self._talk(reader, writer)
            except (OSError, asyncio.TimeoutError, ValueError) as error:
                if not told:
                    log.warning(
                        "no daemon at %s (%s): requests pass through", self._path, error or type(error).__name__
                    )
                told = True
            finally:
                self._fall_back()
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _LAST_PAUSE_S)

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'{"cmd": "subscribe", "role": "gate"}\n')
        await asyncio.wait_for(writer.drain(), _CONNECT_TIMEOUT_S)
        reporter = asyncio.create_task(self._report(writer))
        try:
            while True:
                raw = await asyncio.wait_for(reader.readline(), _SILENCE_S)
                if not raw.endswith(b"\n"):
                    raise ConnectionResetError("the daemon closed the connection")
                was_holding = self._state.holding
                self._take(raw)
                if self._state.holding and not was_holding:
                    # The daemon waits for what is in flight: it needs a count from after the hold began.
                    writer.write(self._report_line())
        finally:
            reporter.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError, asyncio.TimeoutError):
                await reporter

    def _take(self, raw: bytes) -> None:
        line = json.loads(raw)
        if not isinstance(line, dict):
            raise ValueError("a line that is no JSON object")  # one kind of error for bad lines
        if "error" in line:
            raise ValueError(f"the daemon says: {str(line['error'])[:200]!r}")
        if line.get("type") != "state":
            return
        policy = policy_from_line(line)
        self._state.daemon = "connected"
        if policy.level is not self._state.policy.level:
            log.info("level %s", policy.level.word)
        self._state.policy = policy
        self._hold.follow(policy)

    def _fall_back(self) -> None:
        """Pass-through; a hold in progress runs until its deadline, for the server may be stopping."""
        self._state.daemon = "lost"
        self._state.policy = Policy(retry_after_s=self._state.settings.retry_after_s)
        self._hold.daemon_lost()

    async def _report(self, writer: asyncio.StreamWriter) -> None:
        while True:
            self._report_due.clear()
            writer.write(self._report_line())
            await asyncio.wait_for(writer.drain(), _CONNECT_TIMEOUT_S)
            await asyncio.sleep(_REPORT_GAP_S)
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._report_due.wait(), _REPORT_EVERY_S)

    def _report_line(self) -> bytes:
        admission, holding = self._state.admission, self._state.holding
        report: dict[str, Any] = {
            "cmd": "gate",
            "in_flight": admission.at_server,
            "held": admission.waiting if holding else 0,
            "queued": 0 if holding else admission.waiting,
            "progress_tokens": self._state.counters.progress_tokens,
            "hold": holding,
        }
        return json.dumps(report).encode() + b"\n"


@contextlib.asynccontextmanager
async def _connection(path: str) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.wait_for(
        asyncio.open_unix_connection(path, limit=_LONGEST_LINE_BYTES), _CONNECT_TIMEOUT_S
    )
    try:
        yield reader, writer
    finally:
        writer.close()
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(writer.wait_closed(), _CONNECT_TIMEOUT_S)
