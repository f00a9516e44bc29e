"""Logs that kernels 2.6 to 6.19 printed on servers, boards and phones, each with its right answer."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from slmguard.kernel_log.scan import LogScan

RECORDS: list[dict[str, Any]] = [
    json.loads(line) for line in (Path(__file__).parent / "corpus.jsonl").read_text("utf-8").splitlines()
]


def events_of(lines: list[str], form: str) -> list[dict[str, object]]:
    data = "\n".join(lines).encode("utf-8", "surrogateescape") + b"\n"
    return [event.document() for event in LogScan(io.BytesIO(data), "test", form).events()]


@pytest.mark.parametrize("form", ["auto", "as labelled"])
@pytest.mark.parametrize("record", RECORDS, ids=[record["id"] for record in RECORDS])
def test_every_record_gives_exactly_its_expected_events(record: dict[str, Any], form: str) -> None:
    found = events_of(record["lines"], record["format"] if form == "as labelled" else "auto")
    assert [
        {name: event[name] for name in expected} for event, expected in zip(found, record["events"], strict=True)
    ] == (record["events"])


@pytest.mark.parametrize("record", RECORDS, ids=[record["id"] for record in RECORDS])
def test_a_log_that_ends_anywhere_names_no_wrong_victim(record: dict[str, Any]) -> None:
    right = {(event["victim_pid"], event["kind"]) for event in record["events"]}
    # What a complete log settles may be open in a cut one: the reason of a kill may stand after it.
    right |= {(event["victim_pid"], "unknown") for event in record["events"]}
    whole = "\n".join(record["lines"])
    for end in range(len(whole) + 1):
        for event in events_of([whole[:end]], "auto"):
            assert (event["victim_pid"], event["kind"]) in right


@pytest.mark.parametrize("record", RECORDS, ids=[record["id"] for record in RECORDS])
def test_a_log_with_one_line_missing_names_no_wrong_victim(record: dict[str, Any]) -> None:
    right = {event["victim_pid"] for event in record["events"]}
    for missing in range(len(record["lines"])):
        lines = record["lines"][:missing] + record["lines"][missing + 1 :]
        assert {event["victim_pid"] for event in events_of(lines, "auto")} <= right


@pytest.mark.parametrize("record", RECORDS, ids=[record["id"] for record in RECORDS])
def test_windows_line_ends_mail_quotes_and_colours_change_nothing(record: dict[str, Any]) -> None:
    if record["format"] == "kmsg":
        decorated = [line + "\r" for line in record["lines"]]
    else:
        decorated = [f"> \x1b[0;1;31m{line}\x1b[0m\r" for line in record["lines"]]
    plain = [dict(event, source=None) for event in events_of(record["lines"], "auto")]
    assert [dict(event, source=None) for event in events_of(decorated, "auto")] == plain


def test_all_logs_one_after_the_other_give_all_their_events() -> None:
    lines = [line for record in RECORDS for line in [*record["lines"], "Linux version 6.1.0 (another boot)"]]
    expected = [event["victim_pid"] for record in RECORDS for event in record["events"]]
    assert [event["victim_pid"] for event in events_of(lines, "auto")] == expected
