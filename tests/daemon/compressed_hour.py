"""Run by the footprint test in a process of its own: the real guard, an hour of looks in a row, scraped all along.

Prints JSON: RSS and open descriptors after the warm-up and at the end, and how many looks and scrapes there were.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from pathlib import Path

from slmguard import lean_imports

lean_imports.prepare()
from slmguard.daemon import Guard  # noqa: E402
from slmguard.options import MemoryOptions, Options, RestartMethod, ServerChoice  # noqa: E402

TICKS = 3600  # an hour at a pace of 1 s
SCRAPE_EVERY = 15


def rss_kib() -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("no VmRSS")


def scrape(port: int, done: list[int]) -> None:
    for path in ("/metrics", "/", "/status"):
        with socket.create_connection(("127.0.0.1", port), timeout=10) as peer:
            peer.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            size = 0
            while chunk := peer.recv(65536):
                size += len(chunk)
        done.append(size)


def main(folder: Path, port: int, server_url: str) -> None:
    options = Options(
        unit="test",
        memory=MemoryOptions(source="process", budget_bytes=1 << 34, pid=os.getppid()),
        server=ServerChoice(kind="llama-server", url=server_url, timeout_s=0.5),
        restart=RestartMethod(method="none"),
        metrics_listen=f"127.0.0.1:{port}",
        control_socket=str(folder / "control.sock"),
        state_directory=str(folder / "state"),
    )
    guard = Guard(options, "", dict(os.environ))
    guard._senses.source.refresh()
    done: list[int] = []
    readings = []
    for number in range(TICKS):
        guard._tick(guard._clock())
        guard._acting.collect()
        guard._chores.collect()
        if number % SCRAPE_EVERY == 0:
            client = threading.Thread(target=scrape, args=(port, done))
            client.start()
            while client.is_alive():
                guard._reactor.wait(0.01)
            client.join()
            guard._reactor.wait(0)
        if number in {TICKS // 2, TICKS - 1}:
            readings.append({"rss_kib": rss_kib(), "fds": len(list(Path("/proc/self/fd").iterdir()))})
    print(json.dumps({"warm": readings[0], "end": readings[1], "ticks": TICKS, "scrapes": len(done)}))
    guard._shut_down()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
