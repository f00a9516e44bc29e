"""The worker's bounds, the stream server's bounds, and log lines that cannot lie."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slmguard.journal import Journal, printable
from slmguard.reactor import Reactor
from slmguard.streams import Connection, StreamServer
from slmguard.worker import Job, Worker


def test_outcomes_and_failures_come_back_in_the_collecting_thread() -> None:
    woken = threading.Semaphore(0)
    worker = Worker("test", woken.release)
    seen: list[object] = []

    def fail() -> int:
        raise ValueError("no")

    worker.submit(Job("good", lambda: 7, lambda value: seen.append((value, threading.get_ident())), seen.append))
    worker.submit(Job("bad", fail, seen.append, lambda error: seen.append(str(error))))
    assert woken.acquire(timeout=5)
    assert woken.acquire(timeout=5)
    assert seen == []
    worker.collect()
    assert seen == [(7, threading.get_ident()), "no"]
    assert worker.stop(5)


def test_a_full_queue_drops_and_counts() -> None:
    gate = threading.Event()
    worker = Worker("test", lambda: None, capacity=1)
    started = threading.Event()

    def hang() -> None:
        started.set()
        gate.wait(10)

    def job() -> Job[None]:
        return Job("hang", hang, lambda _value: None, lambda _error: None)

    assert worker.submit(job())
    assert started.wait(5)
    assert worker.submit(job())
    assert not worker.submit(job())
    assert worker.dropped == 1
    gate.set()
    assert worker.stop(5)


class Echo:
    def __init__(self, max_connections: int, max_unsent: int) -> None:
        self.now_s = 0.0
        self.reactor = Reactor()
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen(16)
        self.address = listener.getsockname()
        self.server = StreamServer(
            self.reactor,
            listener,
            lambda: self.now_s,
            self._echo,
            max_connections=max_connections,
            max_unsent=max_unsent,
        )

    def _echo(self, connection: Connection) -> None:
        data = bytes(connection.received)
        connection.received.clear()
        self.server.send(connection, data)

    def connect(self) -> socket.socket:
        peer = socket.create_connection(self.address, timeout=5)
        self.reactor.wait(1)
        return peer


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo(max_connections=2, max_unsent=1 << 20)
    yield echo
    echo.server.close()
    echo.reactor.close()


def test_connections_beyond_the_bound_are_closed_and_counted(echo: Echo) -> None:
    peers = [echo.connect() for _ in range(4)]
    assert echo.server.refused == 2
    assert peers[3].recv(1) == b""
    peers[0].sendall(b"hello")
    echo.reactor.wait(1)
    assert peers[0].recv(5) == b"hello"
    for peer in peers:
        peer.close()


def test_a_silent_peer_is_closed_after_its_time(echo: Echo) -> None:
    peer = echo.connect()
    echo.now_s = 6.0
    echo.server.sweep()
    assert peer.recv(1) == b""
    assert not echo.server.connections
    peer.close()


def test_a_peer_that_never_reads_is_closed_instead_of_filling_memory(echo: Echo) -> None:
    peer = echo.connect()
    connection = next(iter(echo.server.connections.values()))
    for _ in range(64):
        echo.server.send(connection, b"x" * (1 << 17))
    assert connection.closed
    assert len(connection.unsent) <= (1 << 20) + (1 << 17)
    peer.close()


def test_descriptors_do_not_leak_over_many_connections(echo: Echo) -> None:
    def count() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = count()
    for _ in range(200):
        peer = echo.connect()
        peer.close()
        echo.reactor.wait(1)
    assert count() <= before + 1


def test_a_hostile_name_stays_one_printable_line() -> None:
    read_end, write_end = os.pipe()
    Journal(write_end, prefix=True).log(4, "killed \x1b[2Jevil\n<0>panic \u202e")
    text = os.read(read_end, 4096).decode()
    os.close(read_end)
    os.close(write_end)
    assert text == "<4>killed \\x1b[2Jevil\\n<0>panic \\u202e\n"
    assert printable("a\tb") == "a\\tb"


def test_a_log_that_does_not_take_lines_drops_and_counts() -> None:
    read_end, write_end = os.pipe()
    journal = Journal(write_end, blocking=False)
    for _ in range(2000):
        journal.log(6, "x" * 900)
    os.close(read_end)
    os.close(write_end)
    assert journal.dropped > 0
