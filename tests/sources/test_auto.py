from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.sources.auto import Choice, Roots, SourceWishes, choose
from slmguard.sources.process_target import ProcessTarget
from slmguard.sources.systemd_unit import UnitView

from .trees import Tree

UNIT = "llama-server.service"
OURSELVES = ProcessTarget(pid=os.getpid())


def running(unit: str) -> UnitView:
    return UnitView(unit, "loaded", "active", control_group=f"/system.slice/{unit}", main_pid=os.getpid())


def no_systemd(_unit: str) -> UnitView:
    raise EnvironmentLacksError("systemctl could not be asked")


@pytest.fixture
def roots(tree: Tree) -> Roots:
    return Roots(tree.cgroup, Path("/proc"), tree.root / "sys")


def closed(choice: Choice) -> str:
    choice.source.close()
    return choice.source.name


def test_a_unit_with_a_memory_cgroup_is_best(tree: Tree, roots: Roots) -> None:
    tree.unit()
    choice = choose("auto", SourceWishes(unit=UNIT), roots=roots, show=running)
    reading = choice.source.read()
    assert reading is not None
    assert reading.source == closed(choice) == "cgroup"
    assert choice.passed_over == ()


def test_a_unit_that_is_stopped_is_waited_for_as_a_cgroup(roots: Roots) -> None:
    def stopped(unit: str) -> UnitView:
        return UnitView(unit, "loaded", "inactive")

    choice = choose("auto", SourceWishes(unit=UNIT, budget_bytes=1, target=OURSELVES), roots=roots, show=stopped)
    assert closed(choice) == "cgroup"


def test_without_the_controller_the_main_process_of_the_unit_is_guarded(tree: Tree, roots: Roots) -> None:
    (tree.cgroup / "cgroup.controllers").write_text("cpu\n")
    choice = choose("auto", SourceWishes(unit=UNIT, budget_bytes=1 << 30), roots=roots, show=running)
    reading = choice.source.read()
    assert reading is not None
    assert reading.source == closed(choice) == "process"
    assert reading.high_bytes == 1 << 30
    assert any("memory controller" in reason for reason in choice.passed_over)
    assert set(choice.passed_over) < set(choice.source.degraded)


def test_a_unit_that_does_not_exist_gives_way_to_a_process_that_does(roots: Roots) -> None:
    def unknown(unit: str) -> UnitView:
        return UnitView(unit, "not-found", "inactive")

    wishes = SourceWishes(unit="no-such.service", budget_bytes=1, target=OURSELVES)
    choice = choose("auto", wishes, roots=roots, show=unknown)
    assert closed(choice) == "process"
    assert any("knows no unit no-such.service" in reason for reason in choice.passed_over)


def test_with_nothing_else_the_host_is_measured_and_all_reasons_are_told(roots: Roots) -> None:
    choice = choose("auto", SourceWishes(unit=UNIT), roots=roots, show=no_systemd)
    reading = choice.source.read()
    assert reading is not None
    assert reading.source == closed(choice) == "host"
    assert any("systemctl could not be asked" in reason for reason in choice.passed_over)
    assert any("no memory budget" in reason for reason in choice.passed_over)
    assert set(choice.passed_over) < set(choice.source.degraded)


def test_a_preference_is_kept_to_and_says_what_is_missing(tree: Tree, roots: Roots) -> None:
    (tree.cgroup / "cgroup.controllers").write_text("cpu\n")
    choice = choose("cgroup", SourceWishes(unit=UNIT), roots=roots, show=running)
    assert closed(choice) == "cgroup"
    assert any("memory controller" in note for note in choice.source.degraded)
    assert closed(choose("host", SourceWishes(unit=UNIT), roots=roots, show=running)) == "host"
    assert closed(choose("process", SourceWishes(unit=UNIT), roots=roots, show=no_systemd)) == "process"


@pytest.mark.parametrize(
    ("preference", "wishes", "words"),
    [
        ("cgruop", SourceWishes(unit=UNIT), "one of auto, cgroup, process, host"),
        ("cgroup", SourceWishes(), "needs the unit"),
        ("process", SourceWishes(), "needs a unit, pid"),
        ("auto", SourceWishes(unit="-x"), "not valid"),
    ],
)
def test_what_nobody_can_mean_is_one_line(roots: Roots, preference: str, wishes: SourceWishes, words: str) -> None:
    with pytest.raises(UserError, match=words):
        choose(preference, wishes, roots=roots, show=running)


def test_a_cgroup_guard_carries_neither_psutil_nor_subprocess() -> None:
    code = "import sys, slmguard.sources.auto; print({'psutil', 'subprocess', 'asyncio'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "set()"
