"""The example configurations of HAProxy and nginx, run by the real programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from slmguard.core.model import Level
from slmguard.gate.agent_check import agent_line
from slmguard.gate.policy import Policy, policy_for_level
from slmguard.gate.service import Gate
from slmguard.gate.settings import GateSettings
from slmguard.gate.state import GateState
from tests.gate.fakes import CHAT, FakeServer, Reply, chat, free_port, gate_before, read_reply, until

FRONT_ENDS = Path(__file__).parents[2] / "packaging" / "frontends"


def program(name: str) -> str:
    path = shutil.which(name, path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if path is None:
        pytest.skip(f"{name} is not installed: apt-get install {name}")
    return path


async def ask_port(port: int, target: str, method: str = "POST") -> Reply:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    body = chat() if method == "POST" else b""
    head = f"{method} {target} HTTP/1.1\r\nHost: g\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    try:
        return await asyncio.wait_for(read_reply(reader), 20)
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def running(command: list[str], port: int) -> AsyncIterator[None]:
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        for _ in range(200):
            assert process.returncode is None, "it did not start"
            with contextlib.suppress(OSError):
                _reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.05)
        yield
    finally:
        process.terminate()
        await asyncio.wait_for(process.wait(), 20)


async def answers_with(port: int, status: int) -> Reply:
    """The first answer with this status; the front end learns of a change with its next check."""
    for _ in range(200):
        reply = await ask_port(port, CHAT)
        if reply.status == status:
            return reply
        await asyncio.sleep(0.05)
    raise AssertionError(f"never answered {status}, last {reply.status}")


def set_level(gate: Gate, level: Level) -> None:
    gate.state.policy = policy_for_level(level, gate.settings)


def check_refusal(reply: Reply) -> None:
    assert reply.header("Retry-After") == "10"
    assert reply.json()["error"]["code"] == "memory_pressure"


def test_haproxy_drains_the_server_at_high_and_takes_it_back(tmp_path: Path) -> None:
    haproxy = program("haproxy")

    async def scenario() -> None:
        port, agent_port = free_port(), free_port()
        async with FakeServer() as server, gate_before(server, agent_listen=f"127.0.0.1:{agent_port}") as gate:
            text = (FRONT_ENDS / "haproxy.cfg").read_text(encoding="utf-8")
            for old, new in (
                ("127.0.0.1:8080", f"127.0.0.1:{port}"),
                ("8081", str(server.port)),
                ("9099", str(agent_port)),
            ):
                assert old in text
                text = text.replace(old, new)
            config = tmp_path / "haproxy.cfg"
            config.write_text(text, encoding="utf-8")
            async with running([haproxy, "-f", str(config)], port):
                await answers_with(port, 200)
                set_level(gate, Level.ELEVATED)
                await answers_with(port, 200)
                for level in (Level.HIGH, Level.CRITICAL):
                    set_level(gate, level)
                    check_refusal(await answers_with(port, 503))
                    assert (await ask_port(port, "/health", "GET")).status == 200
                set_level(gate, Level.NORMAL)
                await answers_with(port, 200)

    asyncio.run(scenario())


def test_nginx_asks_the_gate_and_passes_when_there_is_none(tmp_path: Path) -> None:
    nginx = program("nginx")

    async def scenario() -> None:
        port = free_port()
        async with FakeServer() as server, gate_before(server) as gate:
            text = (FRONT_ENDS / "nginx.conf").read_text(encoding="utf-8")
            for old, new in (("8080", port), ("8081", server.port), ("8082", gate.port)):
                assert f"127.0.0.1:{old}" in text
                text = text.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
            # So that it runs without root, too.
            kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
            paths = "".join(f"{kind}_temp_path {tmp_path}/{kind};\n" for kind in kinds)
            text = text.replace("http {", f"http {{\naccess_log off;\n{paths}", 1)
            log, pid = tmp_path / "error.log", tmp_path / "pid"
            config = tmp_path / "nginx.conf"
            config.write_text(f"daemon off; pid {pid}; error_log {log};\n{text}", encoding="utf-8")
            async with running([nginx, "-c", str(config), "-e", str(log)], port):
                assert (await ask_port(port, CHAT)).status == 200
                set_level(gate, Level.HIGH)
                refused = await ask_port(port, CHAT)
                assert refused.status == 503
                check_refusal(refused)
                assert (await ask_port(port, "/health", "GET")).status == 200
                set_level(gate, Level.ELEVATED)
                assert (await ask_port(port, CHAT)).status == 200
                set_level(gate, Level.HIGH)
                await gate.stop()
                assert (await ask_port(port, CHAT)).status == 200
                assert all(seen.json() == json.loads(chat()) for seen in server.seen if seen.target == CHAT)

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("policy", "line"),
    [
        (Policy(), "up ready maxconn:4"),
        (Policy(level=Level.ELEVATED), "up ready maxconn:2"),
        (Policy(level=Level.HIGH, refuse=True), "up drain"),
        (Policy(level=Level.CRITICAL, refuse=True), "maint"),
    ],
)
def test_every_agent_line_states_all_of_it(policy: Policy, line: str) -> None:
    async def scenario() -> None:
        assert agent_line(GateState(GateSettings(), policy)) == line

    asyncio.run(scenario())


def test_during_a_hold_the_agent_and_admit_say_no() -> None:
    async def scenario() -> None:
        async with FakeServer() as server, gate_before(server) as gate:
            gate.state.admission.close()
            assert agent_line(gate.state) == "maint"
            assert (await ask_port(gate.port, "/admit", "GET")).status == 503
            gate.state.admission.reopen()
            assert (await ask_port(gate.port, "/admit", "GET")).status == 204
            await until(lambda: gate.state.admission.at_server == 0)

    asyncio.run(scenario())
