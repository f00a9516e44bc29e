"""Status documents and a daemon that serves them, for the tests of everything that shows the status."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

RUNG: dict[str, Any] = {
    "rung": "planned_restart",
    "level": "high",
    "at_wall_s": 1780000000.0,
    "reason": "high",
    "outcome": "ok",
    "seconds": 6.5,
    "before_bytes": 390000000,
    "after_bytes": 225000000,
    "freed_bytes": 165000000,
    "detail": "requests drained after 0.8 s",
}
DOCUMENT: dict[str, Any] = {
    "version": "0.1.0",
    "unit": "llama-server.service",
    "source": "cgroup",
    "uptime_s": 812.0,
    "dry_run": False,
    "figure": "demand",
    "figure_bytes": 361758720,
    "limit_bytes": 419430400,
    "ratio": 0.8625,
    "level": "elevated",
    "limits": {
        "high_bytes": 419430400,
        "max_bytes": 471859200,
        "elevated_bytes": 356515840,
        "high_level_bytes": 385875968,
        "critical_bytes": 406847488,
    },
    "memory": {
        "current_bytes": 410000000,
        "working_set_bytes": 390000000,
        "unreclaimable_bytes": 261758720,
        "demand_bytes": 361758720,
    },
    "freeable_bytes": 141000000,
    "growth_bytes_per_s": 250000.0,
    "forecast_s": 230.0,
    "host": {"total_bytes": 4125000000, "available_bytes": 3100000000, "headroom_bytes": 2900000000},
    "server": {
        "kind": "llama-server",
        "url": "http://127.0.0.1:8080",
        "reachable": True,
        "ready": True,
        "busy_slots": 1,
    },
    "rungs": [RUNG],
    "rung_states": {"trim": {"state": "absent"}, "planned_restart": {"state": "ready"}},
    "restarts": {"in_last_hour": 1, "budget_per_hour": 12},
    "counters": {"oom_kills": 0, "stalls": 0},
    "degraded": ["this kernel has no PSI: a stall is judged by memory.events and refaults alone"],
    "metrics_url": "http://127.0.0.1:10985/metrics",
}


class FakeDaemon:
    """Answers every request on a control socket with the same bytes; closes at once when they are None."""

    def __init__(self, path: Path, answer: bytes | None = None) -> None:
        self.path = path
        self._answer = json.dumps(DOCUMENT).encode() + b"\n" if answer is None else answer
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join(5.0)
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(4096)
                connection.sendall(self._answer)
