"""Reloading: validate in a child process, and keep the old configuration when the new one is bad."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

from slmguard.handover import decode, interpreter
from slmguard.options import Options
from slmguard.worker import Job, Worker

TIMEOUT_S = 60.0


class Reloader:
    """`problem` is a sentence while the file on disk is invalid and the old configuration is in force."""

    def __init__(
        self,
        config_path: str,
        worker: Worker,
        tell: Callable[[str], None],
        take_over: Callable[[Options | None], None],
    ) -> None:
        self._config_path = config_path
        self._worker = worker
        self._tell = tell
        self._take_over = take_over
        self.problem: str | None = None

    def start(self) -> None:
        """Begin; `take_over` is called in the loop with the new options, or None when the old ones stay."""
        if not self._worker.submit(Job("reload", self._validate, self._validated, self._failed)):
            self._refuse("the worker is busy; try again")

    def _validate(self) -> Options:
        command = [*interpreter(), "-m", "slmguard", "check-config", "--emit", "--config", self._config_path]
        done = subprocess.run(command, capture_output=True, timeout=TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
            raise ValueError(lines[-1] if lines else f"the check ended with code {done.returncode}")
        return decode(done.stdout)

    def _validated(self, options: Options) -> None:
        self.problem = None
        self._take_over(options)

    def _failed(self, error: BaseException) -> None:
        self._refuse(str(error).removeprefix("slmguard check-config: "))

    def _refuse(self, reason: str) -> None:
        self.problem = f"the configuration on disk is not in force, the old one is kept: {reason}"
        self._tell(self.problem)
        self._take_over(None)
