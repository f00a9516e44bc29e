from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import psutil
import pytest

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.core.model import MemoryReading
from slmguard.sources.process import ProcessSource
from slmguard.sources.process_finder import RootFinder, read_pid_file
from slmguard.sources.process_target import ProcessTarget
from slmguard.sources.processes import ProcessTable
from slmguard.sources.systemd_unit import UnitView, show_unit

from .trees import Clock, Tree

MIB = 1 << 20

# A parent with `anon` MiB of its own and a child with as much again; each line read is one step.
TREE_PROGRAM = textwrap.dedent("""
    import mmap, os, subprocess, sys
    anon = bytearray(int(sys.argv[2]) << 20)
    anon[::4096] = b"x" * len(anon[::4096])
    child = None
    if sys.argv[3] == "parent":
        child = subprocess.Popen([sys.executable, "-c", open(sys.argv[4]).read(), sys.argv[1], sys.argv[2], "child"],
                                 stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        child.stdout.readline()
    print("ready", flush=True)
    for line in sys.stdin:
        if line.startswith("shared"):
            shared = mmap.mmap(-1, 32 << 20)
            shared[:] = b"y" * len(shared)
        if line.startswith("end") and child:
            child.stdin.close()
            child.wait()
        print("done", flush=True)
""")


@contextmanager
def running_tree(tmp_path: Path, mark: str, mib: int = 40) -> Iterator[subprocess.Popen[str]]:
    program = tmp_path / "tree.py"
    program.write_text(TREE_PROGRAM)
    process = subprocess.Popen(
        [sys.executable, "-c", TREE_PROGRAM, mark, str(mib), "parent", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        line(process.stdout)
        try:
            yield process
        finally:
            if process.stdin is not None:
                process.stdin.close()
            process.wait(30)


def line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def step(process: subprocess.Popen[str], word: str) -> None:
    assert process.stdin is not None
    process.stdin.write(word + "\n")
    process.stdin.flush()
    assert line(process.stdout) == "done\n"


def reading_of(source: ProcessSource) -> MemoryReading:
    reading = source.read()
    assert reading is not None
    return reading


def test_a_real_tree_is_measured_with_its_children(tmp_path: Path, no_leaked_descriptors: None) -> None:
    clock = Clock()
    with running_tree(tmp_path, "slm-tree-a") as process:
        source = ProcessSource(ProcessTarget(pid=process.pid), budget_bytes=200 * MIB, max_bytes=250 * MIB, clock=clock)
        source.refresh()
        reading = reading_of(source)
        assert reading.source == "process"
        assert reading.process_count == 2
        assert 80 * MIB <= reading.anon_bytes < 160 * MIB
        assert reading.file_mapped_bytes == reading.rss_file_bytes + reading.shmem_bytes > 0
        assert reading.kernel_unreclaimable_bytes > 0
        assert (reading.high_bytes, reading.max_bytes) == (200 * MIB, 250 * MIB)
        assert reading.instance.startswith(f"{process.pid}@")
        assert reading.major_faults is not None
        step(process, "shared")
        grown = reading_of(source)
        assert grown.shmem_bytes >= 32 * MIB
        assert grown.anon_bytes - reading.anon_bytes < 8 * MIB
        step(process, "end")
        alone = reading_of(source)
        assert alone.process_count == 1
        assert alone.anon_bytes < reading.anon_bytes - 30 * MIB
        source.close()


def test_the_figures_are_those_of_psutil(tmp_path: Path) -> None:
    with running_tree(tmp_path, "slm-tree-b") as process:
        source = ProcessSource(ProcessTarget(pid=process.pid))
        source.refresh()
        reading = reading_of(source)
        parent = psutil.Process(process.pid)
        members = [parent, *parent.children(recursive=True)]
        by_psutil = sum(member.memory_info().rss - member.memory_info().shared for member in members)
        assert abs(reading.anon_bytes - by_psutil) < 4 * MIB
        source.close()


def test_the_end_of_the_process_is_none_and_a_new_one_is_a_new_instance(tmp_path: Path) -> None:
    pid_file, clock = tmp_path / "pid", Clock()
    source = ProcessSource(ProcessTarget(pid_file=pid_file), clock=clock)
    with running_tree(tmp_path, "slm-tree-c", 8) as process:
        pid_file.write_text(f"{process.pid}\n")
        source.refresh()
        first = reading_of(source).instance
        process.kill()
        process.wait(30)
        states = [source.read() is None, source.refresh_wanted]
        clock.now_s += 2
        states.append(source.refresh_wanted)
        source.refresh()
        assert source.read() is None
        assert any("there is no process" in note for note in source.degraded)
    assert states == [True, False, True]
    with running_tree(tmp_path, "slm-tree-c", 8) as process:
        pid_file.write_text(f"{process.pid}\n")
        assert source.main_pid == process.pid
        assert reading_of(source).instance != first
    source.close()


def test_a_zombie_is_no_process_any_more(tmp_path: Path) -> None:
    with running_tree(tmp_path, "slm-tree-z", 8) as process:
        source = ProcessSource(ProcessTarget(pid=process.pid))
        source.refresh()
        reading_of(source)
        os.kill(process.pid, signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert source.read() is None
        source.refresh()
        assert source.read() is None
        source.close()


def test_a_tree_is_found_by_its_command_line_as_one(tmp_path: Path) -> None:
    with running_tree(tmp_path, "slm-tree-by-argv", 8) as process:
        finder = RootFinder(ProcessTarget(match_argv=("slm-tree-by-argv", "sys.argv")), show_unit)
        assert finder.find().pid == process.pid
        assert finder.remarks == ()


def test_of_several_that_fit_the_oldest_is_taken_and_this_is_said(tmp_path: Path) -> None:
    with running_tree(tmp_path, "slm-tree-two", 4) as older, running_tree(tmp_path, "slm-tree-two", 4) as younger:
        source = ProcessSource(ProcessTarget(match_argv=("slm-tree-two",)))
        source.refresh()
        assert reading_of(source).instance.startswith(f"{older.pid}@")
        assert any("2 processes fit" in note and str(younger.pid) in note for note in source.degraded)
        source.close()


def test_the_guard_never_takes_itself_for_the_server() -> None:
    ours = " ".join(psutil.Process().cmdline())[:20]
    with pytest.raises(EnvironmentLacksError, match="no process is running"):
        RootFinder(ProcessTarget(match_argv=(ours, "slm-nobody-has-this")), show_unit).find()
    for parent in (psutil.Process(), *psutil.Process().parents()):
        command_line = " ".join(parent.cmdline())
        if command_line:
            try:
                found = RootFinder(ProcessTarget(match_argv=(command_line,)), show_unit).find()
            except EnvironmentLacksError:
                continue
            assert found.pid != parent.pid


def test_a_server_is_found_by_the_port_it_listens_on() -> None:
    program = (
        "import socket, sys; server = socket.create_server(('127.0.0.1', 0)); "
        "print(server.getsockname()[1], flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        port = int(line(process.stdout))
        assert RootFinder(ProcessTarget(port=port), show_unit).find().pid == process.pid
        process.communicate("", timeout=30)


def test_a_port_that_nobody_listens_on_is_a_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(EnvironmentLacksError, match=f"no process is running: listener on TCP port {port}"):
        RootFinder(ProcessTarget(port=port), show_unit).find()


def test_the_main_process_of_a_unit_is_found_through_systemd() -> None:
    def show(unit: str) -> UnitView:
        return UnitView(unit, "loaded", "active", control_group="/x", main_pid=os.getpid())

    assert RootFinder(ProcessTarget(unit="x.service"), show).find().pid == os.getpid()


def test_a_unit_without_a_main_process_is_a_sentence() -> None:
    def show(unit: str) -> UnitView:
        return UnitView(unit, "not-found", "inactive")

    source = ProcessSource(ProcessTarget(unit="x.service"), show=show)
    source.refresh()
    assert source.read() is None
    assert not source.available
    assert any("systemd knows no unit x.service" in note for note in source.degraded)


@pytest.mark.parametrize("text", ["", "abc\n", "-5\n", "0\n", "99999999999999999999999\n", "\x00"])
def test_a_pid_file_without_a_pid_is_a_sentence(tmp_path: Path, text: str) -> None:
    (tmp_path / "pid").write_text(text)
    with pytest.raises(EnvironmentLacksError, match="holds no process id"):
        read_pid_file(tmp_path / "pid")


def test_an_absent_pid_file_and_no_target_at_all_are_sentences(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentLacksError, match="cannot be read"):
        read_pid_file(tmp_path / "pid")
    with pytest.raises(UserError, match="no process to guard is named"):
        RootFinder(ProcessTarget(), show_unit).find()


def test_file_pages_of_processes_that_share_a_model_count_once(tree: Tree) -> None:
    table = ProcessTable(tree.proc)
    for pid in (50, 51):
        tree.process(pid, "Name:\tx\nRssAnon:\t10 kB\nRssFile:\t90000 kB\nVmSwap:\t3 kB\nVmPTE:\t2 kB\n")
    table.keep([50, 51, 52])
    assert table.pids == (50, 51)
    assert [figures.file_bytes for figures in table.read()] == [90000 * 1024] * 2
    table.close()


def test_the_exact_share_of_file_pages_is_used_when_asked_for(tmp_path: Path) -> None:
    with running_tree(tmp_path, "slm-tree-pss", 4) as process:
        source = ProcessSource(ProcessTarget(pid=process.pid), pss_interval_s=1.0)
        source.refresh()
        reading = reading_of(source)
        assert reading.file_mapped_bytes > 0
        assert reading.process_count == 2
        source.close()


def test_major_faults_only_grow_even_when_processes_end(tree: Tree) -> None:
    def stat(faults: int) -> str:
        return f"1 (x) S 1 1 1 0 -1 0 0 0 {faults} 0 " + " ".join(["0"] * 9 + ["777"] + ["0"] * 20) + "\n"

    table = ProcessTable(tree.proc, with_stat=True)
    tree.process(50, "RssAnon:\t1 kB\n", stat(5))
    tree.process(51, "RssAnon:\t1 kB\n", stat(7))
    table.keep([50, 51])
    assert table.read_major_faults() == 12
    table.keep([51])
    assert table.read_major_faults() == 12
    table.close()


def test_a_thousand_reads_keep_the_descriptors_constant(
    tmp_path: Path, open_descriptors: Callable[[], int], no_leaked_descriptors: None
) -> None:
    clock = Clock()
    source = ProcessSource(ProcessTarget(pid=os.getpid()), clock=clock)
    source.refresh()
    reading_of(source)
    held = open_descriptors()
    for turn in range(1000):
        clock.now_s += 0.1
        if turn % 100 == 0:
            source.refresh()
        reading_of(source)
    assert open_descriptors() == held
    source.close()
