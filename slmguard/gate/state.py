"""What all requests of one gate share: the policy in force, the places, the counters, the restart under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from slmguard.gate.admission import Admission
from slmguard.gate.buffers import BufferPool
from slmguard.gate.policy import Policy
from slmguard.gate.settings import GateSettings

if TYPE_CHECKING:
    from slmguard.gate.exchange import Exchange


@dataclass(slots=True)
class Counters:
    """Totals since the gate was started."""

    requests: int = 0
    answers: dict[int, int] = field(default_factory=dict)  # by the first digit of the status
    refused: dict[str, int] = field(default_factory=dict)  # by code
    clamped: int = 0
    trimmed: int = 0
    trimmed_messages: int = 0
    resent: int = 0
    broken: int = 0
    evicted_connections: int = 0
    holds: int = 0
    cuts: int = 0
    progress_tokens: int = 0
    reports_lost: int = 0


class GateState:
    """Shared by the proxy, the daemon link and the control endpoints; one event loop, no locks."""

    def __init__(self, settings: GateSettings, policy: Policy | None = None) -> None:
        self.settings = settings
        self.policy = policy or Policy(retry_after_s=settings.retry_after_s)
        self.admission = Admission(settings)
        self.buffers = BufferPool(settings)
        self.counters = Counters()
        self.active: set[Exchange] = set()
        self.window_tokens: int | None = None  # set through /api/v1/context/trim
        self.daemon = "none"  # none, connected, lost
        self.restart_until_s = 0.0
        self.upstream_was_down = False
        self.on_change: Callable[[], None] = lambda: None
        self._loop = asyncio.get_running_loop()

    def changed(self) -> None:
        """Tell whoever reports to the daemon that in_flight, held or queued may have changed."""
        self.on_change()

    @property
    def holding(self) -> bool:
        """Whether new requests wait for the end of a planned restart."""
        return not self.admission.open

    @property
    def in_restart(self) -> bool:
        """During a hold and shortly after it: what fails now is sent again."""
        return self.holding or self._loop.time() < self.restart_until_s

    def upstream_refused(self) -> None:
        """A connection attempt failed."""
        self.upstream_was_down = True

    def upstream_answered(self) -> None:
        """An answer was passed on."""
        self.upstream_was_down = False

    def count_refusal(self, code: str) -> None:
        """One more answer of the gate's own that turned a request away."""
        self.counters.refused[code] = self.counters.refused.get(code, 0) + 1

    @property
    def trim_window_tokens(self) -> int | None:
        """The smallest window for the newest turns that is in force, None when there is none."""
        windows = [w for w in (self.policy.keep_recent_tokens, self.window_tokens) if w]
        return min(windows) if windows else None
