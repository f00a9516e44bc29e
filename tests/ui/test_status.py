from __future__ import annotations

import argparse
import importlib.util
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slmguard.commands import status, top
from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.ui import control_client, glance, picture, words
from slmguard.ui.gauge import bar, spark
from tests.ui.documents import DOCUMENT, FakeDaemon


def parse(module: Any, *argv: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    module.add_arguments(parser)
    return parser.parse_args(argv)


def shown(document: dict[str, Any]) -> str:
    return glance.render(picture.read(document), glance.Paint(False))


def test_status_tells_everything_at_a_glance_in_80_columns() -> None:
    text = shown(DOCUMENT)
    assert max(map(len, text.splitlines())) <= 80
    for fact in (
        "llama-server.service  ELEVATED  86.2 % of 400.0 MiB",
        "MemoryHigh 400.0 MiB   MemoryMax 450.0 MiB",
        "current 391.0 MiB",
        "working set 371.9 MiB",
        "unreclaimable 249.6 MiB",
        "demand 345.0 MiB",
        "limit in 3 min 50 s",
        "a restart would free 134.5 MiB",
        "freed 157.4 MiB",
        "1 of 12 in the last hour",
        "trim absent",
        "this kernel has no PSI",
        "source      cgroup",
    ):
        assert fact in text


def test_a_figure_just_below_a_line_is_not_rounded_up_to_it() -> None:
    assert words.percent(0.84999) == "84.9 %"


def test_control_characters_from_outside_never_reach_the_terminal() -> None:
    text = shown({**DOCUMENT, "unit": "a\x1b[2Jb\n", "degraded": ["\x07bell"]})
    assert "\x1b" not in text
    assert "\x07" not in text
    assert "a\\x1b[2Jb\\x0a" in text


ODD: st.SearchStrategy[Any] = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20)
ODD |= st.lists(ODD | st.fixed_dictionaries({"rung": ODD, "at_wall_s": ODD, "seconds": ODD}), max_size=2)
ODD |= st.dictionaries(st.sampled_from(["high_bytes", "ready", "trim", "\x1b"]), ODD, max_size=3)


@settings(suppress_health_check=[HealthCheck.too_slow])  # the machine, not the strategy, is slow when it is shared
@given(st.sampled_from(sorted(DOCUMENT)), ODD)
def test_any_document_of_another_version_is_shown_without_an_error(key: str, value: object) -> None:
    text = shown({**DOCUMENT, key: value})
    assert all(letter.isprintable() or letter == "\n" for letter in text)


@given(st.floats(0, 5), st.integers(0, 200))
def test_a_bar_has_exactly_its_width(ratio: float, width: int) -> None:
    assert len(bar(ratio, width, (0.85, 0.92, 0.97))) == width


def test_a_bar_shows_the_lines_that_are_not_yet_passed() -> None:
    assert bar(0.5, 100, (0.85, 0.92)).count("┊") == 2
    assert bar(0.9, 100, (0.85, 0.92)).count("┊") == 1


def test_a_spark_line_holds_the_newest_values() -> None:
    assert spark([0, 0, 0, 1], 2, 0, 1) == "▁█"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(6.5, "6.5 s"), (59.0, "59 s"), (230.0, "3 min 50 s"), (3700.0, "1 h 1 min"), (200000.0, "2 d 7 h"), (None, "–")],
)
def test_durations_read_like_a_person_says_them(seconds: float | None, text: str) -> None:
    assert words.duration(seconds) == text


def test_status_asks_the_daemon_on_the_given_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FakeDaemon(tmp_path / "s") as daemon:
        assert status.run(parse(status, "--socket", str(daemon.path), "--json")) == 0
    assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_status_finds_the_socket_in_the_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "slmguard.toml"
    config.write_text(f"[control]\nsocket = {json.dumps(str(tmp_path / 's'))}\n")
    with FakeDaemon(tmp_path / "s"):
        assert status.run(parse(status, "--config", str(config))) == 0
    assert "ELEVATED" in capsys.readouterr().out


def test_a_configuration_that_was_named_and_is_broken_is_an_error_in_one_line(tmp_path: Path) -> None:
    config = tmp_path / "slmguard.toml"
    config.write_text("[control\n")
    with pytest.raises(UserError, match=r"slmguard\.toml: cannot be read") as caught:
        control_client.socket_path(None, str(config))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.write_text("")])
def test_without_a_daemon_status_says_so_and_exits_with_3(tmp_path: Path, make: Any) -> None:
    make(tmp_path / "s")
    with pytest.raises(EnvironmentLacksError, match=r"not running.*systemctl start slmguard") as caught:
        control_client.fetch_status(tmp_path / "s")
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("answer", [b"", b"garbage\n", b"[]\n", b"{}\n", b"[" * 100000 + b"\n", b"\xff\xfe\n"])
def test_an_answer_that_is_no_status_is_told_in_one_line(tmp_path: Path, answer: bytes) -> None:
    with FakeDaemon(tmp_path / "s", answer) as daemon, pytest.raises(EnvironmentLacksError, match="is no slmguard"):
        control_client.fetch_status(daemon.path)


def test_the_daemons_own_error_is_passed_on(tmp_path: Path) -> None:
    answer = b'{"error": "line too\\u001b long"}\n'
    told = r"line too\\x1b long"
    with FakeDaemon(tmp_path / "s", answer) as daemon, pytest.raises(EnvironmentLacksError, match=told):
        control_client.fetch_status(daemon.path)


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_without_no_color() -> None:
    assert glance.wants_colour(Terminal(), {"TERM": "xterm"})
    assert not glance.wants_colour(Terminal(), {"TERM": "xterm", "NO_COLOR": "1"})
    assert not glance.wants_colour(Terminal(), {"TERM": "dumb"})
    assert not glance.wants_colour(io.StringIO(), {"TERM": "xterm"})


def test_top_without_a_terminal_points_to_status() -> None:
    with pytest.raises(UserError, match="slmguard status"):
        top.run(parse(top))


def test_top_without_rich_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(EnvironmentLacksError, match="pip install"):
        top.run(parse(top))


def test_top_keeps_the_last_status_when_the_daemon_goes_away() -> None:
    from rich.console import Console

    from slmguard.ui.live import Board

    board = Board()
    board.note(DOCUMENT)
    board.note_trouble("the daemon is not running")
    console = Console(file=io.StringIO(), width=80, force_terminal=False)
    console.print(board.drawn(colour=False))
    out = console.file.getvalue()  # type: ignore[attr-defined]
    assert "ELEVATED" in out
    assert "not running" in out
