"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from slmguard.core.errors import UserError
from slmguard.plan.printable import printable

_MODE = 0o644


def write_whole(path: Path, text: str) -> None:
    """Puts `text` at `path` by a rename, so that a reader sees the old file or the new one. Raises UserError."""
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
                os.fchmod(file.fileno(), _MODE)
            Path(temporary).replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                Path(temporary).unlink()
            raise
    except OSError as error:
        raise UserError(f"cannot write {printable(str(path))}: {error.strerror or error}") from error
