"""Boots of the virtual board, shared by all tests that look at their results."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from tests.board.harness.boot import BoardRun, boot
from tests.board.harness.image import Recipe, cache_dir, ensure_image
from tests.board.harness.lacks import BoardUnavailableError, ensure_machine
from tests.board.harness.models import ensure_models
from tests.board.plans import BOOTS

Boots = dict[str, "Future[BoardRun]"]


@pytest.fixture(scope="session")
def boots(request: pytest.FixtureRequest) -> Iterator[Boots]:
    """The boots that the collected tests need, two at a time at most; skips when this machine cannot run them."""
    needed = {name for item in request.session.items for name in getattr(item, "fixturenames", ()) if name in BOOTS}
    try:
        ensure_machine()
        ensure_image(Recipe())
        models = ensure_models()
    except BoardUnavailableError as error:
        pytest.skip(f"the virtual board cannot run here: {error}")
    results = cache_dir() / "results"
    with ThreadPoolExecutor(max_workers=2) as pool:
        yield {name: pool.submit(boot, BOOTS[name], results / name, models=models) for name in BOOTS if name in needed}


def _finished(boots: Boots, name: str) -> BoardRun:
    run = boots[name].result()
    summary = {
        "boot_s": run.boot_s,
        "total_s": round(run.total_s, 1),
        "timed_out": run.timed_out,
        "scenario_seconds": {label: record["seconds"] for label, record in run.results.items()},
    }
    (run.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return run


@pytest.fixture(scope="session")
def unguarded_board(boots: Boots) -> BoardRun:
    """The boot in which servers are left alone first."""
    return _finished(boots, "unguarded_board")


@pytest.fixture(scope="session")
def guarded_board(boots: Boots) -> BoardRun:
    """The boot in which slmguard guards Debian's llama-server.service."""
    return _finished(boots, "guarded_board")
