from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from slmguard.core.errors import EnvironmentLacksError
from slmguard.core.model import MemoryReading
from slmguard.sources.cgroup import CgroupSource
from slmguard.sources.systemd_unit import UnitView

from .trees import FILES, Clock, Tree

MIB = 1 << 20
UNIT = "llama-server.service"


def view(control_group: str | None = f"/system.slice/{UNIT}", load_state: str = "loaded") -> UnitView:
    return UnitView(UNIT, load_state, "active" if control_group else "inactive", control_group=control_group)


def source_of(tree: Tree, clock: Clock | None = None, **extra: object) -> CgroupSource:
    source = CgroupSource(
        UNIT,
        cgroup_root=tree.cgroup,
        proc_root=tree.proc,
        clock=clock or Clock(),
        **{"show": lambda _unit: view(), **extra},  # type: ignore[arg-type]
    )
    source.refresh()
    return source


def reading_of(source: CgroupSource) -> MemoryReading:
    reading = source.read()
    assert reading is not None
    return reading


def test_every_figure_of_the_unit_is_read(tree: Tree) -> None:
    unit = tree.unit()
    source = source_of(tree)
    reading = reading_of(source)
    assert reading.source == "cgroup"
    assert reading.instance == str(unit.stat().st_ino)
    assert reading.current_bytes == 394907648
    assert reading.anon_bytes == 200 * MIB
    assert reading.swap_bytes == MIB
    assert reading.shmem_bytes == 10 * MIB
    assert reading.kernel_unreclaimable_bytes == 12 * MIB + 4096
    assert reading.file_mapped_bytes == 120 * MIB
    assert reading.inactive_file_bytes == 30 * MIB
    assert (reading.high_bytes, reading.max_bytes) == (400 * MIB, 450 * MIB)
    assert reading.events is not None
    assert (reading.events.high, reading.events.oom_kill) == (12, 1)
    assert reading.major_faults == 17
    unit_pages = os.sysconf("SC_PAGE_SIZE") // 4096
    assert reading.refault_pages == 42 * unit_pages
    assert (reading.scanned_pages, reading.stolen_pages) == (1000 * unit_pages, 700 * unit_pages)
    assert reading.psi_full_us == 36906
    assert reading.process_count == 0
    assert source.available
    assert source.degraded == ()


def test_max_in_the_limit_files_is_no_limit_and_is_said(tree: Tree) -> None:
    tree.unit(files={**FILES, "memory.high": "max\n", "memory.max": "max\n"})
    source = source_of(tree)
    reading = reading_of(source)
    assert (reading.high_bytes, reading.max_bytes) == (None, None)
    assert any("neither MemoryHigh nor MemoryMax" in note for note in source.degraded)


def test_the_smaller_limit_of_a_slice_above_applies_and_is_named(tree: Tree) -> None:
    tree.unit("inference.slice/inference-llm.slice/" + UNIT)
    (tree.cgroup / "inference.slice" / "memory.max").write_text(f"{300 * MIB}\n")
    (tree.cgroup / "inference.slice" / "inference-llm.slice" / "memory.max").write_text("max\n")
    source = source_of(tree, show=lambda _unit: view(f"/inference.slice/inference-llm.slice/{UNIT}"))
    reading = reading_of(source)
    assert (reading.high_bytes, reading.max_bytes) == (400 * MIB, 300 * MIB)
    assert any("memory.max" in note and "inference.slice (300 MiB)" in note for note in source.degraded)


def test_a_limit_raised_at_run_time_is_seen_at_the_next_read(tree: Tree) -> None:
    unit = tree.unit()
    source = source_of(tree)
    assert reading_of(source).high_bytes == 400 * MIB
    (unit / "memory.high").write_text(f"{500 * MIB}\n")
    assert reading_of(source).high_bytes == 500 * MIB


