"""The guard's senses: puts one Sample together, and keeps the slow questions off the loop."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

from slmguard.core.model import HostReading, Rung, Sample, ServerReading
from slmguard.servers.base import ServerAdapter
from slmguard.sources.base import MemorySource
from slmguard.worker import Job, Worker

BLIND_REFRESH_S = 2.0
EAGER_PROBE_S = 1.0


class HostReader(Protocol):
    """Reads the whole board."""

    @property
    def degraded(self) -> tuple[str, ...]:
        """What cannot be seen of the board, as sentences."""
        ...

    def read(self) -> HostReading | None:
        """The figures of this instant."""
        ...


class Senses:
    """Source, host and server behind one `sample` call. Server and refresh run in `worker`, one at a time each."""

    def __init__(
        self,
        source: MemorySource,
        host: HostReader,
        server: ServerAdapter | None,
        worker: Worker,
        clock: Callable[[], float],
        probe_interval_s: float,
        gate_connected: Callable[[], bool],
        tell: Callable[[str], None],
    ) -> None:
        self.source = source
        self.server = server
        self._host = host
        self._worker = worker
        self._clock = clock
        self._probe_interval_s = probe_interval_s
        self._gate_connected = gate_connected
        self._tell = tell
        self._reading: ServerReading | None = None
        self._probing = False
        self._probed_at_s: float | None = None
        self._refreshing = False
        self._refreshed_at_s: float | None = None
        self._blind_since_s: float | None = None

    def sample(self) -> Sample:
        """Read everything that can be read without waiting."""
        memory = self.source.read()
        now_s = self._clock()
        if memory is None:
            self._blind_since_s = self._blind_since_s if self._blind_since_s is not None else now_s
        else:
            self._blind_since_s = None
        return Sample(
            now_s=now_s,
            wall_s=time.time(),
            memory=memory,
            host=self._host.read(),
            server=self._reading,
            gate_connected=self._gate_connected(),
            degraded=self.degraded(),
        )

    def degraded(self) -> tuple[str, ...]:
        """What cannot be seen here, as sentences."""
        server = self.server.degraded() if self.server is not None else ()
        return (*self.source.degraded, *self._host.degraded, *server)

    def capabilities(self) -> frozenset[Rung]:
        """The rungs that the server has shown to have."""
        return self.server.capabilities() if self.server is not None else frozenset()

    def ask_around(self, *, eager: bool) -> None:
        """Start the slow questions that are due; `eager` asks the server once a second."""
        now_s = self._clock()
        interval_s = min(EAGER_PROBE_S, self._probe_interval_s) if eager else self._probe_interval_s
        due = self._probed_at_s is None or now_s - self._probed_at_s >= interval_s
        if self.server is not None and not self._probing and due:
            adapter = self.server
            self._probed_at_s = now_s
            self._probing = self._worker.submit(
                Job("probe", lambda: adapter.probe(self._clock()), self._probed, self._probe_failed)
            )
        blind_s = 0.0 if self._blind_since_s is None else now_s - self._blind_since_s
        wanted = self.source.refresh_wanted or blind_s >= BLIND_REFRESH_S
        rested = self._refreshed_at_s is None or now_s - self._refreshed_at_s >= BLIND_REFRESH_S
        if wanted and rested and not self._refreshing:
            self._refreshed_at_s = now_s
            self._refreshing = self._worker.submit(
                Job("refresh", self.source.refresh, lambda _none: self._refreshed(None), self._refreshed)
            )

    def forget_server(self) -> None:
        """Drop the last server reading: it is of an older life of the service."""
        self._reading = None
        self._probed_at_s = None

    def _probed(self, reading: ServerReading) -> None:
        self._probing = False
        self._reading = reading

    def _probe_failed(self, error: BaseException) -> None:
        self._probing = False
        self._reading = None
        self._tell(f"the server could not be asked: {type(error).__name__}: {error}")

    def _refreshed(self, error: BaseException | None) -> None:
        self._refreshing = False
        if error is not None:
            self._tell(f"the service could not be looked up: {type(error).__name__}: {error}")
