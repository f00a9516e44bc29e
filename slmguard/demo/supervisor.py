"""Keeps the demo's server running, as systemd's Restart=always would, and counts how often it had to."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slmguard.demo import child

RESTART_DELAY_S = 0.2
STOP_TIMEOUT_S = 1.0  # at the end of the demo nothing in the server is worth waiting for
# A server that ends this often without having lived for this long will not come up at all.
GIVE_UP_AFTER = 5
SHORT_LIFE_S = 3.0


@dataclass(frozen=True, slots=True)
class Exit:
    """One end of the server. `killed_at_limit` tells the demo's stand-in for the OOM killer from everything else."""

    at_s: float
    returncode: int
    killed_at_limit: bool

    @property
    def words(self) -> str:
        """How it ended, for people."""
        if self.killed_at_limit:
            return "killed at the memory limit"
        if self.returncode < 0:
            return f"ended by {signal.Signals(-self.returncode).name}"
        return f"exited with {self.returncode}"


class Supervisor:
    """One supervised process. `on_exit` is called in the supervisor's thread after each end that a start follows.

    The pid is written to `pid_file` at every start; `log_file` gets the process's output.
    """

    def __init__(
        self,
        command: Sequence[str],
        pid_file: Path,
        log_file: Path,
        clock: Callable[[], float] = time.monotonic,
        on_exit: Callable[[Exit], None] = lambda _: None,
    ) -> None:
        self._command = command
        self._pid_file = pid_file
        self._log_file = log_file
        self._clock = clock
        self._on_exit = on_exit
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._kill_pending = False
        self.exits: list[Exit] = []
        self.gave_up = False
        self._thread = threading.Thread(target=self._keep, name="supervisor", daemon=True)

    def start(self) -> None:
        """Start the process and keep it running until `stop`."""
        self._thread.start()

    def stop(self) -> None:
        """End the process for good: SIGTERM, and SIGKILL after `STOP_TIMEOUT_S`."""
        self._stopping.set()
        if self._thread.ident is None:
            return
        with self._lock:
            process = self._process
        if process is not None:
            child.end(process, STOP_TIMEOUT_S)
        self._thread.join(STOP_TIMEOUT_S + 5.0)

    def kill_at_limit(self) -> bool:
        """SIGKILL the process as the kernel's OOM killer would; False when there is none, or one kill is under way."""
        with self._lock:
            if self._process is None or self._kill_pending:
                return False
            self._kill_pending = True
            self._process.kill()
            return True

    @property
    def pid(self) -> int | None:
        """The running process, None between two lives."""
        with self._lock:
            return self._process.pid if self._process is not None else None

    @property
    def restarts(self) -> int:
        """How often it was started again."""
        return len(self.exits)

    @property
    def kills(self) -> int:
        """How often it was killed at the limit."""
        return sum(end.killed_at_limit for end in self.exits)

    def last_words(self) -> str:
        """The last line of its log, for an error message."""
        try:
            lines = self._log_file.read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return "".join(letter for letter in lines[-1] if letter.isprintable())[:300] if lines else ""

    def _keep(self) -> None:
        short_lives = 0
        with self._log_file.open("ab") as log:
            while not self._stopping.is_set():
                started_s = self._clock()
                process = child.spawn(self._command, log)
                with self._lock:
                    self._process = process
                self._write_pid(process.pid)
                if self._stopping.is_set():  # `stop` came between the check above and the start, and saw no process
                    child.end(process, STOP_TIMEOUT_S)
                returncode = process.wait()
                with self._lock:
                    self._process, killed, self._kill_pending = None, self._kill_pending, False
                if self._stopping.is_set():
                    return
                end = Exit(self._clock(), returncode, killed)
                short_lives = short_lives + 1 if end.at_s - started_s < SHORT_LIFE_S else 0
                if short_lives >= GIVE_UP_AFTER:
                    self.gave_up = True
                    return
                self.exits.append(end)
                self._on_exit(end)
                self._stopping.wait(RESTART_DELAY_S)

    def _write_pid(self, pid: int) -> None:
        partial = self._pid_file.with_suffix(".new")
        partial.write_text(f"{pid}\n")
        partial.replace(self._pid_file)
