"""Events as a person reads them, and the kernel's own words kept for the report."""

from __future__ import annotations

import pytest

from slmguard.kernel_log.event import OomEvent
from slmguard.kernel_log.excerpt import Excerpt
from slmguard.kernel_log.record import Record
from slmguard.kernel_log.task_table import TaskRow, parse_task_table
from slmguard.kernel_log.wording import details, headline, printable, size


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (OomEvent("global", 7, "a"), "killed a (pid 7): the host ran out of memory"),
        (OomEvent("memcg", 7, "a", uid=0), "killed a (pid 7, uid 0): a memory limit was reached"),
        (OomEvent("memcg", 7, "a", oom_memcg="/x", task_memcg="/x"), "killed a (pid 7): the limit of /x was reached"),
        (
            OomEvent("memcg", 7, "a", oom_memcg="/x", task_memcg="/x/y"),
            "killed a (pid 7): the limit of /x, above its own cgroup, was reached",
        ),
        (OomEvent("unknown", 7, None), "killed a process without a name (pid 7): the log does not say why"),
        (OomEvent("android_lmk", 7, "a"), "killed a (pid 7): Android's low memory killer chose it"),
        (OomEvent("no_victim"), "out of memory, and no process could be killed"),
        (OomEvent("panic"), "the kernel panicked instead of killing (vm.panic_on_oom)"),
    ],
)
def test_the_headline_says_who_and_whose_limit(event: OomEvent, text: str) -> None:
    assert headline(event) == text


def test_names_and_paths_are_escaped_wherever_they_appear() -> None:
    event = OomEvent("memcg", 7, "\x1b", oom_memcg="/\n", task_memcg="/\t", invoker_comm="\r", group_memcg="/\x7f")
    assert "".join([headline(event), *details(event)]).isprintable()
    assert printable("a\x1b\u202e\U000e0001b é 五") == r"a\x1b\u202e\U000e0001b é 五"


def test_sizes_are_in_the_unit_a_person_would_choose() -> None:
    assert [size(kb) for kb in (0, 1023, 1024, 1024 * 1024)] == ["0 kB", "1023 kB", "1.0 MiB", "1.0 GiB"]


def test_the_task_table_of_6_x_is_read_by_its_header() -> None:
    lines = [
        "Tasks state (memory values in pages):",
        "[  pid  ]   uid  tgid total_vm  rss rss_anon rss_file rss_shmem pgtables_bytes swapents oom_score_adj name",
        "[  31331]     0 31331  8623  7096  6081  1015  0   110592        3             -5 a) total-vm:1kB",
        "[2191451] 101000 2191451   562282    30353    30289       64   0   724992     3417   0 [celeryd: celer",
        "[   2379]     0  2379      970   cut",
        "oom-kill:constraint=CONSTRAINT_NONE",
    ]
    assert parse_task_table(lines) == [
        TaskRow(31331, "a) total-vm:1kB", 0, 28384, 24324, 12, -5),
        TaskRow(2191451, "[celeryd: celer", 101000, 121412, 121156, 13668, 0),
    ]


def test_the_task_table_of_3_x_has_other_columns_and_pages_may_be_64_kb() -> None:
    lines = [
        "[ pid ]   uid  tgid total_vm      rss nr_ptes swapents oom_score_adj name",
        "[28438]     0 28438  5063909   119961    1661   136409          -998 java",
    ]
    assert parse_task_table(lines, page_kb=64) == [TaskRow(28438, "java", 0, 7677504, None, 8730176, -998)]


def test_rows_without_a_header_are_not_guessed_at() -> None:
    assert parse_task_table(["[ 1801]     0  1801    58195      359    81920      437             0 ibus-daemon"]) == []


def test_an_excerpt_begins_with_its_oom_and_is_bounded() -> None:
    excerpt = Excerpt(max_records=5)
    for text in (
        "old",
        "a invoked oom-killer: gfp_mask=0x0, order=0",
        "b invoked oom-killer: gfp_mask=0x0, order=0",
        "x" * 1000,
    ):
        excerpt.add(Record(text, "kmsg"))
    excerpt.add(Record("spoof", "kmsg", from_kernel=False))
    assert excerpt.since_invocation() == ["b invoked oom-killer: gfp_mask=0x0, order=0", "x" * 300]
    for number in range(10):
        excerpt.add(Record(str(number), "kmsg"))
    assert excerpt.since_invocation() == ["5", "6", "7", "8", "9"]