def test_a_restarted_unit_has_the_same_path_and_a_new_instance(tree: Tree) -> None:
    unit = tree.unit()
    source = source_of(tree)
    before = reading_of(source).instance
    unit.rename(unit.with_name("gone"))
    tree.unit(files={**FILES, "memory.current": "84000000\n"})
    after = reading_of(source)
    assert after.instance != before
    assert after.current_bytes == 84000000


def test_a_stopped_unit_reads_as_none_until_it_is_back(tree: Tree, clock: Clock) -> None:
    unit = tree.unit()
    source = source_of(tree, clock)
    reading_of(source)
    wanted = [source.refresh_wanted]
    shutil.rmtree(unit)
    assert source.read() is None
    clock.now_s += 60
    wanted.append(source.refresh_wanted)
    tree.unit()
    reading_of(source)
    wanted.append(source.refresh_wanted)
    assert wanted == [False, True, False]


def test_systemd_is_not_asked_again_and_again_while_the_unit_is_away(tree: Tree, clock: Clock) -> None:
    source = source_of(tree, clock)
    assert source.read() is None
    wanted = [source.refresh_wanted]
    clock.now_s += 2
    wanted.append(source.refresh_wanted)
    source.refresh()
    wanted.append(source.refresh_wanted)
    assert wanted == [False, True, False]


@pytest.mark.parametrize("name", sorted(FILES))
def test_enodev_from_any_file_is_none_now_and_a_fresh_open_next_time(tree: Tree, name: str) -> None:
    tree.unit()
    broken: set[int] = set()

    def pread(fd: int, count: int, offset: int) -> bytes:
        if fd in broken:
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        if armed and Path(os.readlink(f"/proc/self/fd/{fd}")).name == name:  # noqa: PTH115
            armed.clear()
            broken.add(fd)
            raise OSError(errno.ENODEV, os.strerror(errno.ENODEV))
        return os.pread(fd, count, offset)

    armed: list[bool] = []
    clock = Clock()
    source = source_of(tree, clock, pread=pread)
    first = reading_of(source)
    armed.append(True)
    clock.now_s += 5
    assert source.read() is None
    broken.clear()
    assert reading_of(source) == first


@pytest.mark.parametrize("name", ["memory.swap.current", "memory.events", "memory.pressure", "cgroup.procs"])
def test_an_optional_file_that_is_absent_costs_only_its_own_figure(tree: Tree, name: str) -> None:
    tree.unit(files={key: text for key, text in FILES.items() if key != name})
    reading = reading_of(source_of(tree))
    assert reading.anon_bytes == 200 * MIB
    if name == "memory.events":
        assert reading.events is None
    if name == "cgroup.procs":
        assert reading.process_count is None
    if name == "memory.pressure":
        assert reading.psi_full_us is None


