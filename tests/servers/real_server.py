"""A real llama.cpp server in a process of its own, for tests of any area.

    from tests.servers.real_server import start_server

    with start_server(n_ctx=2048, endpoint_metrics=True) as server:
        ...  # server.url

or, where one server is enough for the whole session, `from tests.servers.real_server import real_server  # noqa: F401`
and a test with the parameter `real_server`.

It is the engine of the `xllamacpp` package with a 92 MB model from the package index, bound to 127.0.0.1, ended with
its own process. Settings are the attributes of xllamacpp's CommonParams.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from slmguard.core.errors import UserError
from slmguard.demo.model import default_cache_dir, ensure_model

_START_LIMIT_S = 90.0
_CHILD = """
import json, sys
import xllamacpp
params = xllamacpp.CommonParams()
settings = json.loads(sys.argv[1])
params.model.path = settings.pop("model")
params.hostnames = ["127.0.0.1"]
for name, value in settings.items():
    setattr(params, name, value)
server = xllamacpp.Server(params)
print(server.listening_address, flush=True)
sys.stdin.read()
import os
os._exit(0)
"""


@dataclass(frozen=True)
class RealServer:
    """Where it listens, and its process."""

    url: str
    process: subprocess.Popen[bytes]

    def complete(self, prompt: str, tokens: int, timeout_s: float = 120.0, **fields: object) -> dict[str, object]:
        """One completion, waited for."""
        body = json.dumps({"prompt": prompt, "n_predict": tokens, "ignore_eos": True, **fields}).encode()
        request = urllib.request.Request(  # noqa: S310 - a loopback address of our own
            f"{self.url}/completion", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:  # noqa: S310
            document: dict[str, object] = json.load(answer)
            return document


def model_path() -> Path | None:
    """The model file: an installed copy or the one that `make test` has fetched; None when it cannot be had."""
    try:
        return ensure_model(default_cache_dir())
    except UserError:
        return None


def lacking() -> str:
    """What this machine lacks for a real server, "" when nothing."""
    import importlib.util

    if importlib.util.find_spec("xllamacpp") is None:
        return "xllamacpp is not installed: no real llama.cpp server to test against"
    return "" if model_path() else "the model cannot be had (python -m slmguard.demo.model says why)"


@contextmanager
def start_server(**settings: object) -> Iterator[RealServer]:
    """Start it on a free port, wait until it is loaded, end it after the block."""
    plain: dict[str, object] = {"model": str(model_path()), "port": 0, "n_parallel": 1, "cache_ram_mib": 0}
    process = subprocess.Popen(
        [sys.executable, "-c", _CHILD, json.dumps({**plain, "port": _free_port(), **settings})],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "LLAMA_LOG_VERBOSITY": "0"},
    )
    try:
        yield RealServer(_address(process), process)
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()
        process.wait(30)


def _address(process: subprocess.Popen[bytes]) -> str:
    """The address that the child prints once the model is loaded (log lines may come before it)."""
    assert process.stdout is not None
    deadline = time.monotonic() + _START_LIMIT_S
    seen = b""
    while time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 0.5)[0]:
            seen += os.read(process.stdout.fileno(), 65536)
            for line in seen.split(b"\n")[:-1]:
                if line.startswith(b"http://"):
                    return line.decode().strip()
    raise RuntimeError(f"the llama.cpp server did not come up (exit code {process.poll()}): {seen[-400:]!r}")


def _free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="session")
def real_server() -> Iterator[RealServer]:
    """One server for the session: 2048 tokens of context, two slots, metrics, slots and erase."""
    if lacking():
        pytest.skip(lacking())
    with (
        tempfile.TemporaryDirectory() as folder,
        start_server(
            n_ctx=2048, n_parallel=2, endpoint_metrics=True, endpoint_slots=True, slot_save_path=f"{folder}/"
        ) as server,
    ):
        yield server
