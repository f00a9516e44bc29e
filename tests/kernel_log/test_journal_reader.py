"""Following the journal in place of the device, through a process that the test plays."""

from __future__ import annotations

import json
import os
import select
import stat
from pathlib import Path
from typing import IO

import pytest

from slmguard.kernel_log.cursor import Cursor
from slmguard.kernel_log.journal_reader import LONGEST_LINE_BYTES, JournalReader, start_journalctl

LONGEST_WAIT_MS = 120_000  # a machine that is busy with other things has stalled for more than 30 s


class Played:
    """A process whose output is a pipe in the test's hands."""

    def __init__(self) -> None:
        read_end, self.write_end = os.pipe()
        self.stdout: IO[bytes] | None = os.fdopen(read_end, "rb", 0)
        self.terminated = False

    def poll(self) -> int | None:
        return 1

    def terminate(self) -> None:
        self.terminated = True

    def kill(self) -> None:
        pass

    def wait(self, timeout: float | None = None) -> int:
        return 1

    def say(self, data: bytes) -> None:
        os.write(self.write_end, data)

    def end(self) -> None:
        os.close(self.write_end)


class Stage:
    """Starts played processes and remembers their arguments."""

    def __init__(self) -> None:
        self.processes: list[Played] = []
        self.arguments: list[list[str]] = []
        self.cursor: Cursor | None = None

    def start(self, arguments: list[str]) -> Played:
        self.arguments.append(arguments)
        self.processes.append(Played())
        return self.processes[-1]

    def load(self) -> Cursor | None:
        return self.cursor

    def save(self, cursor: Cursor) -> None:
        self.cursor = cursor


@pytest.fixture
def stage() -> Stage:
    return Stage()


def entry(text: str, cursor: str, transport: str = "kernel") -> bytes:
    return json.dumps({"MESSAGE": text, "__CURSOR": cursor, "_TRANSPORT": transport}).encode() + b"\n"


def test_entries_of_the_kernel_are_given_and_others_are_not(stage: Stage) -> None:
    reader = JournalReader(stage, start=stage.start)
    assert reader.read(0.0) == []
    stage.processes[0].say(entry("one", "c1") + entry("spoof", "c2", "syslog") + entry("two", "c3") + b"garbage\n")
    assert [record.text for record in reader.read(0.0)] == ["one", "two"]
    assert (reader.health.records, reader.health.foreign_records, reader.health.malformed_records) == (2, 1, 1)
    stage.processes[0].end()
    reader.close()


def test_an_entry_in_two_halves_is_one_record(stage: Stage) -> None:
    reader = JournalReader(stage, start=stage.start)
    reader.read(0.0)
    whole = entry("one", "c1")
    stage.processes[0].say(whole[:20])
    assert reader.read(0.0) == []
    stage.processes[0].say(whole[20:])
    assert [record.text for record in reader.read(0.0)] == ["one"]
    stage.processes[0].end()
    reader.close()


def test_a_bounded_number_of_records_is_given_and_the_rest_is_announced(stage: Stage) -> None:
    reader = JournalReader(stage, start=stage.start)
    reader.read(0.0)
    stage.processes[0].say(b"".join(entry(str(number), "c") for number in range(10)))
    assert [record.text for record in reader.read(0.0, limit=4)] == ["0", "1", "2", "3"]
    assert reader.has_more()
    assert len(reader.read(0.0)) == 6
    assert not reader.has_more()
    stage.processes[0].end()
    reader.close()


def test_a_process_that_ends_is_started_again_at_the_same_place(stage: Stage) -> None:
    reader = JournalReader(stage, start=stage.start)
    reader.read(0.0)
    assert "--lines=0" in stage.arguments[0]
    stage.processes[0].say(entry("one", "c1"))
    stage.processes[0].end()
    assert [record.text for record in reader.read(0.0)] == ["one"]
    assert (reader.health.is_open, reader.health.error) == (False, "journalctl ended with exit code 1")
    assert (reader.read(0.5), len(stage.processes)) == ([], 1)
    reader.read(1.0)
    assert "--after-cursor=c1" in stage.arguments[1]
    stage.processes[1].end()
    reader.close()


def test_the_place_is_kept_across_a_restart(stage: Stage) -> None:
    reader = JournalReader(stage, start=stage.start)
    reader.read(0.0)
    stage.processes[0].say(entry("one", "c1"))
    reader.read(0.0)
    reader.commit()
    stage.processes[0].end()
    reader.close()
    again = JournalReader(stage, start=stage.start)
    again.read(0.0)
    assert "--after-cursor=c1" in stage.arguments[1]
    stage.processes[1].end()
    again.close()


def test_a_gigantic_entry_is_dropped_and_counted(stage: Stage) -> None:
    reader = JournalReader(stage, start=stage.start)
    reader.read(0.0)
    for _ in range(LONGEST_LINE_BYTES // 32768 + 2):
        stage.processes[0].say(b"x" * 32768)
        reader.read(0.0)
    stage.processes[0].say(b"x\n" + entry("after", "c"))
    assert [record.text for record in reader.read(0.0)] == ["after"]
    assert reader.health.lost_records == 1
    stage.processes[0].end()
    reader.close()


def test_a_host_without_journalctl_is_an_error_in_health(stage: Stage) -> None:
    def missing(_arguments: list[str]) -> Played:
        raise FileNotFoundError(2, "No such file or directory")

    reader = JournalReader(stage, start=missing)
    assert reader.read(0.0) == []
    assert reader.health.error == "journalctl: No such file or directory"


def test_a_real_process_is_followed_and_stopped(tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "journalctl"
    line = entry("Killed process 7 (a) total-vm:1kB", "c1").decode()
    script.write_text(f"#!/bin/sh\ncat <<'EOF'\n{line}EOF\nexec sleep 60\n")
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    reader = JournalReader(stage, start=start_journalctl)
    try:
        texts = [record.text for record in reader.read(0.0)]
        poller = select.poll()
        poller.register(reader.fileno(), select.POLLIN)
        while not texts and poller.poll(LONGEST_WAIT_MS):
            texts += [record.text for record in reader.read(0.0)]
        assert texts == ["Killed process 7 (a) total-vm:1kB"]
    finally:
        reader.close()
    assert reader.fileno() == -1