def test_psi_switched_off_is_said_once_and_not_retried(tree: Tree) -> None:
    tree.unit()
    tries = []

    def pread(fd: int, count: int, offset: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("memory.pressure"):  # noqa: PTH115
            tries.append(fd)
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return os.pread(fd, count, offset)

    source = source_of(tree, pread=pread)
    for _ in range(5):
        assert reading_of(source).psi_full_us is None
    assert len(tries) == 1
    assert len([note for note in source.degraded if "PSI" in note]) == 1


@pytest.mark.parametrize("name", ["memory.current", "memory.stat"])
@pytest.mark.parametrize("text", ["", "anon 2097", "max\n", "\x00\xff garbage"])
def test_an_empty_or_truncated_file_is_none_with_a_sentence_never_a_zero(tree: Tree, name: str, text: str) -> None:
    unit = tree.unit(files={**FILES, name: text})
    source = source_of(tree)
    assert source.read() is None
    assert any(name in note for note in source.degraded)
    (unit / name).write_text(FILES[name])
    reading_of(source)
    assert source.degraded == ()


def test_accounting_switched_on_later_is_found_after_a_refresh(tree: Tree, clock: Clock) -> None:
    unit = tree.unit(files={"cgroup.procs": ""})
    source = source_of(tree, clock)
    assert source.read() is None
    assert any("MemoryAccounting=yes" in note for note in source.degraded)
    for name, text in FILES.items():
        (unit / name).write_text(text)
    clock.now_s += 3
    assert source.refresh_wanted
    source.refresh()
    assert reading_of(source).anon_bytes == 200 * MIB


def test_rss_file_is_that_of_the_process_that_maps_most(tree: Tree) -> None:
    tree.unit(files={**FILES, "cgroup.procs": "41\n42\n43\n"})
    tree.process(41, "Name:\tollama\nRssAnon:\t100 kB\nRssFile:\t40 kB\nRssShmem:\t0 kB\n")
    tree.process(42, "Name:\trunner\nRssAnon:\t100 kB\nRssFile:\t90000 kB\nRssShmem:\t0 kB\n")
    reading = reading_of(source_of(tree))
    assert reading.rss_file_bytes == 90000 * 1024
    assert reading.process_count == 3


def test_processes_of_sub_cgroups_count(tree: Tree) -> None:
    unit = tree.unit()
    (unit / "payload" / "inner").mkdir(parents=True)
    (unit / "payload" / "inner" / "cgroup.procs").write_text("42\n")
    tree.process(42, "Name:\tx\nRssAnon:\t1 kB\nRssFile:\t8 kB\n")
    reading = reading_of(source_of(tree))
    assert reading.process_count == 1
    assert reading.rss_file_bytes == 8192


def test_all_processes_replaced_in_a_cgroup_that_stays_is_a_new_instance(tree: Tree, clock: Clock) -> None:
    unit = tree.unit(files={**FILES, "cgroup.procs": "41\n"})
    source = source_of(tree, clock)
    first = reading_of(source).instance
    (unit / "cgroup.procs").write_text("41\n42\n")
    clock.now_s += 1
    assert reading_of(source).instance == first
    (unit / "cgroup.procs").write_text("")
    clock.now_s += 1
    assert reading_of(source).instance == first
    (unit / "cgroup.procs").write_text("77\n")
    clock.now_s += 1
    assert reading_of(source).instance != first


def test_beyond_64_processes_the_rest_is_stated(tree: Tree) -> None:
    tree.unit(files={**FILES, "cgroup.procs": "".join(f"{pid}\n" for pid in range(1000, 1100))})
    for pid in range(1000, 1100):
        tree.process(pid, f"Name:\tx\nRssAnon:\t1 kB\nRssFile:\t{4 * (pid - 1000)} kB\n")
    source = source_of(tree)
    reading = reading_of(source)
    assert reading.process_count == 100
    assert reading.rss_file_bytes == 63 * 4096
    assert any("100 processes" in note for note in source.degraded)


def test_nothing_is_opened_once_warm(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.unit(files={**FILES, "cgroup.procs": f"{os.getpid()}\n"})
    source = source_of(tree)
    first = reading_of(source)

    def refuse(*arguments: object, **_named: object) -> int:
        raise AssertionError(f"opened {arguments}")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr("builtins.open", refuse)
    monkeypatch.setattr("io.open", refuse)
    assert reading_of(source) == first


def test_a_thousand_reads_and_restarts_leave_no_descriptor_behind(
    tree: Tree, clock: Clock, open_descriptors: Callable[[], int], no_leaked_descriptors: None
) -> None:
    files = {**FILES, "cgroup.procs": f"{os.getpid()}\n"}
    unit = tree.unit(files=files)
    source = CgroupSource(UNIT, cgroup_root=tree.cgroup, show=lambda _unit: view(), clock=clock)
    source.refresh()
    reading_of(source)
    held = open_descriptors()
    for turn in range(1000):
        clock.now_s += 0.5
        if turn % 50 == 49:
            shutil.rmtree(unit)
            assert source.read() is None
            unit = tree.unit(files=files)
        reading_of(source)
        if turn % 50 == 0:
            assert open_descriptors() == held
    source.close()


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (UnitView(UNIT, "not-found", "inactive"), "systemd knows no unit llama-server.service"),
        (view(None), "is not running (inactive)"),
        (UnitView(UNIT, "masked", "inactive"), "is masked"),
        (UnitView(UNIT, "bad-setting", "inactive"), "could not load"),
    ],
)
def test_a_unit_without_a_cgroup_is_none_with_a_sentence(tree: Tree, shown: UnitView, words: str) -> None:
    source = source_of(tree, show=lambda _unit: shown)
    assert source.read() is None
    assert any(words in note for note in source.degraded)


