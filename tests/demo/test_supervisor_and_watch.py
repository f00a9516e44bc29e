from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from slmguard.demo.memory import ProcessMemory, read_memory
from slmguard.demo.settings import DemoSettings
from slmguard.demo.story import Story
from slmguard.demo.supervisor import GIVE_UP_AFTER, Exit, Supervisor
from slmguard.demo.watch import Watch

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]


def until(true: Callable[[], object], limit_s: float = 20.0) -> None:
    deadline_s = time.monotonic() + limit_s
    while not true():
        assert time.monotonic() < deadline_s, "it did not happen in time"
        time.sleep(0.01)


def test_a_server_that_was_killed_comes_back_and_is_counted(tmp_path: Path) -> None:
    ended = threading.Event()
    supervisor = Supervisor(SLEEPER, tmp_path / "pid", tmp_path / "log", on_exit=lambda _: ended.set())
    supervisor.start()
    try:
        until(lambda: supervisor.pid and (tmp_path / "pid").exists())
        first = supervisor.pid
        assert supervisor.kill_at_limit()
        assert ended.wait(20)
        until(lambda: supervisor.pid not in {None, first})
        until(lambda: int((tmp_path / "pid").read_text()) == supervisor.pid)
        assert (supervisor.restarts, supervisor.kills) == (1, 1)
    finally:
        supervisor.stop()
    assert supervisor.pid is None


def test_a_server_that_never_lives_is_given_up_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no such model\\x1b'); raise SystemExit(1)"]
    supervisor = Supervisor(command, tmp_path / "pid", tmp_path / "log")
    supervisor.start()
    until(lambda: supervisor.gave_up, 60)
    assert supervisor.restarts == GIVE_UP_AFTER - 1
    assert supervisor.last_words() == "no such model"


def test_children_die_with_the_demo_even_when_it_is_killed(tmp_path: Path) -> None:
    script = (
        "import sys, time; from slmguard.demo import child\n"
        f"process = child.spawn({SLEEPER!r}, open({str(tmp_path / 'log')!r}, 'wb'))\n"
        "while b'child' in open(f'/proc/{process.pid}/cmdline', 'rb').read(): time.sleep(0.01)\n"
        "print(process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        demo.kill()
    until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())


def test_memory_of_a_process_is_read_and_a_gone_one_is_none(tmp_path: Path) -> None:
    mine = read_memory(os.getpid())
    assert mine is not None
    assert mine.anon_bytes > 1 << 20
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text("Name:\tx\nState:\tZ (zombie)\n")
    assert read_memory(7, tmp_path) is None
    assert read_memory(8, tmp_path) is None


class FakeSupervisor:
    def __init__(self) -> None:
        self.pid: int | None = 1
        self.killed = 0

    def kill_at_limit(self) -> bool:
        self.killed += 1
        return self.killed == 1


def look(monkeypatch: pytest.MonkeyPatch, story: Story, supervisor: FakeSupervisor, *readings: int | None) -> None:
    watch = Watch(story, supervisor)  # type: ignore[arg-type]
    for anon in readings:
        memory = None if anon is None else ProcessMemory(anon, 5, 0, 0)
        monkeypatch.setattr("slmguard.demo.watch.read_memory", lambda pid, memory=memory: memory)
        watch.look(keep=True)


def story_of(budget: int, limit: int) -> Story:
    return Story(DemoSettings(Path("m.gguf"), budget_bytes=budget, budget_max_bytes=limit), time.monotonic)


def test_the_server_is_killed_above_the_limit_and_never_below(monkeypatch: pytest.MonkeyPatch) -> None:
    story, supervisor = story_of(100, 120), FakeSupervisor()
    look(monkeypatch, story, supervisor, 80, 120, None)
    assert supervisor.killed == 0
    look(monkeypatch, story, supervisor, 121, 130)
    kills = [event for event in story.events() if event.kind == "kill"]
    assert len(kills) == 1
    assert "simulated OOM kill" in kills[0].text
    assert story.peak_bytes == 135


def test_each_line_is_told_once_in_each_life(monkeypatch: pytest.MonkeyPatch) -> None:
    story, supervisor = story_of(100, 200), FakeSupervisor()
    look(monkeypatch, story, supervisor, 70, 81, 82, 88, 93, 89)
    story.note_exit(Exit(0.0, -9, killed_at_limit=True))
    look(monkeypatch, story, supervisor, 70, 81)
    lines = [event.text.split(" of ")[0] for event in story.events() if event.kind == "line"]
    passes = "memory passes "
    assert lines == [passes + "85%", passes + "92%", passes + "97%", passes + "85%"]
    assert story.lines_crossed() == [0.85, 0.92, 0.97]
    assert (story.kills, story.restarts) == (1, 1)
