"""The gate as systemd runs it: passed sockets, notifications, stop; and its settings."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from slmguard.core.errors import UserError
from slmguard.gate.settings import GateSettings, load_settings
from tests.gate.fakes import (
    CHAT,
    FakeServer,
    Seen,
    ask,
    begin_stream,
    chat,
    chunk,
    end_stream,
    free_port,
    gate_before,
    until,
)
from tests.gate.real_server import ending, start_gate, wait_for

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
        (["--upstream", "http://localhost:8080"], "is where the gate itself listens"),
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
    text = '[unit]\nname = "x"\n[control]\nsocket = "/run/other.sock"\n'
    text += '[server]\nurl = "http://127.0.0.1:8090"\n[gate]\nmax_inflight = 2\nbody_timeout_s = 5\n'
    settings = load_settings(write(tmp_path / "s.toml", text))
    assert (settings.max_inflight, settings.body_timeout_s) == (2, 5.0)
    assert (settings.control, settings.upstream) == ("/run/other.sock", "http://127.0.0.1:8090")
    own = load_settings(write(tmp_path / "s.toml", text + 'upstream = "http://127.0.0.1:8091"\n'))
    assert own.upstream == "http://127.0.0.1:8091"
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


def resident_mib(process: subprocess.Popen[bytes]) -> float:
    return float(psutil.Process(process.pid).memory_info().rss) / 2**20


def test_three_thousand_idle_connections_and_half_sent_bodies_cost_little_memory() -> None:
    port, nowhere = free_port(), free_port()
    half = f"POST {CHAT} HTTP/1.1\r\nHost: g\r\nContent-Length: 8000000\r\n\r\n".encode() + b"x" * 40_000
    with ending(start_gate(port, nowhere)) as gate, contextlib.ExitStack() as stack:
        before = resident_mib(gate)
        assert before < 45
        for number in range(3000):
            client = stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
            if number % 20 == 0:
                client.sendall(half)
            if number > 800:  # what the gate has closed already need not stay open here
                client.close()
        wait_for(f"http://127.0.0.1:{port}/slmguard/health", gate)
        assert resident_mib(gate) < 80


def test_what_is_in_flight_may_finish_when_the_gate_stops() -> None:
    async def scenario() -> None:
        go = asyncio.Event()

        async def answer(seen: Seen, writer: asyncio.StreamWriter) -> None:
            await begin_stream(writer)
            await chunk(writer, b"data: 1\n\n")
            await go.wait()
            await chunk(writer, b"data: [DONE]\n\n")
            await end_stream(writer)

        async with FakeServer(answer) as server, gate_before(server, stop_timeout_s=20, max_inflight=1) as gate:
            streams = [asyncio.create_task(ask(gate, "POST", CHAT, chat(stream=True))) for _ in range(2)]
            await until(lambda: gate.state.admission.waiting == 1 and len(server.seen) == 1)
            stopping = asyncio.create_task(gate.stop())
            await asyncio.sleep(0)
            go.set()
            for stream in streams:
                assert (await stream).body.endswith(b"data: [DONE]\n\n")
            await stopping

    asyncio.run(scenario())
