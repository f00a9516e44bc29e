"""A small bounded stream server in the loop, for the metrics page and the control socket.

client_python's own server starts a thread for every connection (50 idle sockets: 1.4 GB of address space), so the
few connections that a guard needs are kept here: a fixed number, with time-outs and bounded buffers.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from typing import Any

from slmguard.reactor import Reactor

READ_BYTES = 16 * 1024
# Closing while the peer still sends would reset the connection and lose the answer; its words are read and thrown away.
DRAIN_S = 2.0


class Connection:
    """One peer: what came in, what is still to go out, and by when it must have done something."""

    def __init__(self, sock: socket.socket, deadline_s: float | None) -> None:
        self.sock = sock
        self.received = bytearray()
        self.unsent = bytearray()
        self.deadline_s = deadline_s
        self.close_when_sent = False
        self.draining = False
        self.closed = False
        self.notes: dict[str, Any] = {}


class StreamServer:
    """Accepts at most `max_connections`; more are closed at once and counted in `refused`."""

    def __init__(
        self,
        reactor: Reactor,
        listener: socket.socket,
        clock: Callable[[], float],
        on_input: Callable[[Connection], None],
        *,
        max_connections: int = 8,
        idle_s: float | None = 5.0,
        max_unsent: int = 1 << 20,
        on_close: Callable[[Connection], None] | None = None,
    ) -> None:
        self._reactor = reactor
        self._listener = listener
        self._clock = clock
        self._on_input = on_input
        self._on_close = on_close
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._max_unsent = max_unsent
        self.connections: dict[int, Connection] = {}
        self.refused = 0
        listener.setblocking(False)
        reactor.add(listener.fileno(), select.EPOLLIN, self._accept)

    def send(self, connection: Connection, data: bytes, *, close: bool = False) -> None:
        """Queue `data`; a peer that does not read is closed once `max_unsent` bytes wait for it."""
        if connection.closed:
            return
        connection.unsent += data
        connection.close_when_sent = connection.close_when_sent or close
        if len(connection.unsent) > self._max_unsent:
            self.drop(connection)
            return
        self._flush(connection)

    def drop(self, connection: Connection) -> None:
        """Close one connection."""
        if connection.closed:
            return
        connection.closed = True
        fd = connection.sock.fileno()
        self._reactor.remove(fd)
        self.connections.pop(fd, None)
        connection.sock.close()
        if self._on_close is not None:
            self._on_close(connection)

    def sweep(self) -> None:
        """Close what has been silent for too long."""
        now_s = self._clock()
        for connection in list(self.connections.values()):
            if connection.deadline_s is not None and now_s > connection.deadline_s:
                self.drop(connection)

    def close(self) -> None:
        """Close the listener and all connections."""
        for connection in list(self.connections.values()):
            self.drop(connection)
        self._reactor.remove(self._listener.fileno())
        self._listener.close()

    def _accept(self, _events: int) -> None:
        try:
            sock, _address = self._listener.accept()
        except OSError:
            return  # the peer has gone again, or no descriptor is left; the next one may fare better
        if len(self.connections) >= self._max_connections:
            self.refused += 1
            sock.close()
            return
        sock.setblocking(False)
        deadline_s = None if self._idle_s is None else self._clock() + self._idle_s
        connection = Connection(sock, deadline_s)
        self.connections[sock.fileno()] = connection
        self._reactor.add(sock.fileno(), select.EPOLLIN, lambda events: self._ready(connection, events))

    def _ready(self, connection: Connection, events: int) -> None:
        if events & select.EPOLLOUT:
            self._flush(connection)
        if connection.closed or not events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
            return
        try:
            data = connection.sock.recv(READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            self.drop(connection)
            return
        if not data:
            self.drop(connection)
            return
        if connection.draining:
            return
        connection.received += data
        self._on_input(connection)

    def _hang_up(self, connection: Connection) -> None:
        """Say that nothing more comes, and wait a moment for the peer to stop talking."""
        if connection.draining:
            return
        connection.draining = True
        connection.deadline_s = self._clock() + DRAIN_S
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.drop(connection)
            return
        self._reactor.modify(connection.sock.fileno(), select.EPOLLIN)

    def _flush(self, connection: Connection) -> None:
        try:
            sent = connection.sock.send(connection.unsent) if connection.unsent else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(connection)
            return
        del connection.unsent[:sent]
        if not connection.unsent and connection.close_when_sent:
            self._hang_up(connection)
            return
        waiting = select.EPOLLOUT if connection.unsent else 0
        self._reactor.modify(connection.sock.fileno(), select.EPOLLIN | waiting)
