"""The control socket: newline-delimited JSON for status, top and the gate (docs/reference/control-socket.md)."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.gate_hub import GateHub
from slmguard.reactor import Reactor
from slmguard.streams import Connection, StreamServer

MAX_LINE = 64 * 1024
PUSH_INTERVAL_S = 5.0


class ControlServer:
    """Answers on the control socket. `status` makes the status document."""

    def __init__(
        self,
        path: Path,
        reactor: Reactor,
        clock: Callable[[], float],
        hub: GateHub,
        status: Callable[[], dict[str, Any]],
    ) -> None:
        self._path = path
        self._clock = clock
        self._hub = hub
        self._status = status
        self._subscribed: dict[int, Connection] = {}
        self._pushed_version = -1
        self._pushed_at_s = 0.0
        listener = _listen(path)
        self._server = StreamServer(
            reactor, listener, clock, self._on_input, max_connections=16, idle_s=None, on_close=self._on_close
        )

    def push(self) -> None:
        """Tell subscribed gates what has changed, or every 5 s that nothing has."""
        self._server.sweep()
        now_s = self._clock()
        version = self._hub.version
        if version == self._pushed_version and now_s - self._pushed_at_s < PUSH_INTERVAL_S:
            return
        self._pushed_version, self._pushed_at_s = version, now_s
        line = _line(self._hub.state_line())
        for connection in list(self._subscribed.values()):
            self._server.send(connection, line)

    def close(self) -> None:
        """Close everything and remove the socket."""
        self._server.close()
        with contextlib.suppress(OSError):
            self._path.unlink()

    def _on_input(self, connection: Connection) -> None:
        while not connection.closed:
            end = connection.received.find(b"\n")
            if end < 0:
                if len(connection.received) > MAX_LINE:
                    self._refuse(connection, "line longer than 64 KiB")
                return
            line = bytes(connection.received[:end])
            del connection.received[: end + 1]
            if len(line) > MAX_LINE:
                self._refuse(connection, "line longer than 64 KiB")
                return
            self._answer(connection, line)

    def _answer(self, connection: Connection, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            self._refuse(connection, "not a JSON object")
            return
        command = message.get("cmd")
        if command == "status":
            self._server.send(connection, _line(self._status()))
        elif command == "subscribe" and message.get("role") == "gate":
            key = id(connection)
            self._subscribed[key] = connection
            self._hub.subscribe(key)
            self._server.send(connection, _line(self._hub.state_line()))
        elif command == "gate":
            self._hub.report(id(connection), message)
        else:
            self._refuse(connection, f"unknown cmd {str(command)[:40]!r}")

    def _refuse(self, connection: Connection, reason: str) -> None:
        self._server.send(connection, _line({"error": reason}), close=True)
        connection.received.clear()

    def _on_close(self, connection: Connection) -> None:
        key = id(connection)
        if self._subscribed.pop(key, None) is not None:
            self._hub.unsubscribe(key)


def ask(path: Path, request: dict[str, Any], timeout_s: float = 5.0) -> dict[str, Any]:
    """One request to a running daemon, from a command.

    Raises EnvironmentLacksError when none answers, with what to do.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(path))
            sock.sendall(_line(request))
            data = b""
            while not data.endswith(b"\n"):
                chunk = sock.recv(1 << 16)
                if not chunk:
                    break
                data += chunk
        answer = json.loads(data)
    except (FileNotFoundError, ConnectionRefusedError):
        raise EnvironmentLacksError(
            f"no slmguard daemon answers on {path}; start it with: systemctl start slmguard"
        ) from None
    except PermissionError:
        raise EnvironmentLacksError(f"no permission for {path}; run this as root or as a member of its group") from None
    except (OSError, ValueError) as error:
        raise EnvironmentLacksError(f"the daemon on {path} did not answer properly: {error}") from None
    if not isinstance(answer, dict) or "error" in answer:
        raise EnvironmentLacksError(f"the daemon on {path} answered: {str(answer)[:200]}")
    return answer


def _listen(path: Path) -> socket.socket:
    """A listening socket at `path`, mode 0660; a left-over of a dead daemon is replaced.

    Raises UserError when another daemon is alive there, or the place cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(1.0)
                try:
                    probe.connect(str(path))
                except (ConnectionRefusedError, FileNotFoundError):
                    path.unlink(missing_ok=True)
                else:
                    raise UserError(f"another slmguard is already running on {path}")
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        mask = os.umask(0o117)
        try:
            listener.bind(str(path))
        except OSError:
            listener.close()
            raise
        finally:
            os.umask(mask)
        listener.listen(16)
    except OSError as error:
        raise UserError(f"[control] socket = {path}: {error.strerror or error}; choose another place") from None
    return listener


def _line(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"
