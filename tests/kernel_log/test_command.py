"""`slmguard oom` as a person and as a script use it."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from slmguard.cli import run
from slmguard.core.errors import UserError
from slmguard.kernel_log.event import EVENT_FIELDS
from slmguard.kernel_log.scan import LONGEST_LINE_BYTES, LogScan

KILL = (
    "Jul 19 05:19:24 board kernel: Memory cgroup out of memory: Killed process 42 (llama-server) total-vm:4194304kB, "
    "anon-rss:2097152kB, file-rss:512kB, shmem-rss:0kB, UID:995 pgtables:4kB oom_score_adj:200\n"
)
LOG = (
    "Jul 19 05:19:24 board kernel: asker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=1, oom_score_adj=0\n"
    "Jul 19 05:19:24 board kernel: oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,"
    "oom_memcg=/a.slice,task_memcg=/a.slice/llama.service,task=llama-server,pid=42,uid=995\n" + KILL
)


def scan(data: bytes, form: str = "auto") -> tuple[list[int | None], list[str]]:
    log = LogScan(io.BytesIO(data), "test", form)
    return [event.victim_pid for event in log.events()], [tally.first.kind for tally in log.tallies.values()]


def slmguard(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [sys.executable, "-m", "slmguard", "oom", *arguments], input=stdin, capture_output=True, timeout=60, check=False
    )


@pytest.fixture
def log(tmp_path: Path) -> str:
    path = tmp_path / "kern.log"
    path.write_text(LOG)
    return str(path)


def document(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_the_json_document_has_the_promised_fields(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["oom", "--json", log]) == 0
    found = document(capsys)
    assert found == {
        "events": [
            {
                "kind": "memcg",
                "victim_pid": 42,
                "victim_comm": "llama-server",
                "constraint": "CONSTRAINT_MEMCG",
                "task_memcg": "/a.slice/llama.service",
                "oom_memcg": "/a.slice",
                "anon_rss_kb": 2097152,
                "file_rss_kb": 512,
                "shmem_rss_kb": 0,
                "total_vm_kb": 4194304,
                "oom_score_adj": 200,
                "uid": 995,
                "invoker_comm": "asker",
                "gfp_order": 1,
                "time": "Jul 19 05:19:24",
                "source": "journal",
            }
        ],
        "warnings": [],
    }
    assert tuple(found["events"][0]) == EVENT_FIELDS


def test_a_person_reads_who_was_killed_why_and_what_it_held(log: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["oom", log]) == 0
    assert capsys.readouterr().out == (
        "Jul 19 05:19:24 (line 3)\n"
        "  killed llama-server (pid 42, uid 995): the limit of /a.slice, above its own cgroup, was reached\n"
        "    it held 2.0 GiB anonymous, 512 kB file, 0 kB shared, 4.0 GiB virtual\n"
        "    its cgroup: /a.slice/llama.service\n"
        "    its oom_score_adj: 200\n"
        "    memory was asked for by asker, 2 page(s)\n"
        "\n"
        "1 OOM event in 3 lines: 1 memcg\n"
    )


def test_standard_input_is_read_without_a_file_and_with_a_dash() -> None:
    for arguments in ((), ("-",)):
        done = slmguard("--json", *arguments, stdin=LOG.encode())
        assert (done.returncode, done.stderr) == (0, b"")
        assert len(json.loads(done.stdout)["events"]) == 1


def test_a_log_without_a_kill_is_no_failure() -> None:
    done = slmguard(stdin=b"nothing here\n")
    assert (done.returncode, done.stdout) == (0, b"no OOM kill in 1 lines\n")
    done = slmguard("--json", stdin=b"")
    assert (done.returncode, json.loads(done.stdout)) == (0, {"events": [], "warnings": []})


@pytest.mark.parametrize("form", ["auto", "dmesg", "dmesg-T", "journal", "syslog"])
def test_the_format_is_a_hint_for_text_logs(form: str) -> None:
    done = slmguard("--json", "--format", form, stdin=LOG.encode())
    assert len(json.loads(done.stdout)["events"]) == 1


def test_what_is_no_kill_is_listed_apart_with_its_count(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("[ 1.000000] TCP: out of memory -- consider tuning tcp_mem\n" * 3 + KILL)
    assert run(["oom", "--json", str(path)]) == 0
    found = document(capsys)
    assert len(found["events"]) == 1
    assert found["warnings"] == [
        {
            "kind": "tcp_memory",
            "text": "TCP: out of memory -- consider tuning tcp_mem",
            "count": 3,
            "time": "1.000000",
            "line": 1,
        }
    ]
    assert run(["oom", str(path)]) == 0
    assert "note: tcp memory (line 1, 3 times): TCP: out of memory" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("/nowhere/kern.log", "No such file"),
        ("/", "is a directory"),
        ("a\0b", "cannot read"),
        ("x" * 5000, "cannot read"),
    ],
    ids=["missing", "directory", "nul", "long"],
)
def test_a_file_that_cannot_be_read_is_one_line(name: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["oom", name]) == 2
    shown = capsys.readouterr()
    assert words in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)


@pytest.mark.parametrize("start", [b"LPKSHHRH\0\0\0\0", b"\x28\xb5\x2f\xfd\0\0\0\0"], ids=["journal", "zstd"])
def test_a_file_that_is_no_text_says_how_to_read_it(
    start: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "system.journal"
    path.write_bytes(start + bytes(100))
    assert run(["oom", "--json", str(path)]) == 2
    shown = capsys.readouterr()
    assert "| slmguard oom" in shown.err
    assert shown.out == ""


def test_compressed_logs_are_read() -> None:
    for compress in (gzip.compress, lzma.compress, bz2.compress):
        assert scan(compress(LOG.encode())) == ([42], [])


def test_a_damaged_archive_gives_what_could_be_read() -> None:
    noise = os.urandom(200_000).hex().encode() + b"\n"
    broken = gzip.compress(LOG.encode() + noise)[:-5000]
    assert scan(broken)[1] == ["long_line", "unreadable"]
    assert scan(broken)[0] == [42]


def test_an_archive_of_another_make_that_is_damaged_is_no_crash() -> None:
    for compress in (lzma.compress, bz2.compress, gzip.compress):
        whole = compress(LOG.encode() * 3)
        for end in range(len(whole)):
            assert set(scan(whole[:end])[0]) <= {42}
        for at in range(8, len(whole), 7):
            scan(whole[:at] + b"\xaa" + whole[at + 1 :])


def test_utf_16_from_a_windows_redirect_is_read() -> None:
    assert scan(LOG.encode("utf-16")) == ([42], [])


def test_invalid_bytes_nul_bytes_and_gigantic_lines_do_no_harm() -> None:
    data = (
        b"\x00\x00\xff\xfe\x80\n"
        + b"oom" * LONGEST_LINE_BYTES
        + b"\n"
        + b"\x00" * 300
        + KILL.encode()
        + b"\xff oom \xc3"
    )
    assert scan(data) == ([42], ["long_line"])


def test_the_end_of_a_gigantic_line_is_not_taken_for_a_line() -> None:
    assert scan(b"x" * LONGEST_LINE_BYTES + KILL.encode()) == ([], ["long_line"])


def test_output_that_does_not_say_who_speaks_is_not_believed_and_this_is_said() -> None:
    data = b"    MESSAGE=Out of memory: Killed process 42 (x) total-vm:1kB\n    _TRANSPORT=syslog\n"
    assert scan(data) == ([], ["unsupported_form"])


def test_nothing_that_a_process_calls_itself_reaches_the_terminal_raw() -> None:
    name = "\x1b]0;x\x07\u202e\x9b2J"
    text = f"[ 1.000000] Out of memory: Killed process 42 ({name}) total-vm:1kB\n"
    done = slmguard(stdin=text.encode())
    shown = done.stdout.decode()
    assert r"killed \x1b]0;x\x07\u202e\x9b2J (pid 42)" in shown
    assert all(char.isprintable() or char == "\n" for char in shown)
    assert json.loads(slmguard("--json", stdin=text.encode()).stdout)["events"][0]["victim_comm"] == name


def test_the_reader_of_the_output_may_go_away(log: str) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "slmguard", "oom", log], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 0


def test_memory_stays_bounded_on_a_long_log() -> None:
    """100 MB of log through a pipe, read by a process that may hold 150 MiB in all, code included."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (150 << 20, 150 << 20));"
        "from slmguard.cli import run; sys.exit(run(['oom', '--json']))"
    )
    chunk = (b"x" * 99 + b"\n") * 10_000 + KILL.encode()
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(40):
            process.stdin.write(chunk)
        process.stdin.write(b"y" * (64 << 20))
        process.stdin.close()
        found = json.loads(process.stdout.read())
        assert process.wait(60) == 0
    assert len(found["events"]) == 1
    assert [warning["kind"] for warning in found["warnings"]] == ["long_line"]


def test_a_terminal_without_a_log_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    from slmguard.commands import oom

    monkeypatch.setattr("sys.stdin", type("Terminal", (), {"isatty": lambda self: True})())
    with pytest.raises(UserError, match="journalctl -k"):
        oom._open("-")
