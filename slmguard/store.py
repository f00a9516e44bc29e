"""What must survive a restart of the guard: counters, recent restarts, the OOM baseline.

Written atomically and read tolerantly. A state directory that is read-only or full never stops the guard.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

FILE_NAME = "state.json"
MAX_BYTES = 1 << 20


class Store:
    """One JSON file in the state directory."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME
        self._directory = directory

    def load(self) -> tuple[dict[str, Any], str | None]:
        """What was saved last, and a sentence when it could not be used. A damaged file is set aside, not deleted."""
        try:
            with self._path.open("rb") as file:
                data = json.loads(file.read(MAX_BYTES))
            if isinstance(data, dict):
                return data, None
            problem = "holds no object"
        except FileNotFoundError:
            return {}, None
        except OSError as error:
            return {}, f"{self._path} cannot be read ({error.strerror}): counters start at 0"
        except (ValueError, RecursionError):
            problem = "is damaged"
        with contextlib.suppress(OSError):
            self._path.replace(self._path.with_suffix(".damaged"))
        return {}, f"{self._path} {problem}: set aside as {FILE_NAME.replace('.json', '.damaged')}, counters start at 0"

    def save(self, data: dict[str, Any]) -> str | None:
        """Write `data`; None when it is safely on disk, else a sentence that says why not."""
        temporary = self._path.with_suffix(f".{os.getpid()}.new")
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with temporary.open("w", encoding="utf-8") as file:
                json.dump(data, file)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                temporary.unlink()
            return f"{self._path} cannot be written ({error.strerror}): counters will not survive a restart"
        return None
