"""The gate as systemd runs it: passed sockets, notifications, stop; and its settings."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from slmguard.core.errors import UserError
from slmguard.gate.settings import GateSettings, load_settings
from tests.gate.real_server import ending, wait_for

# What systemd does: the socket becomes file 3 and the process is told so.
_EXEC = (
    "import os, sys; os.dup2(int(sys.argv[1]), 3); os.set_inheritable(3, True);"
    "os.environ.update(LISTEN_FDS='1', LISTEN_PID=str(os.getpid()));"
    "os.execv(sys.executable, [sys.executable, '-m', 'slmguard', 'gate', '--control', 'none'])"
)


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as created:
        yield created


def start_activated(listener: socket.socket, **env: str) -> subprocess.Popen[bytes]:
    number = listener.fileno()
    return subprocess.Popen(
        [sys.executable, "-c", _EXEC, str(number)],
        pass_fds=[number],
        env={**os.environ, **env},
        stderr=subprocess.DEVNULL,
    )


def test_a_restart_of_the_gate_drops_no_connection_attempt(listener: socket.socket) -> None:
    port = listener.getsockname()[1]
    url = f"http://127.0.0.1:{port}/slmguard/health"
    with ending(start_activated(listener)) as first:
        wait_for(url, first)
        first.terminate()
        assert first.wait(20) == 0
    with socket.create_connection(("127.0.0.1", port), 5) as early:  # while no gate runs
        early.sendall(b"GET /slmguard/health HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
        with ending(start_activated(listener)):
            early.settimeout(30)
            assert early.recv(20).startswith(b"HTTP/1.1 200 OK")


def test_systemd_is_told_when_it_is_ready_alive_and_stopping(listener: socket.socket, tmp_path: Path) -> None:
    path = tmp_path / "notify"
    with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as notified:
        notified.bind(str(path))
        notified.settimeout(20)
        with ending(start_activated(listener, NOTIFY_SOCKET=str(path), WATCHDOG_USEC="200000")) as gate:
            told = [notified.recv(4096) for _ in range(4)]
            assert told[0].startswith(b"READY=1\n")
            assert told[1:] == [b"WATCHDOG=1"] * 3
            gate.terminate()
            while (message := notified.recv(4096)) != b"STOPPING=1":
                assert message == b"WATCHDOG=1"
            assert gate.wait(20) == 0


def run_cli(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "slmguard", "gate", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--listen", "8080"], "is no HOST:PORT"),
        (["--upstream", "ftp://x"], "must look like http://127.0.0.1:8081"),
        (["--upstream", "http://u:p@h/"], "must look like"),
        (["--max-inflight", "0"], "`max_inflight` must lie between 1"),
        (["--config", "/nowhere.toml"], "/nowhere.toml: no such file"),
    ],
)
def test_a_mistake_is_told_in_one_line(arguments: list[str], said: str) -> None:
    ended = run_cli(*arguments)
    assert ended.returncode == 2
    assert said in ended.stderr
    assert len(ended.stderr.splitlines()) == 1


def test_a_port_in_use_is_told(listener: socket.socket) -> None:
    listener.listen()
    ended = run_cli("--listen", f"127.0.0.1:{listener.getsockname()[1]}")
    assert ended.returncode == 2
    assert "cannot listen on" in ended.stderr


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_the_gate_table_of_the_common_file_is_read(tmp_path: Path) -> None:
    text = '[unit]\nname = "x"\n[control]\nsocket = "/run/other.sock"\n[gate]\nmax_inflight = 2\nbody_timeout_s = 5\n'
    settings = load_settings(write(tmp_path / "s.toml", text))
    assert (settings.max_inflight, settings.body_timeout_s) == (2, 5.0)
    assert settings.control == "/run/other.sock"
    assert settings.replaced(max_inflight=3, listen=None).max_inflight == 3


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gate]\nmax_inflite = 2", "did you mean `max_inflight`?"),
        ("[gate]\nwhatever = 2", "known keys: "),
        ("[gate]\nmax_inflight = true", "must be a number"),
        ("[gate]\nlisten = 8080", "must be a text"),
        ("[gate]\nmax_body_bytes = 99999999999", "max_buffered_bytes"),
        ("gate = 5", "must be a table"),
        ("[gate", "not valid TOML"),
    ],
)
def test_a_bad_value_names_the_key_and_the_file(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path / "s.toml", text)
    with pytest.raises(UserError) as caught:
        load_settings(path)
    assert said in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_defaults_are_valid() -> None:
    assert GateSettings.from_mapping({}) == GateSettings()
