"""The guard of the demo: the real `slmguard run` and the real gate, as child processes."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.demo import child
from slmguard.demo.settings import DemoSettings
from slmguard.ui.control_client import fetch_status
from slmguard.ui.picture import Picture, read
from slmguard.ui.words import clean

METRICS_PORT = 10985
START_TIMEOUT_S = 30.0
POLL_S = 0.25
STOP_TIMEOUT_S = 3.0

CONFIG = """# Written by slmguard demo.
[unit]
name = "demo"

[memory]
source = "process"
pid_file = {pid_file}
budget = {budget}
budget_max = {budget_max}

[server]
kind = "llama-server"
url = {url}
probe_interval_s = 1.0

[restart]
method = "signal"
# The demo shows in three minutes what takes hours on a board, so its restarts may be closer together and more.
min_interval_s = 15
budget_per_hour = 60
drain_s = 10
stop_timeout_s = 6

[metrics]
listen = {listen}

[control]
socket = {socket}

[state]
directory = {state}
"""


def free_port(wanted: int = 0) -> int:
    """`wanted` if it can be bound on loopback now, else any port that can.

    Raises EnvironmentLacksError when there is no loopback at all.
    """
    for port in dict.fromkeys((wanted, 0)):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise EnvironmentLacksError("no port can be opened on 127.0.0.1")


def gate_available() -> bool:
    """True when this slmguard has a gate and the library that it is built on is installed."""
    return all(importlib.util.find_spec(name) is not None for name in ("slmguard.commands.gate", "aiohttp"))


class Child:
    """One child process with a log of its own."""

    def __init__(self, name: str, command: list[str], log_path: Path) -> None:
        self.name = name
        self._log_path = log_path
        with log_path.open("ab") as log:
            self._process: subprocess.Popen[bytes] = child.spawn(command, log)

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Return when `ready` says so.

        Raises UserError with the child's last line when it ends before, or is not ready within `START_TIMEOUT_S`.
        """
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not ready():
            if self._process.poll() is not None:
                raise UserError(f"{self.name} ended with {self._process.returncode}: {self.last_words()}", 1)
            if time.monotonic() > deadline_s:
                raise UserError(f"{self.name} was not ready within {START_TIMEOUT_S:g} s: {self.last_words()}", 1)
            time.sleep(0.1)

    @property
    def running(self) -> bool:
        """True until it has ended."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it."""
        child.end(self._process, STOP_TIMEOUT_S)

    def last_words(self) -> str:
        """The last line of its log."""
        try:
            lines = self._log_path.read_text(errors="replace").strip().splitlines()
        except OSError:
            lines = []
        return clean(lines[-1]) if lines else "it said nothing"


class Guard:
    """The daemon under way, and a thread that asks it for its status."""

    def __init__(
        self, settings: DemoSettings, folder: Path, server_url: str, pid_file: Path, metrics_port: int
    ) -> None:
        self.control = folder / "control.sock"
        config = folder / "slmguard.toml"
        config.write_text(
            CONFIG.format(
                pid_file=json.dumps(str(pid_file)),
                budget=settings.budget_bytes,
                budget_max=settings.budget_max_bytes,
                url=json.dumps(server_url),
                listen=json.dumps(f"127.0.0.1:{metrics_port}"),
                socket=json.dumps(str(self.control)),
                state=json.dumps(str(folder / "state")),
            )
        )
        command = [sys.executable, "-m", "slmguard", "run", "--config", str(config)]
        self._child = Child("the guard", command, folder / "guard.log")
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None

    def wait_ready(self) -> None:
        """Return when the daemon answers. Raises UserError when it does not come up."""
        self._child.wait_until(lambda: self._ask() is not None)

    def follow(self, on_picture: Callable[[Picture], None], on_end: Callable[[str], None]) -> None:
        """Ask for the status four times a second until `stop`; `on_end` hears the daemon's last words if it ends."""
        self._thread = threading.Thread(target=self._follow, args=(on_picture, on_end), name="guard", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the daemon."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(2.0)
        self._child.stop()

    def _follow(self, on_picture: Callable[[Picture], None], on_end: Callable[[str], None]) -> None:
        while not self._stopping.wait(POLL_S):
            picture = self._ask()
            if picture is not None:
                on_picture(picture)
            elif not self._child.running and not self._stopping.is_set():
                on_end(self._child.last_words())
                return

    def _ask(self) -> Picture | None:
        try:
            return read(fetch_status(self.control, timeout_s=1.0))
        except EnvironmentLacksError:
            return None


def start_gate(folder: Path, listen_port: int, server_url: str, control: Path) -> Child:
    """The gate in front of the server, told what to do by the daemon on `control`."""
    command = [sys.executable, "-m", "slmguard", "gate", "--listen", f"127.0.0.1:{listen_port}"]
    command += ["--upstream", server_url, "--control", str(control)]
    gate = Child("the gate", command, folder / "gate.log")
    try:
        gate.wait_until(lambda: _answers(listen_port))
    except UserError:
        gate.stop()
        raise
    return gate


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0):
            return True
    except OSError:
        return False
