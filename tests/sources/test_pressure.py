from __future__ import annotations

import errno
import os
import select
import selectors
from pathlib import Path

import pytest

from slmguard.sources.pressure import HOST_PRESSURE, PressureTrigger

needs_psi = pytest.mark.skipif(not HOST_PRESSURE.exists(), reason="this kernel has no PSI (/proc/pressure/memory)")


@needs_psi
def test_a_real_trigger_is_taken_and_can_be_selected_on() -> None:
    trigger = PressureTrigger()
    assert trigger.problem is None
    with selectors.DefaultSelector() as selector:
        selector.register(trigger, selectors.EVENT_READ)
        selector.select(0)
        assert trigger.acknowledge()
    trigger.close()
    assert trigger.fileno() == -1


@needs_psi
def test_triggers_leave_no_descriptor_behind(no_leaked_descriptors: None) -> None:
    for path in (HOST_PRESSURE, Path("/proc/no-such-file"), Path("/proc/version")):
        for _ in range(20):
            PressureTrigger(path).close()


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
    assert trigger.fileno() == -1
    assert trigger.problem is not None
    assert words in trigger.problem
    assert "polled instead" in trigger.problem


def test_a_kernel_without_psi_is_one_sentence(tmp_path: Path) -> None:
    trigger = PressureTrigger(tmp_path / "memory")
    assert trigger.problem is not None
    assert "psi=1" in trigger.problem
    assert not trigger.acknowledge()


def test_a_file_that_cannot_be_polled_is_no_trigger(tmp_path: Path, no_leaked_descriptors: None) -> None:
    (tmp_path / "memory").write_text("")
    assert PressureTrigger(tmp_path / "memory").problem is not None


@pytest.mark.parametrize(
    ("stall_us", "window_us", "kind"), [(0, 1, "some"), (3, 2, "some"), (1, 10_000_001, "full"), (1, 2, "all")]
)
def test_an_impossible_trigger_is_a_mistake_of_the_caller(stall_us: int, window_us: int, kind: str) -> None:
    with pytest.raises(ValueError, match="no such PSI trigger"):
        PressureTrigger(kind=kind, stall_us=stall_us, window_us=window_us)


def test_a_wake_up_reaches_a_selector_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Out-of-band data raises POLLPRI on a socket just as a trigger does: the wake-up is real, the stall is not needed.
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as sender:
        receiver, _ = server.accept()
        with receiver:
            duplicate = os.dup(receiver.fileno())
            monkeypatch.setattr(os, "open", lambda *_arguments, **_named: duplicate)
            monkeypatch.setattr(os, "write", lambda _fd, data: len(data))
            trigger = PressureTrigger(tmp_path / "memory")
            monkeypatch.undo()
            with selectors.DefaultSelector() as selector:
                selector.register(trigger, selectors.EVENT_READ)
                assert selector.select(0) == []
                sender.send(b"!", socket.MSG_OOB)
                assert len(selector.select(10)) == 1
                assert trigger.acknowledge()
                receiver.recv(1, socket.MSG_OOB)
                assert selector.select(0) == []
            trigger.close()


def test_a_trigger_whose_cgroup_is_removed_is_told_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)  # the write end of such a pipe answers POLLERR, as the kernel does for a removed cgroup
    monkeypatch.setattr(os, "open", lambda *_arguments, **_named: writer)
    monkeypatch.setattr(os, "write", lambda _fd, data: len(data))
    trigger = PressureTrigger(tmp_path / "memory")
    monkeypatch.undo()
    assert select.select([trigger], [], [], 10)[0] == [trigger]
    assert not trigger.acknowledge()
    trigger.close()
