"""The models that the board's server is given."""

from __future__ import annotations

import os
from pathlib import Path

from slmguard.core.errors import UserError
from tests.board.harness.image import cache_dir, locked
from tests.board.harness.lacks import BoardUnavailableError
from tests.board.harness.tiny_model import write_model

REAL = "smollm2.gguf"
TINY = "tiny.gguf"


def ensure_models(cache: Path | None = None) -> dict[str, Path]:
    """Both models by the name they have on the board. Raises BoardUnavailableError when the real one is not to be had.

    `$SLMGUARD_MODEL` names a GGUF file to take instead of the downloaded SmolLM2.
    """
    folder = (cache or cache_dir()) / "models"
    with locked(folder / "lock"):
        tiny = folder / TINY
        if not tiny.exists():
            write_model(tiny)
        given = os.environ.get("SLMGUARD_MODEL")
        return {REAL: Path(given) if given else _downloaded(folder), TINY: tiny}


def _downloaded(folder: Path) -> Path:
    from slmguard.demo.model import ensure_model

    try:
        return ensure_model(folder)
    except UserError as error:
        raise BoardUnavailableError(str(error)) from error
