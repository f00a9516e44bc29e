"""Recording a run as JSON lines for `slmguard simulate`: samples and results, no prompts, bounded in size."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TextIO

from slmguard.core import codec
from slmguard.core.model import RungResult, Sample

MAX_BYTES = 64 << 20


class Recorder:
    """Appends to a file when a path is given. The guard goes on when it cannot be written; `problem` says so."""

    def __init__(self, path: str | None, tell: Callable[[str], None]) -> None:
        self.problem: str | None = None
        self._tell = tell
        self._file: TextIO | None = None
        self._left_bytes = MAX_BYTES
        if path is not None:
            try:
                self._file = open(path, "a", encoding="utf-8", buffering=1)  # noqa: SIM115, PTH123 - kept open for life
            except OSError as error:
                self._stop(f"recording to {path} is off: {error.strerror}")

    def sample(self, sample: Sample) -> None:
        """Record one sample."""
        self._write({"sample": codec.to_json(sample)})

    def result(self, result: RungResult) -> None:
        """Record how a rung ended."""
        self._write({"result": codec.to_json(result)})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, data: dict[str, object]) -> None:
        if self._file is None:
            return
        line = json.dumps(data, separators=(",", ":")) + "\n"
        self._left_bytes -= len(line)
        try:
            if self._left_bytes < 0:
                self._stop("recording stopped: 64 MiB are written")
                return
            self._file.write(line)
        except OSError as error:
            self._stop(f"recording stopped: {error.strerror}")

    def _stop(self, problem: str) -> None:
        self.problem = problem
        self._tell(problem)
        self._file = None
