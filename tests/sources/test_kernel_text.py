from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.sources import kernel_text
from slmguard.sources.cgroup import kernel_unreclaimable, parse_events
from slmguard.sources.kernel_text import (
    parse_colon_rows,
    parse_keyed,
    parse_limit,
    parse_number,
    parse_pids,
    printable,
)
from slmguard.sources.pressure import parse_pressure
from slmguard.sources.processes import parse_stat, parse_status

Sample = Callable[[str], bytes]

PARSERS: list[Callable[[bytes], object]] = [
    parse_number,
    parse_limit,
    parse_keyed,
    parse_colon_rows,
    parse_pids,
    parse_pressure,
    parse_events,
    parse_stat,
    lambda data: parse_status(1, data),
    lambda data: kernel_unreclaimable(parse_keyed(data)),
]


@pytest.mark.parametrize("parser", PARSERS)
@given(data=st.binary(max_size=300) | st.text(alphabet="0123456789 :=kBtoalRAsn\n)(", max_size=120).map(str.encode))
def test_no_bytes_whatsoever_make_a_parser_raise(parser: Callable[[bytes], object], data: bytes) -> None:
    assert repr(parser(data)) == repr(parser(data)), "and what it reads depends on the bytes alone"


KEYS = st.from_regex(rb"[a-z_]{1,20}", fullmatch=True)
JUNK = st.lists(st.binary(max_size=30).filter(lambda row: b"\n" not in row and b" " not in row), max_size=5)


@given(rows=st.dictionaries(KEYS, st.integers(0, 2**64 - 1), max_size=20), junk=JUNK)
def test_every_row_of_key_and_number_is_found_between_any_junk(rows: dict[bytes, int], junk: list[bytes]) -> None:
    lines = [*junk, *(b"%s %d" % row for row in rows.items()), *junk]
    assert parse_keyed(b"".join(line + b"\n" for line in lines)) == rows


@given(data=st.dictionaries(KEYS, st.integers(0, 2**64 - 1), min_size=1, max_size=8), cut=st.integers(1, 400))
def test_a_truncated_file_never_gives_a_wrong_number(data: dict[bytes, int], cut: int) -> None:
    whole = b"".join(b"%s %d\n" % row for row in data.items())
    assert parse_keyed(whole[: -min(cut, len(whole))]).items() <= data.items()


@given(rows=st.dictionaries(st.from_regex(rb"[A-Z][A-Za-z()_]{0,15}", fullmatch=True), st.integers(0, 2**40)))
def test_kb_rows_become_bytes(rows: dict[bytes, int]) -> None:
    text = b"".join(b"%s:  %8d kB\n" % row for row in rows.items())
    assert parse_colon_rows(text) == {key: number * 1024 for key, number in rows.items()}


def test_the_word_max_and_the_largest_counter_are_no_limit(sample: Sample) -> None:
    assert parse_limit(sample("memory.max.lxc-unlimited.txt")) is None
    assert parse_limit(b"9223372036854771712\n") is None
    assert parse_limit(b"18446744073709551615\n") is None
    assert parse_limit(sample("memory.max.postgres.txt")) == 402653184
    assert parse_limit(sample("memory.max.user-service-512M.txt")) == 536870912
    assert parse_limit(b"0\n") == 0


def test_a_number_is_ascii_digits_and_nothing_else() -> None:
    assert parse_number(None) is None
    for text in (b"", b"\n", b"-1\n", b"1_000\n", b"0x10\n", b"12 13\n", b"9" * 5000):
        assert parse_number(text) is None
    assert parse_number(b"549158912\n") == 549158912


def test_memory_stat_of_a_6_x_kernel_with_zswap(sample: Sample) -> None:
    stat = parse_keyed(sample("memory.stat.6x-zswap-fields.txt"))
    assert stat[b"anon"] == 9202163712
    assert stat[b"pgscan"] == 410384
    assert stat[b"workingset_refault_file"] == 21412
    assert kernel_unreclaimable(stat) == 446648320 - 255575264 + 8192


