"""Keeps a run: JSON lines of everything that was seen, and a chart."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from slmguard.core.errors import EnvironmentLacksError
from slmguard.demo.chart import render
from slmguard.demo.settings import DemoSettings
from slmguard.demo.story import Story


def save(story: Story, summary: dict[str, Any], settings: DemoSettings) -> None:
    """Write what `settings` ask for, each file whole or not at all.

    Raises EnvironmentLacksError when a file cannot be written.
    """
    if settings.record is not None:
        _write(settings.record, "".join(json.dumps(line) + "\n" for line in lines(story, summary)))
    if settings.chart is not None:
        _write(settings.chart, render(story, summary))


def lines(story: Story, summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Samples, events and requests, each with its kind in `type`, and the summary last."""
    for sample in story.samples():
        yield {"type": "sample", **asdict(sample)}
    for event in story.events():
        yield {"type": "event", **asdict(event)}
    for request in story.requests():
        yield {"type": "request", **asdict(request)}
    yield {"type": "summary", **summary}


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise EnvironmentLacksError(f"{path}: cannot be written: {error.strerror}") from None
