"""Runs a command that dies with the demo, even when the demo is killed with SIGKILL.

    python -m slmguard.demo.child PARENT_PID COMMAND…

It asks the kernel for SIGTERM at the parent's death (PR_SET_PDEATHSIG, kept across exec) and becomes the command.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import IO

PR_SET_PDEATHSIG = 1  # linux/prctl.h


def spawn(command: Sequence[str], log: IO[bytes]) -> subprocess.Popen[bytes]:
    """Start `command` bound to this process, in a session of its own so that Ctrl-C reaches only the demo.

    The kernel sends the death signal when the *thread* that started it ends: call this from a thread that stays.
    """
    return subprocess.Popen(
        [sys.executable, "-m", "slmguard.demo.child", str(os.getpid()), *command],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """SIGTERM, and SIGKILL when that was not enough after `timeout_s`."""
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def become(parent_pid: int, command: Sequence[str]) -> None:
    """Never returns: replaces this process by `command`, or exits when the parent is already gone."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != parent_pid:
        sys.exit(1)
    os.execvp(command[0], list(command))  # noqa: S606 - no shell is wanted


if __name__ == "__main__":
    become(int(sys.argv[1]), sys.argv[2:])
