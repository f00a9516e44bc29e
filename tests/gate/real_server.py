"""Runs a real llama.cpp server in a process of its own: `real_server.py PORT MODEL`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from slmguard.core.errors import UserError
from slmguard.demo.model import default_cache_dir, ensure_model


def model_path() -> Path:
    """A small model: $SLMGUARD_TEST_MODEL, else the one that `make test` has fetched; skips the test without one."""
    given = os.environ.get("SLMGUARD_TEST_MODEL")
    if given:
        return Path(given)
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp (llama.cpp's server) is not installed: pip install 'slmguard[demo]'")
    try:
        return ensure_model(default_cache_dir())
    except UserError as error:
        pytest.skip(f"no model: {error}")


def wait_for(url: str, process: subprocess.Popen[bytes], limit_s: float = 60) -> None:
    """Until the address answers 200."""
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        assert process.poll() is None, "the process ended"
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310
            if answer.status == 200:
                return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not answer")


def start_server(port: int) -> subprocess.Popen[bytes]:
    """A server that is ready."""
    process = launch_server(port)
    wait_for(f"http://127.0.0.1:{port}/health", process)
    return process


def launch_server(port: int) -> subprocess.Popen[bytes]:
    """A server that still loads."""
    command = [sys.executable, __file__, str(port), str(model_path())]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start_gate(port: int, upstream_port: int, *options: str, control: str = "none") -> subprocess.Popen[bytes]:
    """The gate as a user starts it."""
    command = [sys.executable, "-m", "slmguard", "gate", "--listen", f"127.0.0.1:{port}"]
    command += ["--upstream", f"http://127.0.0.1:{upstream_port}", "--control", control, *options]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    wait_for(f"http://127.0.0.1:{port}/slmguard/health", process)
    return process


@contextlib.contextmanager
def ending(process: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """Ends the process with the block."""
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def main() -> None:
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = sys.argv[2]
    params.hostnames = ["127.0.0.1"]
    params.port = int(sys.argv[1])
    params.n_ctx = 2048
    params.n_parallel = 2
    params.cache_ram_mib = 0
    params.warmup = False
    params.cpuparams.n_threads = 2
    _server = xllamacpp.Server(params)
    signal.pause()


if __name__ == "__main__":
    main()
