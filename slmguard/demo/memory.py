"""Memory of the demo's server process, from /proc."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FIELD = re.compile(rb"^(RssAnon|RssFile|RssShmem|VmSwap):\s+(\d+) kB$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessMemory:
    """What one process holds, in bytes."""

    anon_bytes: int
    file_bytes: int
    shmem_bytes: int
    swap_bytes: int

    @property
    def unreclaimable_bytes(self) -> int:
        """What the kernel cannot take back by dropping page cache: this is what an OOM kill is about."""
        return self.anon_bytes + self.shmem_bytes + self.swap_bytes


def read_memory(pid: int, proc: Path = Path("/proc")) -> ProcessMemory | None:
    """The memory of process `pid`; None when it is gone (a zombie has no such lines either)."""
    try:
        text = (proc / str(pid) / "status").read_bytes()
    except OSError:
        return None
    found = {name: int(kilobytes) * 1024 for name, kilobytes in _FIELD.findall(text)}
    if b"RssAnon" not in found:
        return None
    return ProcessMemory(
        found[b"RssAnon"], found.get(b"RssFile", 0), found.get(b"RssShmem", 0), found.get(b"VmSwap", 0)
    )
