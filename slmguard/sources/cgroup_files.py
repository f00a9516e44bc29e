"""The files of one cgroup directory, all held open and all of the same life of that cgroup."""

from __future__ import annotations

import os
from pathlib import Path

from slmguard.sources.kept_file import KeptFile, Pread
from slmguard.sources.kernel_text import parse_limit, parse_pids

MAX_SUB_CGROUPS = 64


class CgroupGoneError(Exception):
    """The cgroup was removed: every read of its old descriptors gives ENODEV from now on. Data, not a fault."""


class CgroupFiles:
    """The directory is opened first and its files relative to it: none can belong to a later cgroup of the same path.

    Raises OSError when the directory is not there.
    """

    def __init__(self, path: Path, names: tuple[str, ...], *, pread: Pread = os.pread) -> None:
        self.path = path
        self._dir_fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        status = os.fstat(self._dir_fd)
        self._identity = (status.st_dev, status.st_ino)
        self._files = {
            name: KeptFile(name, dir_fd=self._dir_fd, in_pieces=name == "cgroup.procs", pread=pread) for name in names
        }

    @property
    def inode(self) -> int:
        """The number of the directory: a new one is a new cgroup."""
        return self._identity[1]

    def current(self) -> bool:
        """Whether the path still names this very cgroup. One stat, no open."""
        try:
            status = os.stat(self.path)  # noqa: PTH116 - at every tick: Path.stat() costs three times as much
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._identity

    def read(self, name: str) -> bytes | None:
        """A file's content, None when this kernel or this cgroup does not have it; raises CgroupGoneError."""
        file = self._files[name]
        data = file.read()
        if data is None and file.gone:
            raise CgroupGoneError(self.path)
        return data

    def why_unreadable(self, name: str) -> str | None:
        """The system's word on a file that could not be read; None when it could."""
        problem = self._files[name].problem
        return None if problem is None else str(problem.strerror)

    def pids(self) -> list[int]:
        """Processes of the cgroup and of its sub-cgroups (delegated ones, containers); raises CgroupGoneError."""
        pids = parse_pids(self.read("cgroup.procs") or b"")
        # kernfs counts sub-directories in the link count, so a cgroup without any costs no directory walk.
        if os.fstat(self._dir_fd).st_nlink != 2:
            pids.extend(_pids_below(self.path))
        return pids

    def close(self) -> None:
        """Give back all descriptors."""
        for file in self._files.values():
            file.close()
        if self._dir_fd >= 0:
            os.close(self._dir_fd)
            self._dir_fd = -1


def _pids_below(path: Path) -> list[int]:
    """Processes of all sub-cgroups, of which at most 64 are visited; one that vanishes meanwhile has none."""
    pids: list[int] = []
    waiting, visited = [path], 0
    while waiting and visited < MAX_SUB_CGROUPS:
        parent = waiting.pop()
        for child in _sub_directories(parent):
            visited += 1
            waiting.append(child)
            try:
                with (child / "cgroup.procs").open("rb") as file:
                    pids.extend(parse_pids(file.read(1 << 20)))
            except OSError:
                continue  # removed between the listing and now, or a threaded cgroup, which lists no processes
    return pids


def _sub_directories(path: Path) -> list[Path]:
    try:
        with os.scandir(path) as entries:
            return [path / entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


class LimitChain:
    """memory.high and memory.max of a cgroup's ancestors, whose limits bind it just as its own do."""

    def __init__(self, root: Path, path: Path, *, pread: Pread = os.pread) -> None:
        self._root = root
        self._ancestors: list[CgroupFiles] = []
        # The root itself is looked at too: a container's root has limits, a host's has no such files.
        for parent in path.parents:
            if not parent.is_relative_to(root):
                break
            try:
                self._ancestors.append(CgroupFiles(parent, ("memory.high", "memory.max"), pread=pread))
            except OSError:
                continue

    def smallest(self, name: str) -> tuple[int | None, str | None]:
        """The smallest limit above the cgroup and the ancestor that has it; raises CgroupGoneError."""
        smallest, owner = None, None
        for ancestor in self._ancestors:
            limit = parse_limit(ancestor.read(name))
            if limit is not None and (smallest is None or limit < smallest):
                smallest, owner = limit, ancestor.path.name if ancestor.path != self._root else str(self._root)
        return smallest, owner

    def close(self) -> None:
        """Give back all descriptors."""
        for ancestor in self._ancestors:
            ancestor.close()
