"""Trees of kernel files in a temporary folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

STAT = (
    "anon 209715200\nfile 157286400\nkernel 20971520\nsock 4096\nshmem 10485760\nfile_mapped 125829120\n"
    "inactive_file 31457280\nslab_reclaimable 8388608\nworkingset_refault_file 42\n"
    "pgscan 1000\npgsteal 700\npgmajfault 17\n"
)
EVENTS = "low 0\nhigh 12\nmax 3\noom 1\noom_kill 1\noom_group_kill 0\n"
PRESSURE = "some avg10=0.00 avg60=0.00 avg300=0.00 total=93052\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=36906\n"
FILES = {
    "memory.current": "394907648\n",
    "memory.stat": STAT,
    "memory.high": "419430400\n",
    "memory.max": "471859200\n",
    "memory.events": EVENTS,
    "memory.swap.current": "1048576\n",
    "memory.pressure": PRESSURE,
    "cgroup.procs": "",
}


@dataclass
class Clock:
    """A clock that tests move."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Tree:
    """A cgroup root and a /proc of our own making."""

    root: Path
    cgroup: Path = field(init=False)
    proc: Path = field(init=False)

    def __post_init__(self) -> None:
        self.cgroup = self.root / "cgroup"
        self.proc = self.root / "proc"
        self.cgroup.mkdir()
        self.proc.mkdir()
        (self.cgroup / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")

    def unit(self, path: str = "system.slice/llama-server.service", files: Mapping[str, str] = FILES) -> Path:
        directory = self.cgroup / path
        directory.mkdir(parents=True)
        for name, text in files.items():
            (directory / name).write_text(text)
        return directory

    def process(self, pid: int, status: str, stat: str | None = None) -> None:
        directory = self.proc / str(pid)
        directory.mkdir(exist_ok=True)
        (directory / "status").write_text(status)
        if stat is not None:
            (directory / "stat").write_text(stat)