def test_refresh_without_systemctl_says_so_and_keeps_the_path_it_had(tree: Tree) -> None:
    tree.unit()
    answers = [view()]

    def show(_unit: str) -> UnitView:
        if answers:
            return answers.pop()
        raise EnvironmentLacksError("systemctl gave no answer")

    source = source_of(tree, show=show)
    source.refresh()
    assert "systemctl gave no answer" in source.degraded
    assert reading_of(source).anon_bytes == 200 * MIB


def test_a_control_group_with_escapes_is_taken_as_it_is_on_disk(tree: Tree) -> None:
    path = "system.slice/system-llama\\x2dserver.slice/llama-server@a\\x2db.service"
    tree.unit(path)
    source = source_of(tree, show=lambda _unit: view("/" + path))
    assert reading_of(source).anon_bytes == 200 * MIB


def test_a_cgroup_path_can_be_given_without_any_systemd(tree: Tree) -> None:
    tree.unit("docker/abc")

    def show(_unit: str) -> UnitView:
        raise AssertionError("asked systemd")

    source = source_of(tree, show=show, cgroup_path="/docker/abc")
    assert reading_of(source).anon_bytes == 200 * MIB


def test_a_raspberry_pi_without_the_controller_is_told_its_own_fix(tree: Tree) -> None:
    (tree.cgroup / "cgroup.controllers").write_text("cpuset cpu io pids\n")
    (tree.proc / "device-tree").mkdir()
    (tree.proc / "device-tree" / "model").write_text("Raspberry Pi 5 Model B Rev 1.0\0")
    source = source_of(tree)
    assert not source.available
    assert any("cgroup_enable=memory" in note and "cmdline.txt" in note for note in source.degraded)


def test_a_command_line_that_switches_the_controller_off_is_named(tree: Tree) -> None:
    (tree.cgroup / "cgroup.controllers").write_text("cpu\n")
    (tree.proc / "cmdline").write_text("root=/dev/sda1 cgroup_disable=memory quiet\n")
    source = source_of(tree)
    assert any("take cgroup_disable=memory out" in note for note in source.degraded)


def test_the_hybrid_hierarchy_of_a_jetson_is_told_its_own_fix(tree: Tree) -> None:
    (tree.cgroup / "cgroup.controllers").unlink()
    (tree.cgroup / "unified").mkdir()
    (tree.proc / "device-tree").mkdir()
    (tree.proc / "device-tree" / "model").write_text("NVIDIA Jetson Orin Nano\0")
    source = source_of(tree)
    assert not source.available
    assert any("unified_cgroup_hierarchy=1" in note and "extlinux.conf" in note for note in source.degraded)


def test_systemd_is_not_asked_where_no_answer_could_help(tree: Tree) -> None:
    (tree.cgroup / "cgroup.controllers").write_text("cpu\n")

    def show(_unit: str) -> UnitView:
        raise AssertionError("asked systemd")

    source = source_of(tree, show=show)
    assert source.read() is None
    assert len(source.degraded) == 1


def test_a_driver_probe_is_asked_for_the_processes_of_the_unit(tree: Tree) -> None:
    tree.unit(files={**FILES, "cgroup.procs": "41\n"})
    asked = []

    class Probe:
        def read(self, pids: object) -> int | None:
            asked.append(pids)
            return 5 * MIB

    reading = reading_of(source_of(tree, driver_probe=Probe()))
    assert reading.driver_bytes == 5 * MIB
    assert asked == [[41]]
