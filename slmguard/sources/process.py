"""Memory of a process tree against a configured budget: for hosts without a memory controller, containers, laptops.

Needs no root. Descendants of the service's process count too.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import psutil

from slmguard.core.model import MemoryReading
from slmguard.sources.files import KeptFile, parse_colon_kb

MAX_PROCESSES = 64
LIST_AGE_S = 1.0  # walking all processes for descendants takes milliseconds


class ProcessSource:
    """One process and its descendants (see MemorySource), found by pid, pid file or command line."""

    name = "process"

    def __init__(
        self,
        *,
        budget_bytes: int | None,
        budget_max_bytes: int | None = None,
        pid: int | None = None,
        pid_file: Path | None = None,
        match_argv: tuple[str, ...] = (),
        proc_root: Path = Path("/proc"),
        reasons: tuple[str, ...] = (),
    ) -> None:
        self._budget_bytes = budget_bytes
        self._budget_max_bytes = budget_max_bytes
        self._pid = pid
        self._pid_file = pid_file
        self._match_argv = match_argv
        self._proc = proc_root
        self._reasons = reasons
        self._root: psutil.Process | None = None
        self._files: dict[int, KeptFile] = {}
        self._listed_at_s = 0.0
        self._problem: str | None = "the service's process has not been looked up yet"

    @property
    def refresh_wanted(self) -> bool:
        """True while no process is known."""
        return self._root is None

    @property
    def degraded(self) -> tuple[str, ...]:
        """What cannot be seen, in words."""
        always = "source process: throttling and OOM kills cannot be seen, only the memory of the process tree"
        problem = () if self._problem is None else (self._problem,)
        return (*self._reasons, always, *problem)

    @property
    def main_pid(self) -> int | None:
        """The service's process as of now, None while there is none."""
        self._find()
        return self._root.pid if self._root is not None else None

    def refresh(self) -> None:
        """Find the process, and list its descendants anew. Never raises."""
        self._find()
        self._list()

    def read(self) -> MemoryReading | None:
        """The figures of this instant; None when the process is gone."""
        root = self._root
        if root is None or not root.is_running() or self._is_zombie(root):
            self._forget()
            if self._pid_file is not None:
                self._find()  # cheap: one small file; a supervisor may have started the next one already
            root = self._root
            if root is None:
                return None
        self._list()
        anon = swap = shmem = rss_file = 0
        for file in self._files.values():
            data = file.read()
            if data is None:
                continue
            status = parse_colon_kb(data)
            anon += status.get(b"RssAnon", 0)
            swap += status.get(b"VmSwap", 0)
            shmem = max(shmem, status.get(b"RssShmem", 0))
            rss_file = max(rss_file, status.get(b"RssFile", 0))
        return MemoryReading(
            source=self.name,
            instance=f"process:{root.pid}:{root.create_time():.2f}",
            current_bytes=anon + shmem + rss_file,
            anon_bytes=anon,
            swap_bytes=swap,
            shmem_bytes=shmem,
            rss_file_bytes=rss_file,
            high_bytes=self._budget_bytes if self._budget_bytes is not None else self._budget_max_bytes,
            max_bytes=self._budget_max_bytes,
            process_count=len(self._files),
        )

    def close(self) -> None:
        """Give back all descriptors."""
        self._forget()

    def _list(self) -> None:
        root, now_s = self._root, time.monotonic()
        if root is None or (self._files and now_s - self._listed_at_s < LIST_AGE_S):
            return
        self._listed_at_s = now_s
        try:
            pids = [root.pid, *(child.pid for child in root.children(recursive=True))][:MAX_PROCESSES]
        except psutil.Error:
            pids = [root.pid]
        for pid in [pid for pid in self._files if pid not in pids]:
            self._files.pop(pid).close()
        for pid in pids:
            if pid not in self._files:
                self._files[pid] = KeptFile(self._proc / str(pid) / "status")

    def _find(self) -> None:
        for pid in self._candidates():
            if self._root is not None and self._root.pid == pid and self._root.is_running():
                return
            try:
                found = psutil.Process(pid)
                if self._is_zombie(found):
                    continue
            except psutil.Error:
                continue
            self._forget()
            self._root = found
            self._problem = None
            return

    def _candidates(self) -> Iterable[int]:
        if self._pid_file is not None:
            try:
                text = self._pid_file.read_text(encoding="ascii").strip()
            except (OSError, UnicodeDecodeError):
                self._problem = f"{self._pid_file} cannot be read: is the service running?"
                return
            if text.isdigit() and int(text) > 1:
                yield int(text)
            else:
                self._problem = f"{self._pid_file} holds no pid"
        elif self._pid is not None:
            self._problem = f"there is no process {self._pid}"
            yield self._pid
        elif self._match_argv:
            self._problem = f"no process has {' and '.join(self._match_argv)} in its command line"
            for process in psutil.process_iter(["pid", "cmdline"]):
                line = process.info["cmdline"] or []
                if process.pid != os.getpid() and all(any(part in word for word in line) for part in self._match_argv):
                    yield process.pid
        else:
            self._problem = "[memory] names no process: set pid_file, pid or match_argv"

    @staticmethod
    def _is_zombie(process: psutil.Process) -> bool:
        try:
            return process.status() == psutil.STATUS_ZOMBIE
        except psutil.Error:
            return True

    def _forget(self) -> None:
        for file in self._files.values():
            file.close()
        self._files = {}
        self._root = None
