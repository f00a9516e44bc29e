"""The behaviour of this very kernel that the sources rely on: a cgroup of our own is made, removed and made again."""

from __future__ import annotations

import os
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from slmguard.sources.cgroup_files import CgroupFiles, CgroupGoneError
from slmguard.sources.pressure import PressureTrigger, parse_pressure

MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))


@pytest.fixture
def cgroup() -> Iterator[Path]:
    root = next((mount for mount in MOUNTS if (mount / "cgroup.controllers").exists()), None)
    if root is None or not os.access(root, os.W_OK):
        pytest.skip("no cgroup v2 hierarchy that this user may add to")
    path = root / f"slmguard-test-{os.getpid()}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"a cgroup cannot be made here: {error}")
    yield path
    if path.exists():
        path.rmdir()


def test_a_removed_cgroup_is_gone_and_the_same_path_again_is_another(cgroup: Path) -> None:
    files = CgroupFiles(cgroup, ("cgroup.procs", "cgroup.stat"))
    assert files.pids() == []
    assert files.current()
    cgroup.rmdir()
    with pytest.raises(CgroupGoneError):
        files.read("cgroup.stat")
    assert not files.current()
    cgroup.mkdir()
    again = CgroupFiles(cgroup, ("cgroup.procs",))
    assert not files.current()
    assert again.inode != files.inode
    files.close()
    again.close()


def test_processes_of_the_cgroup_and_of_one_below_it_are_listed(cgroup: Path) -> None:
    inner = cgroup / "inner"
    inner.mkdir()
    files = CgroupFiles(cgroup, ("cgroup.procs",))
    with (
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as outside,
        subprocess.Popen(["cat"], stdin=subprocess.PIPE) as below,
    ):
        (cgroup / "cgroup.procs").write_text(str(outside.pid))
        (inner / "cgroup.procs").write_text(str(below.pid))
        assert sorted(files.pids()) == sorted([outside.pid, below.pid])
        for process in (outside, below):
            process.communicate(timeout=30)
    inner.rmdir()
    assert files.pids() == []
    files.close()


def test_the_trigger_of_a_removed_cgroup_is_told_dead(cgroup: Path) -> None:
    if not (cgroup / "memory.pressure").exists():
        pytest.skip("this kernel has no PSI")
    assert parse_pressure((cgroup / "memory.pressure").read_bytes()).full_us is not None
    trigger = PressureTrigger(cgroup / "memory.pressure")
    assert trigger.problem is None
    descriptor = trigger.fileno()
    assert descriptor is not None
    with select.epoll() as loop:
        loop.register(descriptor, select.EPOLLPRI)
        assert loop.poll(0) == []
        cgroup.rmdir()
        assert any(events & select.EPOLLERR for _, events in loop.poll(10))
    trigger.close()
