"""Real OOM kills on this machine's kernel, each in a cgroup of 16 MiB, read from the real /dev/kmsg."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from slmguard.kernel_log.cursor import FileCursorStore
from slmguard.kernel_log.event import OomEvent
from slmguard.kernel_log.parser import OomParser
from slmguard.kernel_log.reader import KmsgReader, open_kmsg, read_boot_id

ROOTS = ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (Path("/sys/fs/cgroup"), "memory.max"))
HOG = """
import ctypes, os, sys
with open(sys.argv[1] + "/cgroup.procs", "w") as file:
    file.write(str(os.getpid()))
ctypes.CDLL(None).prctl(15, bytes.fromhex(sys.argv[2]), 0, 0, 0)  # PR_SET_NAME
hoard = []
while True:
    hoard.append(bytearray(b"x" * (1 << 20)))
"""
LONGEST_WAIT_S = 120.0


@pytest.fixture
def cgroup() -> Iterator[Path]:
    root = next(((root, limit) for root, limit in ROOTS if (root / "cgroup.procs").exists()), None)
    if root is None or os.geteuid() != 0:
        pytest.skip("THIS MACHINE GIVES US NO MEMORY CGROUP (root and a mounted memory controller are needed)")
    path = root[0] / f"slmguard-test-{uuid.uuid4().hex[:8]}"
    try:
        path.mkdir()
        (path / root[1]).write_text(str(16 << 20))
        os.close(open_kmsg("/dev/kmsg"))
    except OSError as error:
        if path.exists():
            path.rmdir()
        pytest.skip(f"THIS MACHINE LETS US MAKE NO REAL OOM KILL: {error}")
    yield path
    path.rmdir()


def hog(cgroup: Path, name: bytes) -> int:
    """Runs a process that is killed by its cgroup's limit; returns its pid."""
    with subprocess.Popen([sys.executable, "-c", HOG, str(cgroup), name.hex()]) as process:
        assert process.wait(LONGEST_WAIT_S) == -9
        return process.pid


def events_of(reader: KmsgReader, pid: int) -> list[OomEvent]:
    """Follows the log until the kill of `pid` is there; other kills on this machine are not ours."""
    parser = OomParser(hold_records=0)
    found: list[OomEvent] = []
    deadline_s = time.monotonic() + LONGEST_WAIT_S
    while not found and time.monotonic() < deadline_s:
        for record in reader.read(time.monotonic()):
            found += [event for event in parser.feed(record) if event.victim_pid == pid]
        if not found:
            select.select([reader.fileno()], [], [], 1.0)
    return found


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        (b"llama-server", "llama-server"),
        (b"a) total-vm:1kB", "a) total-vm:1kB"),
        (b",pid=1,uid=0", ",pid=1,uid=0"),
        (b"VLLM::EngineCor", "VLLM::EngineCor"),
        (b"\x1b[31m\nred\\x41", "\x1b[31m\nred\\x41"),
        (b"tail_\xf0\x9f\x98\x80\xf0\x9f\x98\x80\xf0\x9f", "tail_😀😀\ufffd"),
    ],
    ids=["plain", "brackets", "commas", "colons", "control", "cut utf-8"],
)
def test_a_real_kill_is_read_with_its_name_and_cgroup(cgroup: Path, name: bytes, shown: str, tmp_path: Path) -> None:
    reader = KmsgReader(FileCursorStore(tmp_path / "cursor"), boot_id=read_boot_id())
    reader.read(0.0)
    try:
        pid = hog(cgroup, name)
        (event,) = events_of(reader, pid)
        path = f"/{cgroup.name}"
        assert (event.kind, event.victim_comm, event.task_memcg, event.oom_memcg) == ("memcg", shown, path, path)
        assert (event.constraint, event.uid, event.oom_score_adj) == (
            "CONSTRAINT_MEMCG",
            0,
            int(Path("/proc/self/oom_score_adj").read_text()),
        )
        assert (event.anon_rss_kb or 0) > 4096
        assert event.invoker_comm == shown
        assert event.source == "kmsg"
    finally:
        reader.close()


def test_a_real_kill_while_nobody_reads_is_told_once_at_the_next_start(cgroup: Path, tmp_path: Path) -> None:
    store = FileCursorStore(tmp_path / "cursor")
    first = KmsgReader(store, boot_id=read_boot_id(), from_oldest=True)
    while first.read(0.0):
        pass
    first.commit()
    first.close()
    pid = hog(cgroup, b"unwatched")
    second = KmsgReader(store, boot_id=read_boot_id())
    assert len(events_of(second, pid)) == 1
    second.commit()
    second.close()
    third = KmsgReader(store, boot_id=read_boot_id())
    parser = OomParser(hold_records=0)
    again = [event for record in third.read(0.0, 100_000) for event in parser.feed(record)]
    third.close()
    assert pid not in [event.victim_pid for event in again]
