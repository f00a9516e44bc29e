from __future__ import annotations

import argparse
import io
import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from slmguard.commands import demo
from slmguard.core.errors import UserError
from slmguard.demo import record, summary
from slmguard.demo.chart import render
from slmguard.demo.guard import CONFIG, free_port
from slmguard.demo.load import Request
from slmguard.demo.settings import MIB, DemoSettings
from slmguard.demo.story import Story
from slmguard.demo.supervisor import Exit
from slmguard.demo.view_live import LiveView, picture
from slmguard.demo.view_plain import PlainView
from slmguard.ui.picture import read
from tests.ui.documents import DOCUMENT, RUNG


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def told(clock: Clock, guard: bool = True) -> Story:
    """A short run: growth over all lines, a rung, two lost requests, a kill."""
    story = Story(DemoSettings(Path("M.gguf"), guard=guard), clock)
    for second in range(10):
        clock.now_s = float(second)
        size = (200 + 18 * second) * MIB
        story.note_memory(size, size, keep=True)
    if guard:
        story.note_picture(read({**DOCUMENT, "level": "high", "rungs": [RUNG]}))
        story.note_picture(read({**DOCUMENT, "level": "normal", "rungs": [RUNG]}))
    story.note_request(Request(0.0, "served", 2.0, 400, 20))
    story.note_request(Request(0.0, "failed", 0.1, detail="ConnectionError"))
    clock.now_s = 10.0
    story.note_request(Request(0.0, "failed", 0.1, detail="ConnectionError"))
    story.note_request(Request(0.0, "refused", 0.1, detail="HTTP 503"))
    story.tell("KILLED", "kill")
    story.note_exit(Exit(0.0, -9, killed_at_limit=True))
    story.note_memory(None, None, keep=True)
    return story


def test_the_summary_counts_what_happened() -> None:
    result = summary.document(told(Clock()), interrupted=False, unfinished=1)
    assert result["requests"] == {"served": 1, "failed": 2, "refused": 1, "unfinished": 1}
    assert result["levels_seen"] == ["high", "normal"]
    assert result["lines_crossed"] == [0.85, 0.92, 0.97]
    assert [run["freed_bytes"] for run in result["rungs"]] == [165000000]
    assert (result["kills"], result["restarts"], result["peak_bytes"]) == (1, 1, 362 * MIB)
    assert result["tokens"] == {"prompt": 400, "completion": 20}
    assert json.loads(json.dumps(result)) == result


def test_the_summary_in_words_says_who_killed() -> None:
    text = summary.text(summary.document(told(Clock(), guard=False), interrupted=False, unfinished=0))
    assert "simulated OOM kill: there is no cgroup here" in text
    assert "guard OFF" in text
    guarded = summary.text(summary.document(told(Clock()), interrupted=True, unfinished=0))
    assert "planned restart: 1 ×, freed 157 MiB" in guarded
    assert "interrupted" in guarded


def test_a_run_without_a_single_request_has_a_summary_too() -> None:
    story = Story(DemoSettings(Path("M.gguf")), Clock())
    assert "0 served" in summary.text(summary.document(story, interrupted=True, unfinished=0))


def test_requests_lost_together_are_one_event() -> None:
    lost = [event for event in told(Clock()).events() if event.kind == "failed"]
    assert [(event.count, event.text) for event in lost] == [(2, "2 requests were lost (ConnectionError)")]


@pytest.mark.parametrize("guard", [True, False])
def test_the_chart_is_one_valid_svg_for_light_and_dark(guard: bool) -> None:
    story = told(Clock(), guard)
    text = render(story, summary.document(story, interrupted=False, unfinished=0))
    root = ET.fromstring(text)  # noqa: S314 - made two lines above
    words = " ".join(node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}text"))
    assert ("With slmguard" if guard else "Without slmguard") in words
    assert ("freed 157 MiB" in words) is guard
    assert "killed" in words
    assert "prefers-color-scheme: dark" in text
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


def test_a_run_is_kept_as_json_lines_with_the_summary_last(tmp_path: Path) -> None:
    story = told(Clock())
    settings = DemoSettings(Path("M.gguf"), record=tmp_path / "run.jsonl", chart=tmp_path / "run.svg")
    record.save(story, summary.document(story, interrupted=False, unfinished=0), settings)
    lines = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    assert {line["type"] for line in lines} == {"sample", "event", "request", "summary"}
    assert lines[-1]["kills"] == 1
    assert sorted(item.name for item in tmp_path.iterdir()) == ["run.jsonl", "run.svg"]


def test_plain_lines_come_once_and_in_order() -> None:
    clock, stream = Clock(), io.StringIO()
    view = PlainView(stream)
    story = told(clock)
    view.start(story)
    view.update()
    view.update()
    view.stop()
    lines = [line for line in stream.getvalue().splitlines() if "[" not in line]
    assert len(lines) == len(set(lines)) == len(story.events())
    times = [line.split()[0] for line in lines]
    assert times == sorted(times)


@pytest.mark.parametrize("width", [60, 80, 110])
def test_the_live_picture_fits_its_width(width: int) -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(picture(told(Clock()), width))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert max(map(len, lines)) <= width
    assert any("kill" in line for line in lines)
    view = LiveView(console)
    view.start(told(Clock()))
    view.update()
    view.stop()


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--seconds", "5"], "--seconds 5"),
        (["--clients", "0"], "--clients 0"),
        (["--port", "70000"], "--port 70000"),
        (["--budget", "many"], "--budget"),
        (["--budget", "320M", "--budget-max", "300M"], "below the budget"),
        (["--chart", "/no/such/folder/x.svg"], "cannot be written"),
        (["--model", "/no/such/model"], "cannot be read"),
    ],
)
def test_a_mistake_on_the_command_line_is_one_line(argv: list[str], message: str) -> None:
    parser = argparse.ArgumentParser()
    demo.add_arguments(parser)
    with pytest.raises(UserError, match=message) as caught:
        demo.run(parser.parse_args(argv))
    assert "\n" not in str(caught.value)


def test_a_port_that_is_taken_is_replaced_by_a_free_one() -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port: int = taken.getsockname()[1]
        assert free_port(port) not in {0, port}


def test_the_guards_configuration_is_valid() -> None:
    from slmguard import config

    values: dict[str, Any] = {"budget": 320 * MIB, "budget_max": 360 * MIB, "url": '"http://127.0.0.1:1"'}
    text = CONFIG.format(pid_file='"/x.pid"', listen='"127.0.0.1:2"', socket='"/c"', state='"/s"', **values)
    options = config.parse(text, "demo")
    assert options.restart.method == "signal"
    assert options.memory.budget_bytes == 320 * MIB
