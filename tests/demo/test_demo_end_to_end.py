"""The whole demo as a person runs it: a real llama.cpp server, a real model, the real daemon."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from slmguard.core.errors import EnvironmentLacksError
from slmguard.demo.model import default_cache_dir, ensure_model

pytestmark = pytest.mark.server


@pytest.fixture(scope="module")
def model() -> Path:
    if importlib.util.find_spec("xllamacpp") is None:
        pytest.skip("xllamacpp (llama.cpp's server) is not installed: pip install 'slmguard[demo]'")
    try:
        return ensure_model(default_cache_dir())
    except EnvironmentLacksError as error:
        pytest.skip(f"no model: {error}")


def demo(model: Path, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "slmguard", "demo", "--model", str(model), *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def test_the_demo_serves_a_real_load_under_the_guard_and_ends_by_itself(model: Path, tmp_path: Path) -> None:
    chart = tmp_path / "run.svg"
    with demo(model, "--seconds", "25", "--json", "--chart", str(chart)) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["guard"] is True
    assert summary["kills"] == 0
    assert summary["requests"]["served"] > 0
    assert summary["peak_bytes"] > 150 << 20
    assert summary["levels_seen"][0] == "normal"
    assert summary["metrics_url"].startswith("http://127.0.0.1:")
    assert chart.read_text().startswith("<svg")


def test_ctrl_c_ends_everything_and_still_sums_up(model: Path) -> None:
    with demo(model, "--guard", "off", "--plain") as process:
        assert process.stdout is not None
        children: list[int] = []
        for line in process.stdout:
            if "clients begin" in line:
                children = children_of(process.pid)
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted after" in out
    assert "Traceback" not in err
    assert children
    assert not [child for child in children if Path(f"/proc/{child}").exists()]


def test_a_budget_without_room_is_refused_with_the_least_one(model: Path) -> None:
    with demo(model, "--budget", "100M", "--plain") as process:
        _, err = process.communicate(timeout=120)
    assert process.returncode == 2
    assert "give it at least" in err
    assert os.linesep not in err.strip()
