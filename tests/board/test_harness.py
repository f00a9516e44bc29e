"""The harness itself, as far as it can be judged without booting anything."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from tests.board.guest import runner
from tests.board.harness.image import Recipe
from tests.board.harness.lacks import BoardUnavailableError
from tests.board.harness.mirror import Source, deb822_sources, debian_mirror, one_line_sources
from tests.board.harness.tiny_model import Shape, write_model
from tests.board.plans import BOOTS
from tests.conftest import skipped_tests

ONE_LINE = """\
# deb http://commented.test/debian trixie main
deb [arch=amd64 signed-by=/usr/share/keyrings/x.gpg] http://mirror.test/debian/ trixie main contrib
deb-src http://mirror.test/debian trixie main
deb http://security.test/debian-security trixie-security main
"""
DEB822 = """\
# a comment
Types: deb deb-src
URIs: http://mirror.test/debian
Suites: trixie
 trixie-updates
Components: main
Signed-By: /usr/share/keyrings/x.gpg

Enabled: no
Types: deb
URIs: http://off.test/debian
Suites: trixie
Components: main
"""


def apt_dir(tmp_path: Path, codename: str = "trixie", distribution: str = "debian") -> tuple[Path, Path]:
    os_release = tmp_path / "os-release"
    os_release.write_text(f'ID={distribution}\nVERSION_CODENAME="{codename}"\n')
    (tmp_path / "sources.list.d").mkdir()
    return tmp_path, os_release


def test_one_line_sources_give_binary_archives_without_their_options() -> None:
    assert list(one_line_sources(ONE_LINE)) == [
        Source("http://mirror.test/debian", "trixie", ("main", "contrib")),
        Source("http://security.test/debian-security", "trixie-security", ("main",)),
    ]


def test_deb822_sources_give_every_suite_of_enabled_stanzas() -> None:
    assert list(deb822_sources(DEB822)) == [
        Source("http://mirror.test/debian", "trixie", ("main",)),
        Source("http://mirror.test/debian", "trixie-updates", ("main",)),
    ]


def test_the_mirror_is_the_hosts_own_and_never_a_security_or_third_party_archive(tmp_path: Path) -> None:
    folder, os_release = apt_dir(tmp_path)
    (folder / "sources.list").write_text("deb http://third.test/apt stable main\n")
    (folder / "sources.list.d/debian.sources").write_text(DEB822)
    assert debian_mirror(folder, os_release) == "http://mirror.test/debian"


def test_a_host_without_a_debian_mirror_says_so_in_one_line(tmp_path: Path) -> None:
    folder, os_release = apt_dir(tmp_path, distribution="other")
    with pytest.raises(BoardUnavailableError, match="the host is other, not Debian"):
        debian_mirror(folder, os_release)


def test_a_changed_recipe_is_another_image() -> None:
    assert Recipe().key == Recipe().key
    assert Recipe(suite="other").key != Recipe().key
    assert Recipe(packages=(*Recipe().packages, "hello")).key != Recipe().key


def test_the_tiny_model_is_a_gguf_file_of_the_announced_shape(tmp_path: Path) -> None:
    shape = Shape(layers=1, width=32, heads=2, head_size=16)
    path = write_model(tmp_path / "tiny.gguf", shape)
    magic, version, tensors, _ = struct.unpack("<4sIQQ", path.read_bytes()[:24])
    assert (magic, version, tensors) == (b"GGUF", 3, 3 + 9 * shape.layers)
    assert shape.kv_bytes_per_token == 128
    assert list(tmp_path.iterdir()) == [path]


def test_every_planned_scenario_exists_and_has_its_own_label() -> None:
    folder = Path(__file__).parent / "scenarios"
    steps = [step for boot in BOOTS.values() for step in boot]
    assert {step.scenario for step in steps} == {path.stem for path in folder.glob("*.py")} - {"__init__"}
    assert len({step.label for step in steps}) == len(steps)


def test_a_scenario_that_fails_leaves_its_traceback_as_the_result(tmp_path: Path) -> None:
    step = {"scenario": "no_such_scenario", "label": "lost", "parameters": {}, "limit_s": 5}
    record = runner.run_step(step)
    runner.write_result(tmp_path, "lost", record)
    assert "no_such_scenario" in json.loads((tmp_path / "lost.json").read_text())["error"]


def test_a_skipped_board_test_is_named_with_its_reason() -> None:
    report = pytest.TestReport(
        "tests/board/test_guarded.py::test_x",
        ("tests/board/test_guarded.py", 1, "test_x"),
        {"board": 1},
        "skipped",
        ("conftest.py", 1, "Skipped: the virtual board cannot run here: not root"),
        "setup",
    )
    assert skipped_tests([report]) == [
        "NOT RUN tests/board/test_guarded.py::test_x: the virtual board cannot run here: not root"
    ]


def test_a_whole_file_that_was_skipped_is_named_too() -> None:
    report = pytest.CollectReport("tests/gate/test_x.py", "skipped", ("test_x.py", 3, "Skipped: no client"), [])
    assert skipped_tests([report]) == ["NOT RUN tests/gate/test_x.py: no client"]