def test_memory_stat_before_the_kernel_row_adds_up_its_parts(sample: Sample) -> None:
    stat = parse_keyed(sample("memory.stat.runc-pod.txt"))
    assert b"kernel" not in stat
    assert kernel_unreclaimable(stat) == 358966048 - 348866240 + 7012352 + 8867840 + 2445520 + 40960


def test_memory_stat_with_six_rows_is_enough(sample: Sample) -> None:
    stat = parse_keyed(sample("memory.stat.cap6g-pagecache.txt"))
    assert stat[b"anon"] == 1800765440
    assert stat[b"inactive_file"] == 2838687744
    assert kernel_unreclaimable(stat) == 632836096


def test_reclaimable_slab_larger_than_all_kernel_memory_gives_zero() -> None:
    assert kernel_unreclaimable({b"kernel": 1, b"slab_reclaimable": 5}) == 0


def test_events_of_a_killed_service_and_of_one_full_of_page_cache(sample: Sample) -> None:
    killed = parse_events(sample("memory.events.user-service-oomkill.txt"))
    assert killed is not None
    assert (killed.max, killed.oom, killed.oom_kill) == (35, 1, 1)
    cache = parse_events(sample("memory.events.cap6g-pagecache.txt"))
    assert cache is not None
    assert (cache.high, cache.max, cache.oom_kill, cache.oom_group_kill) == (0, 2685, 0, 0)


def test_events_that_are_absent_or_empty_are_none_not_zero() -> None:
    assert parse_events(None) is None
    assert parse_events(b"") is None


def test_pressure_totals(sample: Sample) -> None:
    throttled = parse_pressure(sample("memory.pressure.memhigh-throttled.txt"))
    assert (throttled.some_us, throttled.full_us) == (5702440903, 5702116959)
    single = parse_pressure(sample("memory.pressure.testmem-high.txt"))
    assert single.full_us == 107974404


def test_meminfo_of_a_camera_and_of_a_terabyte_host(sample: Sample) -> None:
    camera = parse_colon_rows(sample("meminfo.32MB-camera-tail.txt"))
    assert camera[b"CmaFree"] == 1992 * 1024
    assert camera[b"Inactive(file)"] == 3524 * 1024
    assert b"MemTotal" not in camera
    host = parse_colon_rows(sample("meminfo.container-sees-host-1T.txt"))
    assert host[b"MemTotal"] == 1056450248 * 1024
    assert parse_colon_rows(sample("meminfo.imx8mp-cma704M-grep.txt"))[b"CmaFree"] == 715412 * 1024


def test_a_process_named_like_a_row_of_its_status_is_not_believed() -> None:
    status = b"Name:\tRssAnon: 9 kB\nVmRSS:\t     300 kB\nRssAnon:\t     100 kB\nRssFile:\t     200 kB\n"
    figures = parse_status(5, status)
    assert figures is not None
    assert (figures.anon_bytes, figures.file_bytes) == (100 * 1024, 200 * 1024)


def test_a_kernel_that_does_not_split_rss_gives_all_as_anonymous_and_says_so() -> None:
    figures = parse_status(5, b"Name:\tx\nVmRSS:\t     300 kB\n")
    assert figures is not None
    assert figures.anon_bytes == 300 * 1024
    assert not figures.split_known


def test_a_zombie_has_no_memory_figures() -> None:
    assert parse_status(5, b"Name:\tx\nState:\tZ (zombie)\n") is None


def test_a_process_name_with_brackets_does_not_shift_the_fields() -> None:
    fields = b" ".join(b"%d" % number for number in range(1, 40))
    stat = parse_stat(b"77 (a) S 1) b) R " + fields)
    assert stat is not None
    assert (stat.state, stat.parent_pid, stat.major_faults, stat.start_ticks) == ("R", 1, 9, 19)


def test_pages_of_16_kib_are_four_of_4_kib(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_text, "_PAGE_BYTES", 16384)
    assert kernel_text.in_4k_pages(3) == 12
    assert kernel_text.in_4k_pages(None) is None


def test_printable_escapes_what_would_move_the_cursor_and_bounds_the_length() -> None:
    assert printable("a\x1b[31mb\n") == "a\\x1b[31mb\\n"
    assert printable("x" * 300) == "x" * 200 + "…"
