"""Memory that drivers hold for the service outside of its cgroup, where the board tells.

On Jetson Orin CUDA memory (nvmap) and on many boards dma-heap buffers are charged to no cgroup. Each parser gives what
its file states and nothing derived; a probe that cannot read its file gives None. Buffers of shmem-backed drivers
(RKNPU with IOMMU, panfrost, panthor, v3d: exporter `drm`) are charged to the cgroup already and are left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

NVMAP_CLIENTS = Path("kernel/debug/nvmap/iovmm/clients")
DMA_BUF_INFO = Path("kernel/debug/dma_buf/bufinfo")
# Exporters whose pages no cgroup is charged for (drivers/dma-buf/heaps; the CMA heap is named after its region).
UNCHARGED_EXPORTERS = frozenset({"system", "system-uncached", "linux,cma", "reserved", "cma", "rk-dma-heap-cma"})
_MAX_FILE_BYTES = 1 << 20
_UNIT_BYTES = {"K": 1024, "M": 1024**2, "G": 1024**3}


class DriverProbe(Protocol):
    """Driver memory of some processes that no cgroup is charged for."""

    def read(self, pids: Sequence[int]) -> int | None:
        """Bytes, or None when this board does not tell."""
        ...


@dataclass(frozen=True, slots=True)
class NvmapClients:
    """nvmap's clients: bytes by pid, and its own total, in which shared handles are counted once."""

    bytes_by_pid: dict[int, int]
    total_bytes: int | None


@dataclass(frozen=True, slots=True)
class DmaBuf:
    """One exported buffer. `inode` is None on kernels that do not print it."""

    size_bytes: int
    exporter: str
    inode: int | None
    name: str


def parse_nvmap_clients(text: str) -> NvmapClients:
    """The table of nvmap/iovmm/clients. Rows are read from the right, for process names may hold blanks.

    SIZE is the last column; older releases have PSS before it. Rows that do not fit are left out.
    """
    rows = text.splitlines()
    size_columns = 2 if rows and "PSS" in rows[0].split() else 1
    by_pid: dict[int, int] = {}
    total: int | None = None
    for row in rows[1:]:
        words = row.split()
        size = _size(words[-1]) if words else None
        if size is None:
            continue
        if words[0] == "total" and len(words) == size_columns + 1:
            total = size
        elif len(words) >= size_columns + 3 and _is_count(words[-1 - size_columns]):
            pid = int(words[-1 - size_columns])
            by_pid[pid] = by_pid.get(pid, 0) + size
    return NvmapClients(by_pid, total)


def parse_dma_buf_info(text: str) -> list[DmaBuf]:
    """The objects of dma_buf/bufinfo; sizes are decimal in spite of their leading zeros.

    The header names the columns: `ino` and `name` came in later kernels. Fence and device rows are skipped.
    """
    columns: list[str] = []
    buffers: list[DmaBuf] = []
    for row in text.splitlines():
        words = row.split()
        if "exp_name" in words:
            columns = words
        elif columns and len(words) >= columns.index("exp_name") + 1 and row[:1].isdigit() and _is_count(words[0]):
            buffers.append(_dma_buf(columns, words))
    return buffers


def _dma_buf(columns: list[str], words: list[str]) -> DmaBuf:
    fields = dict(zip(columns, words, strict=False))
    inode = fields.get("ino", "")
    name = " ".join(words[columns.index("name") :]) if "name" in columns else ""
    return DmaBuf(
        size_bytes=int(words[0]),
        exporter=fields["exp_name"],
        inode=int(inode) if _is_count(inode) else None,
        name="" if name == "<none>" else name,
    )


def _is_count(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20


def _size(word: str) -> int | None:
    """`118372K` in bytes."""
    unit = _UNIT_BYTES.get(word[-1:])
    number = word[:-1] if unit else word
    return int(number) * (unit or 1) if _is_count(number) else None


class NvmapProbe:
    """CUDA memory of processes on a Jetson with nvmap. On Thor the table is all 0K: then this tells nothing (None)."""

    def __init__(self, sys_root: Path = Path("/sys")) -> None:
        self._path = sys_root / NVMAP_CLIENTS

    def read(self, pids: Sequence[int]) -> int | None:
        """Bytes of these processes, never more than nvmap's own total."""
        text = _read(self._path)
        if text is None:
            return None
        clients = parse_nvmap_clients(text)
        if not any(clients.bytes_by_pid.values()):
            return None
        of_service = sum(clients.bytes_by_pid.get(pid, 0) for pid in pids)
        return of_service if clients.total_bytes is None else min(of_service, clients.total_bytes)


class DmaHeapProbe:
    """Buffers from dma-heaps and CMA on the whole board: the table names no process, so `pids` cannot narrow it.

    Right only where the guarded service is the one user of the heaps; not part of `find_driver_probe` therefore.
    """

    def __init__(self, sys_root: Path = Path("/sys")) -> None:
        self._path = sys_root / DMA_BUF_INFO

    def read(self, pids: Sequence[int]) -> int | None:  # noqa: ARG002 - the table has no pids
        """Bytes of all buffers whose exporter no cgroup is charged for; each inode counts once."""
        text = _read(self._path)
        if text is None:
            return None
        seen: set[int] = set()
        total = 0
        for buffer in parse_dma_buf_info(text):
            if buffer.exporter not in UNCHARGED_EXPORTERS or buffer.inode in seen:
                continue
            if buffer.inode is not None:
                seen.add(buffer.inode)
            total += buffer.size_bytes
        return total


def find_driver_probe(sys_root: Path = Path("/sys")) -> DriverProbe | None:
    """The probe that can tell the service's own share on this board, or None: then headroom is the only sign."""
    return NvmapProbe(sys_root) if _read(sys_root / NVMAP_CLIENTS) is not None else None


def _read(path: Path) -> str | None:
    """A debugfs file, root's alone as a rule; None when it is absent, locked down or not permitted."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_FILE_BYTES).decode("utf-8", "replace")
    except OSError:
        return None
