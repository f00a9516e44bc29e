"""The board as a scenario sees it: units, cgroup files, waiting and collecting, with a time limit on everything."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

SHARE = Path("/host")
UNIT_DIR = Path("/run/systemd/system")


class WaitedInVainError(Exception):
    """A condition did not come true in time; the message says which and what was seen last."""


@dataclass
class Machine:
    """Handles of the running guest; `parameters` are those of the scenario's step."""

    parameters: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """One line for the console and the journal, with the guest's uptime."""
        line = f"[{time.monotonic():.1f}] {text}"
        self.notes.append(line)
        print(f"board: {line}", flush=True)

    def run(self, *command: str, limit_s: float = 60, check: bool = False) -> subprocess.CompletedProcess[str]:
        """Runs a program of the guest to its end; its output is captured."""
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        if check and done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return done

    def systemctl(self, *words: str, limit_s: float = 90, check: bool = True) -> str:
        """`systemctl` with these words; RuntimeError when it fails and `check` is set."""
        return self.run("systemctl", *words, limit_s=limit_s, check=check).stdout

    def show(self, unit: str, *names: str) -> dict[str, str]:
        """Properties of a unit."""
        text = self.systemctl("show", unit, f"--property={','.join(names)}")
        return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)

    def write(self, path: str | Path, text: str, mode: int = 0o644) -> Path:
        """Writes a file of the guest, with its folders."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
        target.chmod(mode)
        return target

    def drop_in(self, unit: str, text: str) -> None:
        """Gives `unit` a drop-in of its own for this boot."""
        self.write(UNIT_DIR / f"{unit}.d" / "board.conf", text)
        self.systemctl("daemon-reload")

    def cgroup(self, unit: str) -> Path:
        """The unit's cgroup folder; it may not exist while the unit is stopped."""
        return Path("/sys/fs/cgroup" + self.show(unit, "ControlGroup").get("ControlGroup", "/nowhere"))

    def wait_until(self, condition: Callable[[], T | None], what: str, limit_s: float, interval_s: float = 0.5) -> T:
        """The first true value of `condition`; WaitedInVainError after `limit_s`."""
        ends = time.monotonic() + limit_s
        last: object = None
        while time.monotonic() < ends:
            try:
                value = condition()
            except (OSError, ValueError) as error:
                last = error
            else:
                if value:
                    return value
                last = value
            time.sleep(interval_s)
        raise WaitedInVainError(f"waited {limit_s} s in vain for {what}; last seen: {last!r}")

    def free_memory(self) -> None:
        """Drops the clean page cache of the whole board: an earlier scenario must not warm the next one's weights."""
        os.sync()
        Path("/proc/sys/vm/drop_caches").write_text("3\n")

    def collect(self, folder: Path = SHARE) -> None:
        """Journal and kernel log of this boot, written where the host can read them."""
        for name, command in {
            "journal.txt": ("journalctl", "-b", "--no-pager", "-o", "short-monotonic"),
            "dmesg.txt": ("dmesg",),
        }.items():
            with (folder / name).open("w") as output:
                subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, timeout=60, check=False)


def keyed(path: Path) -> dict[str, int]:
    """A flat keyed cgroup file (`memory.stat`, `memory.events`); empty when the cgroup is gone."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    return {key: int(value) for key, value in (line.split() for line in text.splitlines())}


def figure(path: Path) -> int | None:
    """A single-value cgroup file; None for `max` and for a cgroup that is gone."""
    try:
        text = path.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdigit() else None
