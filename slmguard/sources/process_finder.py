"""Finds the process to guard among those that run."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.sources.kernel_text import printable
from slmguard.sources.process_target import ProcessTarget
from slmguard.sources.systemd_unit import UnitView


class RootFinder:
    """Finds the root of the guarded process tree; `remarks` of the last search are for people."""

    def __init__(self, target: ProcessTarget, show: Callable[[str], UnitView]) -> None:
        self._target = target
        self._show = show
        self.remarks: tuple[str, ...] = ()

    def find(self) -> psutil.Process:
        """The process; raises UserError or EnvironmentLacksError with what was looked for and not found."""
        self.remarks = ()
        target = self._target
        if target.pid is not None:
            return _process(target.pid, "the configured pid")
        if target.pid_file is not None:
            return _process(read_pid_file(target.pid_file), f"pid file {target.pid_file}")
        if target.match_argv:
            return self._only(_by_command_line(target.match_argv), f"command line with {_quoted(target.match_argv)}")
        if target.port is not None:
            return self._only(_by_port(target.port), f"listener on TCP port {target.port}")
        if target.unit is not None:
            return self._by_unit(target.unit)
        raise UserError("no process to guard is named: set a unit, pid, pid file, command line or port")

    def _by_unit(self, unit: str) -> psutil.Process:
        view = self._show(unit)
        if view.problem is not None and view.main_pid is None:
            raise EnvironmentLacksError(view.problem)
        if view.main_pid is None:
            raise EnvironmentLacksError(
                f"systemd knows no main process of {view.name}: set a pid file, command line or port"
            )
        return _process(view.main_pid, f"main process of {view.name}")

    def _only(self, found: list[psutil.Process], what: str) -> psutil.Process:
        """The oldest of several processes that are not each other's descendants."""
        roots = _topmost(found)
        if not roots:
            raise EnvironmentLacksError(f"no process is running: {what}")
        if len(roots) > 1:
            pids = ", ".join(str(process.pid) for process in roots[:8])
            self.remarks = (
                f"{len(roots)} processes fit ({what}; pids {pids}): only {roots[0].pid}, the oldest, is guarded",
            )
        return roots[0]


def read_pid_file(path: Path) -> int:
    """The pid in a pid file; raises EnvironmentLacksError when there is none to read."""
    try:
        with path.open("rb") as file:
            words = file.read(64).split()
    except OSError as error:
        raise EnvironmentLacksError(f"pid file {path} cannot be read: {error.strerror}") from error
    if not words or not words[0].isdigit() or not 0 < int(words[0]) < 2**31:
        raise EnvironmentLacksError(f"pid file {path} holds no process id")
    return int(words[0])


def _process(pid: int, what: str) -> psutil.Process:
    try:
        return psutil.Process(pid)
    except (psutil.Error, ValueError, OverflowError) as error:
        raise EnvironmentLacksError(f"there is no process {pid} ({what})") from error


def _by_command_line(texts: tuple[str, ...]) -> list[psutil.Process]:
    """Processes whose command line has all the texts.

    Never slmguard itself nor what started it: its own arguments name the server too.
    """
    ours = _own_line()
    found = []
    for process in psutil.process_iter():
        if process.pid in ours:
            continue
        try:
            command_line = " ".join(process.cmdline())
        except psutil.Error:
            continue  # ended meanwhile, or not ours to look at
        if all(text in command_line for text in texts):
            found.append(process)
    return found


def _own_line() -> frozenset[int]:
    own = psutil.Process(os.getpid())
    try:
        return frozenset({own.pid, *(parent.pid for parent in own.parents())})
    except psutil.Error:
        return frozenset({own.pid})


def _by_port(port: int) -> list[psutil.Process]:
    """Processes that listen on a TCP port; those of other users are visible to root only."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError) as error:
        raise EnvironmentLacksError(f"listening sockets cannot be listed here: {printable(str(error))}") from error
    listening = [
        connection
        for connection in connections
        if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr[1] == port
    ]
    pids = {connection.pid for connection in listening if connection.pid is not None}
    if listening and not pids:
        raise EnvironmentLacksError(
            f"the listener on TCP port {port} belongs to another user: run as root, or name its pid"
        )
    return [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]


def _topmost(found: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those without an ancestor among the others, oldest first."""
    by_pid = {process.pid: process for process in found}
    roots = [process for process in by_pid.values() if by_pid.keys().isdisjoint(_ancestors(process))]
    return sorted(roots, key=_age_rank)


def _ancestors(process: psutil.Process) -> list[int]:
    try:
        return [parent.pid for parent in process.parents()]
    except psutil.Error:
        return []


def _age_rank(process: psutil.Process) -> tuple[float, int]:
    """Oldest first; one that has just ended comes last."""
    try:
        return process.create_time(), process.pid
    except psutil.Error:
        return float("inf"), process.pid


def _quoted(texts: tuple[str, ...]) -> str:
    return " and ".join(repr(printable(text, 60)) for text in texts)
