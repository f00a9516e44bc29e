from __future__ import annotations

import errno
import os
import select
from pathlib import Path

import pytest

from slmguard.sources.pressure import HOST_PRESSURE, PressureTrigger

needs_psi = pytest.mark.skipif(not HOST_PRESSURE.exists(), reason="this kernel has no PSI (/proc/pressure/memory)")


@needs_psi
def test_a_real_trigger_is_taken_and_can_be_polled() -> None:
    trigger = PressureTrigger()
    assert trigger.problem is None
    descriptor = trigger.fileno()
    assert descriptor is not None
    with select.epoll() as loop:
        loop.register(descriptor, select.EPOLLPRI)
        assert not any(events & select.EPOLLERR for _, events in loop.poll(0))
    trigger.close()
    assert trigger.fileno() is None


@needs_psi
def test_a_trigger_without_its_last_byte_would_have_been_refused() -> None:
    descriptor = os.open(HOST_PRESSURE, os.O_RDWR | os.O_NONBLOCK)
    try:
        with pytest.raises(OSError, match="Invalid argument"):
            os.write(descriptor, b"some 250000 2000000")  # read as a window of 200000 us, shorter than the stall
    finally:
        os.close(descriptor)


@needs_psi
def test_triggers_leave_no_descriptor_behind(no_leaked_descriptors: None) -> None:
    for path in (HOST_PRESSURE, Path("/proc/no-such-file"), Path("/proc/version")):
        for _ in range(20):
            trigger = PressureTrigger(path)
            trigger.close()
            assert trigger.fileno() is None


@needs_psi
def test_the_request_ends_in_a_byte_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[bytes] = []
    write = os.write

    def record(fd: int, data: bytes) -> int:
        written.append(data)
        return write(fd, data)

    monkeypatch.setattr(os, "write", record)
    PressureTrigger(kind="full", stall_us=100_000, window_us=4_000_000).close()
    assert written == [b"full 100000 4000000\0"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EOPNOTSUPP, "PSI is off"),
        (errno.EPERM, "not permitted"),
        (errno.EINVAL, "multiple of 2 s"),
        (errno.EBUSY, "busy"),
    ],
)
def test_a_refused_trigger_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str, no_leaked_descriptors: None
) -> None:
    (tmp_path / "memory").write_text("")

    def refuse(_fd: int, _data: bytes) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "write", refuse)
    trigger = PressureTrigger(tmp_path / "memory")
    assert trigger.fileno() is None
    assert trigger.problem is not None
    assert words in trigger.problem
    assert "polled instead" in trigger.problem


def test_a_kernel_without_psi_is_one_sentence(tmp_path: Path) -> None:
    trigger = PressureTrigger(tmp_path / "memory")
    assert trigger.problem is not None
    assert "psi=1" in trigger.problem


@pytest.mark.parametrize(
    ("stall_us", "window_us", "kind"), [(0, 1, "some"), (3, 2, "some"), (1, 10_000_001, "full"), (1, 2, "all")]
)
def test_an_impossible_trigger_is_a_mistake_of_the_caller(stall_us: int, window_us: int, kind: str) -> None:
    with pytest.raises(ValueError, match="no such PSI trigger"):
        PressureTrigger(kind=kind, stall_us=stall_us, window_us=window_us)
