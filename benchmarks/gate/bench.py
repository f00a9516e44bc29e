"""What the gate costs: latency added to answers and tokens, and memory, beside nginx and no proxy at all.

    python benchmarks/gate/bench.py [--json FILE] [--seconds S]

All ways are measured in the same run, in turn and several times, so that a noisy machine disturbs them alike.
Requests are sent at a fixed pace (32 connections, 10 requests a second each), for a queue in the client would
otherwise be measured. nginx is measured where it is installed. Exit code 1 when a bound is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
CONNECTIONS = 32
PACE_S = 0.1
ROUNDS = 7
STREAMS = 256
TOKEN_EVERY_MS = 50
BOUNDS = {
    "added_median_ms": 1.0,
    "added_p99_ms": 5.0,
    "added_token_median_ms": 0.5,
    "idle_rss_mib": 45.0,
    "streams_rss_mib": 80.0,
}


@dataclass
class Way:
    """One way to the server, and what was measured on it (seconds)."""

    name: str
    port: int
    answers_s: list[list[float]] = field(default_factory=list)  # by round
    tokens_s: list[list[float]] = field(default_factory=list)


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one of the rounds (default 2)")
    args = parser.parse_args()
    with contextlib.ExitStack() as stack:
        server_port = free_port()
        stack.enter_context(process([sys.executable, str(HERE / "fast_server.py"), str(server_port)], server_port))
        ways = [Way("direct", server_port)]
        if shutil.which("nginx") or Path("/usr/sbin/nginx").exists():
            ways.append(Way("nginx", free_port()))
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            stack.enter_context(process(nginx_command(folder, ways[-1].port, server_port), ways[-1].port))
        gate_port = free_port()
        gate_process = stack.enter_context(process(gate_command(gate_port, server_port), gate_port))
        ways.append(Way("gate", gate_port))
        figures = {"idle_rss_mib": rss_mib(gate_process.pid)}
        figures.update(asyncio.run(measure(ways, args.seconds, gate_process.pid)))
    figures.update(summary(ways))
    report(ways, figures)
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0 if all(figures[name] <= bound for name, bound in BOUNDS.items()) else 1


async def measure(ways: list[Way], seconds: float, gate_pid: int) -> dict[str, float]:
    """Fill the ways with figures; returns those that belong to the gate alone."""
    for _ in range(ROUNDS):
        for way in ways:
            way.answers_s.append(await paced(way, seconds))
        for way in ways:
            way.tokens_s.append(await streams(way.port, CONNECTIONS, int(seconds * 1000 / TOKEN_EVERY_MS)))
    many = asyncio.create_task(streams(ways[-1].port, STREAMS, 100))
    highest = 0.0
    while not many.done():
        await asyncio.sleep(0.2)
        highest = max(highest, rss_mib(gate_pid))
    delays = await many
    return {"streams_rss_mib": highest, "streams_tokens": float(len(delays))}


async def paced(way: Way, seconds: float) -> list[float]:
    """Whole answers: each connection sends one request every PACE_S, evenly spread."""
    body = json.dumps({"messages": [{"role": "user", "content": "hello " * 20}], "max_tokens": 64}).encode()
    request = post(body)
    taken_s: list[float] = []

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
        started_s = time.monotonic() + number * PACE_S / CONNECTIONS
        for turn in range(int(seconds / PACE_S)):
            await asyncio.sleep(max(0.0, started_s + turn * PACE_S - time.monotonic()))
            sent_s = time.perf_counter()
            writer.write(request)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(length_in(head))
            if turn > 0:  # the first one opens the connection to the server
                taken_s.append(time.perf_counter() - sent_s)
        writer.close()

    await asyncio.gather(*(one(number) for number in range(CONNECTIONS)))
    return taken_s


async def streams(port: int, count: int, tokens: int) -> list[float]:
    """Delay of every token of `count` streams at the same time; fails when one is missing or out of order."""
    delays: list[float] = []
    body = json.dumps({"stream": True, "tokens": tokens, "every_ms": TOKEN_EVERY_MS, "messages": []}).encode()

    async def one(number: int) -> None:
        await asyncio.sleep(number * TOKEN_EVERY_MS / 1000 / count)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(body))
        await reader.readuntil(b"\r\n\r\n")
        expected = 0
        while expected < tokens:
            line = await reader.readline()
            if not line.startswith(b"data: "):
                continue
            arrived_ns = time.monotonic_ns()
            event = json.loads(line[6:])
            if event["n"] != expected:
                raise SystemExit(f"token {expected} lost or out of order: got {event['n']}")
            delays.append((arrived_ns - event["sent_ns"]) / 1e9)
            expected += 1
        writer.close()

    await asyncio.gather(*(one(number) for number in range(count)))
    return delays


def post(body: bytes) -> bytes:
    """A chat request."""
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: b\r\nContent-Length: %d\r\n\r\n" % len(body) + body


def length_in(head: bytes) -> int:
    """The Content-Length of an answer."""
    lower = head.lower()
    at = lower.index(b"content-length:") + 15
    return int(lower[at : lower.index(b"\r\n", at)])


def summary(ways: list[Way]) -> dict[str, float]:
    """Milliseconds of each way, and what it adds to the direct one: the middle one of the rounds' figures.

    A round is compared with the direct round beside it, so that what disturbs the machine for a while counts once.
    """
    figures: dict[str, float] = {}
    direct = ways[0]
    for way in ways:
        for kind in ("answers_s", "tokens_s"):
            for name, of in (("median", statistics.median), ("p99", _p99)):
                values = [of(values) * 1000 for values in getattr(way, kind)]
                base = [of(values) * 1000 for values in getattr(direct, kind)]
                added = statistics.median(v - b for v, b in zip(values, base, strict=True))
                unit = f"{'token_' if kind == 'tokens_s' else ''}{name}_ms"
                figures[f"{way.name}_{unit}"] = statistics.median(values)
                figures[f"{'' if way.name == 'gate' else way.name + '_'}added_{unit}"] = added
    return figures


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


def report(ways: list[Way], figures: dict[str, float]) -> None:
    """Print a table and the bounds."""
    print(f"{'':8}{'answer ms':>12}{'p99':>8}{'token ms':>12}{'p99':>8}{'answers':>10}{'tokens':>10}")
    for way in ways:
        columns = [figures[f"{way.name}_{w}"] for w in ("median_ms", "p99_ms", "token_median_ms", "token_p99_ms")]
        cells = "".join(f"{value:{width}.2f}" for value, width in zip(columns, (12, 8, 12, 8), strict=True))
        print(f"{way.name:8}{cells}{sum(map(len, way.answers_s)):10}{sum(map(len, way.tokens_s)):10}")
    for name, bound in BOUNDS.items():
        verdict = "ok" if figures[name] <= bound else "MISSED"
        print(f"{name:24}{figures[name]:8.2f}  bound {bound:g}  {verdict}")
    print(f"{STREAMS} streams at the same time: {figures['streams_tokens']:.0f} tokens, none lost, none out of order")


def gate_command(port: int, server_port: int) -> list[str]:
    """The gate as a user starts it."""
    command = [sys.executable, "-m", "slmguard", "gate", "--control", "none", "--listen", f"127.0.0.1:{port}"]
    return [*command, "--upstream", f"http://127.0.0.1:{server_port}", "--max-inflight", str(STREAMS)]


def nginx_command(folder: str, port: int, server_port: int) -> list[str]:
    """Nginx set up for event streams, one worker: the gate has one thread, too."""
    text = f"""
daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 2048; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  upstream server {{ server 127.0.0.1:{server_port}; keepalive {STREAMS}; }}
  server {{
    listen 127.0.0.1:{port};
    proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    location / {{ proxy_pass http://server; }}
  }}
}}
"""
    path = Path(folder, "nginx.conf")
    path.write_text(text, encoding="utf-8")
    Path(folder).chmod(0o755)  # nginx' worker runs as another user
    return [shutil.which("nginx") or "/usr/sbin/nginx", "-c", str(path), "-e", f"{folder}/error.log"]


@contextlib.contextmanager
def process(command: list[str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a command until the block ends; waits until its port answers."""
    with subprocess.Popen(
        command, stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": str(Path.cwd())}
    ) as running:
        try:
            until_s = time.monotonic() + 15
            while True:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                if time.monotonic() > until_s or running.poll() is not None:
                    raise SystemExit(f"did not start: {' '.join(command)}")
                time.sleep(0.05)
            yield running
        finally:
            running.terminate()
            running.wait(30)


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def rss_mib(pid: int) -> float:
    """Resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


if __name__ == "__main__":
    sys.exit(main())
