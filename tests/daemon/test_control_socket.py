"""The control socket: status for people, state lines for the gate, short answers for nonsense."""

from __future__ import annotations

import json
import socket
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slmguard.control import ControlServer, ask
from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.core.model import Level
from slmguard.core.policy import GateState
from slmguard.gate_hub import GateHub
from slmguard.reactor import Reactor


class Rig:
    """A control server with its loop in a thread and a clock of its own."""

    def __init__(self, path: Path) -> None:
        self.now_s = 100.0
        self.path = path
        self.reactor = Reactor()
        self.hub = GateHub(lambda: self.now_s, self.reactor.wake, "x.service")
        self.server = ControlServer(path, self.reactor, lambda: self.now_s, self.hub, lambda: {"level": "normal"})
        self._stop = False
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop:
            self.reactor.wait(0.5)
            self.server.push()

    def connect(self) -> socket.socket:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        peer.connect(str(self.path))  # blocking, so that a full backlog is waited for
        peer.settimeout(5)
        return peer

    def close(self) -> None:
        self._stop = True
        self.reactor.wake()
        self._thread.join(5)
        self.server.close()
        self.reactor.close()


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "run" / "control.sock")
    yield rig
    rig.close()


def read_line(peer: socket.socket) -> dict[str, object]:
    data = b""
    while not data.endswith(b"\n"):
        chunk = peer.recv(1)
        if not chunk:
            return {}
        data += chunk
    line: dict[str, object] = json.loads(data)
    return line


def test_status_is_answered(rig: Rig) -> None:
    assert ask(rig.path, {"cmd": "status"}) == {"level": "normal"}


def test_the_socket_is_not_for_everybody(rig: Rig) -> None:
    assert stat.S_IMODE(rig.path.stat().st_mode) == 0o660


def test_a_gate_gets_the_state_at_once_and_on_every_change(rig: Rig) -> None:
    with rig.connect() as gate:
        gate.sendall(b'{"cmd":"subscribe","role":"gate"}\n')
        assert read_line(gate)["level"] == "normal"
        rig.hub.set_state(GateState(level=Level.HIGH, clamp_max_tokens=64, refuse=True))
        rig.reactor.wake()
        line = read_line(gate)
        while line["level"] == "normal":
            line = read_line(gate)
        assert (line["level"], line["clamp_max_tokens"], line["refuse"]) == ("high", 64, True)


def test_a_hold_reaches_the_gate_and_its_drain_comes_back(rig: Rig) -> None:
    with rig.connect() as gate:
        gate.sendall(b'{"cmd":"subscribe","role":"gate"}\n')
        read_line(gate)
        assert rig.hub.connected()
        rig.hub.hold(30)
        line = read_line(gate)
        while not line["hold"]:
            line = read_line(gate)
        assert line["hold_deadline_s"] == 30.0
        assert rig.hub.in_flight() is None, "what was told before the hold says nothing"
        gate.sendall(b'{"cmd":"gate","in_flight":2,"held":1}\n{"cmd":"status"}\n')
        while "type" in read_line(gate):
            continue
        assert rig.hub.in_flight() == 2
        rig.hub.release()
        line = read_line(gate)
        while line["hold"]:
            line = read_line(gate)
    assert rig.hub.in_flight() is None or rig.hub.in_flight() == 2


def test_a_hold_ends_by_itself_when_its_time_is_over(rig: Rig) -> None:
    rig.hub.hold(30)
    assert rig.hub.state_line()["hold"] is True
    rig.now_s += 31
    assert rig.hub.state_line()["hold"] is False


@pytest.mark.parametrize(
    "line", [b"\n", b"nonsense\n", b"[1]\n", b'{"cmd":"reboot"}\n', b"[" * 60000 + b"\n", b"\xff\xfe\n", b'{"cmd":7}\n']
)
def test_nonsense_gets_an_error_and_is_hung_up_on(rig: Rig, line: bytes) -> None:
    with rig.connect() as peer:
        peer.sendall(line)
        assert "error" in read_line(peer)
        assert peer.recv(1) == b""
    assert ask(rig.path, {"cmd": "status"}) == {"level": "normal"}


def test_an_endless_line_is_hung_up_on(rig: Rig) -> None:
    with rig.connect() as peer:
        try:
            for _ in range(40):
                peer.sendall(b"x" * 8192)
            assert "error" in read_line(peer)
        except (BrokenPipeError, ConnectionResetError):
            pass  # it hung up while we were still sending
    assert ask(rig.path, {"cmd": "status"}) == {"level": "normal"}


def test_more_peers_than_allowed_are_refused_and_the_others_live(rig: Rig) -> None:
    peers = [rig.connect() for _ in range(40)]
    try:
        peers[0].sendall(b'{"cmd":"status"}\n')
        assert read_line(peers[0]) == {"level": "normal"}
    finally:
        for peer in peers:
            peer.close()


def test_a_second_daemon_on_the_same_socket_is_refused(rig: Rig) -> None:
    with pytest.raises(UserError, match="another slmguard is already running"):
        ControlServer(rig.path, rig.reactor, lambda: 0.0, rig.hub, dict)


def test_the_left_over_of_a_dead_daemon_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "control.sock"
    dead = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    dead.bind(str(path))
    dead.close()
    rig = Rig(path)
    try:
        assert ask(path, {"cmd": "status"}) == {"level": "normal"}
    finally:
        rig.close()
    assert not path.exists()


def test_without_a_daemon_a_command_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="systemctl start slmguard"):
        ask(tmp_path / "none.sock", {"cmd": "status"})
