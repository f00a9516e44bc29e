"""The reader of /dev/kmsg, on a device whose faults can be chosen, and on this machine's own."""

from __future__ import annotations

import errno
import os
import select
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slmguard.kernel_log.choice import choose_log
from slmguard.kernel_log.cursor import Cursor, FileCursorStore, NoCursorStore
from slmguard.kernel_log.health import KernelLog
from slmguard.kernel_log.journal_reader import JournalReader
from slmguard.kernel_log.reader import KMSG_PATH, RECORD_BYTES, KmsgReader, open_kmsg, read_boot_id

Answer = bytes | OSError


def record(seq: int, text: str = "hello", priority: int = 6, uptime_s: float = 100.0) -> bytes:
    return f"{priority},{seq},{int(uptime_s * 1e6)},-;{text}\n".encode()


class Device:
    """A device that answers each read from a script, and EAGAIN when the script is at its end."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.reads = 0
        self.opened = 0
        self.open_errors: list[OSError] = []

    def open(self, _path: str) -> int:
        if self.open_errors:
            raise self.open_errors.pop(0)
        self.opened += 1
        return os.open(os.devnull, os.O_RDONLY)

    def read(self, _fd: int, size: int) -> bytes:
        assert size == RECORD_BYTES
        self.reads += 1
        if not self.answers:
            raise BlockingIOError(errno.EAGAIN, "nothing new")
        answer = self.answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer


class Memory:
    """A cursor store that remembers."""

    def __init__(self, cursor: Cursor | None = None) -> None:
        self.cursor = cursor
        self.saves = 0

    def load(self) -> Cursor | None:
        return self.cursor

    def save(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.saves += 1


Make = Callable[..., KmsgReader]


@pytest.fixture
def make() -> object:
    readers: list[KmsgReader] = []

    def build(device: Device, store: Memory | None = None, boot_id: str = "boot", **options: object) -> KmsgReader:
        reader = KmsgReader(
            store or Memory(),
            boot_id=boot_id,
            opener=device.open,
            read=device.read,
            wall_clock=lambda: 1_700_000_000.0,
            kernel_clock=lambda: 150.0,
            **options,  # type: ignore[arg-type]
        )
        readers.append(reader)
        return reader

    yield build
    for reader in readers:
        reader.close()


def seqs(reader: KmsgReader, now_s: float = 0.0, limit: int = 256) -> list[int | None]:
    return [entry.seq for entry in reader.read(now_s, limit)]


def test_records_come_in_order_and_unescaped(make: Make) -> None:
    reader = make(Device(record(5, r"a\x5cx2d\x0ab"), record(6)))
    first, second = reader.read(0.0)
    assert (first.text, first.seq, second.seq) == ("a\\x2d\nb", 5, 6)
    assert (reader.health.records, reader.health.lost_records, reader.health.last_seq) == (2, 0, 6)


def test_records_of_userspace_are_counted_but_not_given(make: Make) -> None:
    spoof = "Out of memory: Killed process 1 (init) total-vm:1kB"
    reader = make(Device(record(5, spoof, priority=11), record(6, spoof, priority=12), record(7, priority=3)))
    assert seqs(reader) == [7]
    assert (reader.health.foreign_records, reader.health.lost_records) == (2, 0)


def test_an_overrun_is_counted_by_the_gap_and_reading_goes_on(make: Make) -> None:
    reader = make(Device(record(5), BrokenPipeError(errno.EPIPE, "overrun"), record(105), record(106)))
    assert seqs(reader) == [5, 105, 106]
    assert reader.health.lost_records == 99
    assert (reader.health.is_open, reader.health.opened) == (True, 1)


def test_a_record_larger_than_the_buffer_is_one_lost_record(make: Make) -> None:
    reader = make(Device(record(5), OSError(errno.EINVAL, "too large"), record(7)))
    assert seqs(reader) == [5, 7]
    assert reader.health.lost_records == 1


def test_any_other_error_reopens_with_back_off_and_gives_no_record_twice(make: Make) -> None:
    device = Device(record(5), OSError(errno.EIO, "broken"))
    reader = make(device)
    assert seqs(reader, 0.0) == [5]
    assert (reader.health.is_open, reader.fileno()) == (False, -1)
    assert "broken" in (reader.health.error or "")
    device.answers = [record(4), record(5), record(6)]
    assert seqs(reader, 0.5) == []
    assert device.opened == 1
    assert seqs(reader, 1.0) == [6]
    assert (reader.health.is_open, reader.health.error, reader.health.lost_records) == (True, None, 0)


def test_the_back_off_doubles_to_a_minute_and_starts_anew_after_success(make: Make) -> None:
    device = Device()
    device.open_errors = [OSError(errno.EIO, "broken")] * 20
    reader = make(device)
    attempts = []
    for now_s in range(400):
        before = len(device.open_errors)
        reader.read(float(now_s))
        if len(device.open_errors) < before:
            attempts.append(now_s)
    assert attempts == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]
    device.open_errors = []
    device.answers = [record(1), OSError(errno.EIO, "broken"), record(2)]
    assert seqs(reader, 423.0) == [1]
    assert seqs(reader, 424.0) == [2]


def test_end_of_file_is_an_error_not_a_busy_loop(make: Make) -> None:
    device = Device(b"", b"", b"")
    reader = make(device)
    assert seqs(reader) == []
    assert (device.reads, reader.health.is_open) == (1, False)


def test_a_call_makes_no_more_reads_than_it_was_told(make: Make) -> None:
    overruns: list[Answer] = [BrokenPipeError(errno.EPIPE, "overrun")] * 50
    device = Device(*overruns, *(record(seq) for seq in range(500)))
    reader = make(device)
    assert seqs(reader, limit=60) == list(range(10))
    assert device.reads == 60
    assert seqs(reader, limit=100) == list(range(10, 110))


def test_damaged_records_are_counted_and_skipped(make: Make) -> None:
    reader = make(Device(b"garbage", b"\xff\xfe,,;", record(5), b";", b"6,"))
    assert seqs(reader) == [5]
    assert reader.health.malformed_records == 4


def test_a_restart_in_the_same_boot_neither_replays_nor_misses(make: Make) -> None:
    store = Memory()
    ring = [record(seq) for seq in range(10)]
    first = make(Device(*ring[:4]), store, from_oldest=True)
    assert seqs(first) == [0, 1, 2, 3]
    first.commit()
    first.close()
    second = make(Device(*ring), store)
    assert seqs(second) == [4, 5, 6, 7, 8, 9]
    assert second.health.lost_records == 0


def test_what_the_ring_lost_while_the_daemon_was_stopped_is_counted(make: Make) -> None:
    reader = make(Device(record(20), record(21)), Memory(Cursor("boot", "9")))
    assert seqs(reader) == [20, 21]
    assert reader.health.lost_records == 10


def test_what_was_read_but_not_dealt_with_comes_again(make: Make) -> None:
    store = Memory()
    ring = [record(seq) for seq in range(4)]
    first = make(Device(*ring), store, from_oldest=True)
    assert seqs(first, limit=2) == [0, 1]
    first.commit()
    assert seqs(first) == [2, 3]
    assert seqs(make(Device(*ring), store)) == [2, 3]


def test_after_a_reboot_everything_in_the_ring_is_new(make: Make) -> None:
    reader = make(Device(record(0), record(1)), Memory(Cursor("boot before", "5000")))
    assert seqs(reader) == [0, 1]


def test_committing_saves_only_what_has_changed(make: Make) -> None:
    store = Memory()
    reader = make(Device(record(5)), store)
    reader.commit()
    assert store.saves == 0
    reader.read(0.0)
    reader.commit()
    reader.commit()
    assert (store.saves, store.cursor) == (1, Cursor("boot", "5"))


def test_backlog_is_stamped_with_when_it_happened_and_live_records_with_now(make: Make) -> None:
    device = Device(record(5, uptime_s=100.0))
    reader = make(device)
    (backlog,) = reader.read(0.0)
    assert backlog.time == "2023-11-14T22:12:30.000Z"  # 50 s before now
    device.answers = [record(6, uptime_s=100.0)]  # as after a suspend, when the kernel's clock stood still
    (live,) = reader.read(1.0)
    assert live.time == "2023-11-14T22:13:20.000Z"


def test_a_flood_of_100000_records_is_read_without_loss(make: Make) -> None:
    reader = make(Device(*(record(seq) for seq in range(100_000))))
    read = 0
    while batch := reader.read(0.0, 1000):
        read += len(batch)
        assert len(batch) <= 1000
    assert (read, reader.health.lost_records) == (100_000, 0)


def test_a_cursor_survives_in_its_file_and_a_damaged_one_counts_as_none(tmp_path: Path) -> None:
    store = FileCursorStore(tmp_path / "kmsg.cursor")
    assert store.load() is None
    store.save(Cursor("boot", "17"))
    assert store.load() == Cursor("boot", "17")
    assert os.listdir(tmp_path) == ["kmsg.cursor"]  # noqa: PTH208 (names alone are wanted)
    for damaged in (b"", b"boot", b"boot\n17", b"\n17\n", b"\xff\xff\n\n\n"):
        (tmp_path / "kmsg.cursor").write_bytes(damaged)
        assert store.load() is None


def test_a_cursor_that_is_no_number_is_ignored(make: Make) -> None:
    assert seqs(make(Device(record(5)), Memory(Cursor("boot", "x")))) == [5]


def test_where_the_device_is_forbidden_the_journal_is_used_and_this_is_said(make: Make) -> None:
    device = Device()
    device.open_errors = [PermissionError(errno.EPERM, "Operation not permitted")]
    journal = JournalReader(NoCursorStore())
    choice, _ = choose_log(make(device), lambda: journal, 0.0)
    assert (choice.log, choice.mode) == (journal, "journal")
    assert choice.reason == "/dev/kmsg: Operation not permitted; following the journal instead"


def test_without_device_and_journal_the_counters_must_do_and_this_is_said(make: Make) -> None:
    device = Device()
    device.open_errors = [FileNotFoundError(errno.ENOENT, "No such file or directory")]
    choice, _ = choose_log(make(device), lambda: None, 0.0)
    assert (choice.log, choice.mode) == (None, "counters")
    assert "memory.events alone" in choice.reason


def test_a_device_that_can_be_read_is_chosen_and_nothing_read_is_thrown_away(make: Make) -> None:
    reader = make(Device(record(5)))
    choice, records = choose_log(reader, lambda: pytest.fail("the journal is not needed"), 0.0)
    assert (choice.log, choice.mode, [entry.seq for entry in records]) == (reader, "full", [5])
    log: KernelLog = reader
    assert log.health.is_open


def test_the_reader_needs_few_modules() -> None:
    heavy = ["asyncio", "subprocess", "json", "http", "logging", "email", "datetime", "urllib.request", "threading"]
    code = (
        "import sys; before = set(sys.modules); import slmguard.kernel_log.reader, slmguard.kernel_log.parser; "
        f"print(sorted(set({heavy!r}) & (set(sys.modules) - before)))"
    )
    shown = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert shown.stdout == "[]\n"


def real_reader(from_oldest: bool = False) -> KmsgReader:
    try:
        os.close(open_kmsg(KMSG_PATH))
    except OSError as error:
        pytest.skip(f"THIS MACHINE DOES NOT LET US READ {KMSG_PATH}: {error.strerror}")
    return KmsgReader(NoCursorStore(), boot_id=read_boot_id(), from_oldest=from_oldest)


def test_every_record_of_this_machines_ring_is_understood() -> None:
    reader = real_reader(from_oldest=True)
    try:
        records = []
        while batch := reader.read(0.0):
            records += batch
        assert records
        assert reader.health.malformed_records == 0
        assert reader.health.is_open
        assert all(entry.from_kernel and entry.time and entry.uptime_s is not None for entry in records)
        poller = select.poll()
        poller.register(reader.fileno(), select.POLLIN)
        assert poller.poll(0) in ([], [(reader.fileno(), select.POLLIN)])
    finally:
        reader.close()


def test_the_very_first_start_leaves_old_records_alone() -> None:
    reader = real_reader()
    try:
        assert all((entry.uptime_s or 0) > 1 for entry in reader.read(0.0))
        assert reader.health.lost_records == 0
    finally:
        reader.close()
