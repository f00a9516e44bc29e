"""One boot of the virtual board: stage a shared folder, run the kernel under a time limit, read the results."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.board.harness.image import Recipe, ensure_image
from tests.board.harness.lacks import ensure_machine

CHECKOUT = Path(__file__).resolve().parents[3]
# What the guest gets of the checkout, at every boot: a change of code does not rebuild the image.
PAYLOAD = ("slmguard", "systemd", "sysctl", "packaging", "tests/board/guest", "tests/board/scenarios")


@dataclass(frozen=True, slots=True)
class Step:
    """One scenario of a boot: a module of `tests.board.scenarios`, its parameters and its time limit in the guest."""

    scenario: str
    limit_s: float
    parameters: dict[str, Any] = field(default_factory=dict)
    name: str = ""

    @property
    def label(self) -> str:
        """The name of the step's result."""
        return self.name or self.scenario


@dataclass(frozen=True, slots=True)
class BoardRun:
    """What came back from a boot. A step that never ended has no entry in `results`."""

    results: dict[str, dict[str, Any]]
    boot_s: float | None
    total_s: float
    timed_out: bool
    folder: Path

    @property
    def console(self) -> str:
        """Everything the kernel and the scenarios wrote to the console."""
        return (self.folder / "console.txt").read_text(errors="replace")

    def result(self, label: str) -> dict[str, Any]:
        """What the step returned; AssertionError with the guest's traceback or the console's tail otherwise."""
        record = self.results.get(label)
        if record is None:
            raise AssertionError(f"{label} left no result; the console ends with:\n{self.console[-3000:]}")
        if record.get("error"):
            raise AssertionError(f"{label} failed in the guest:\n{record['error']}")
        found: dict[str, Any] = record["result"]
        return found


def boot(
    steps: list[Step],
    folder: Path,
    *,
    models: dict[str, Path],
    memory_mib: int = 768,
    recipe: Recipe | None = None,
    cache: Path | None = None,
    limit_s: float | None = None,
) -> BoardRun:
    """Boots the board, runs `steps` in order and returns what they found.

    `folder` keeps console, journal, kernel log and results. The kernel and all of its processes are killed
    when `limit_s` (default: the sum of the steps' limits and 90 s for booting) is over.
    Raises BoardUnavailableError when this machine cannot run it.
    """
    ensure_machine()
    image = ensure_image(recipe or Recipe(), cache)
    share = folder / "share"
    _stage(share, steps, models)
    limit = limit_s if limit_s is not None else sum(step.limit_s for step in steps) + 90
    with tempfile.TemporaryDirectory(prefix="slmboard-") as work:
        started = time.monotonic()
        timed_out = _run_kernel(image, Path(work), share, folder / "console.txt", memory_mib, limit)
        total = time.monotonic() - started
    results = {path.stem: json.loads(path.read_text()) for path in sorted((share / "results").glob("*.json"))}
    began = share / "began"
    boot_s = float(began.read_text()) if began.exists() else None
    for staged in ("payload", "models"):
        shutil.rmtree(share / staged, ignore_errors=True)
    return BoardRun(results, boot_s, total, timed_out, folder)


def _stage(share: Path, steps: list[Step], models: dict[str, Path]) -> None:
    shutil.rmtree(share, ignore_errors=True)
    (share / "results").mkdir(parents=True)
    for name in PAYLOAD:
        source = CHECKOUT / name
        if source.is_dir():
            shutil.copytree(source, share / "payload" / name, ignore=shutil.ignore_patterns("__pycache__"))
    (share / "models").mkdir()
    for name, path in models.items():
        _link_or_copy(path, share / "models" / name)
    plan = [
        {"scenario": step.scenario, "limit_s": step.limit_s, "parameters": step.parameters, "label": step.label}
        for step in steps
    ]
    (share / "plan.json").write_text(json.dumps(plan))


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _memory_file_dir() -> str | None:
    """A tmpfs for the guest's memory: on a disk every dirty page of the guest would be written back."""
    shm = Path("/dev/shm")
    return str(shm) if shm.is_dir() and os.access(shm, os.W_OK) and shutil.disk_usage(shm).free > 2 << 30 else None


def _run_kernel(image: Path, work: Path, share: Path, console: Path, memory_mib: int, limit_s: float) -> bool:
    command = [
        "linux.uml",
        f"mem={memory_mib}M",
        f"ubd0={work}/cow,{image.resolve()}",
        "root=/dev/ubda",
        "rw",
        "con=null",
        "con0=null,fd:1",
        f"uml_dir={work}/uml/",
        "umid=board",
        "systemd.show_status=0",
        "quiet",
        f"board.share={share.resolve()}",
    ]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(work)}
    memory_dir = _memory_file_dir()
    if memory_dir:
        environment["TMPDIR"] = memory_dir
    with console.open("wb") as output:
        kernel = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            kernel.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            return True
        finally:
            _end_group(kernel)
    return False


def _end_group(kernel: subprocess.Popen[bytes]) -> None:
    """Kills what is left of the kernel's own process group and reaps it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(kernel.pid, signal.SIGKILL)
    kernel.wait(timeout=30)
