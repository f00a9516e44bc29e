"""How the lines of one OOM find each other: with lines missing, mixed, doubled, out of order."""

from __future__ import annotations

from dataclasses import replace

import pytest

from slmguard.kernel_log.event import Notice, OomEvent
from slmguard.kernel_log.framing import frame
from slmguard.kernel_log.parser import MAX_NOTICES, OomParser

TAIL = "total-vm:400kB, anon-rss:300kB, file-rss:20kB, shmem-rss:0kB"


def read(*lines: str, hold_records: int = 4000) -> tuple[list[OomEvent], list[Notice]]:
    parser = OomParser(hold_records)
    events: list[OomEvent] = []
    for number, line in enumerate(lines, 1):
        record = frame(line, number=number)
        if record is not None:
            events += parser.feed(record)
    events += parser.finish()
    return events, parser.take_notices()


def events(*lines: str) -> list[OomEvent]:
    return read(*lines)[0]


def invoked(comm: str = "asker", at: str = "") -> str:
    return f"{at}{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=2, oom_score_adj=0"


def summary(
    pid: int, comm: str = "victim", memcg: str = "/a.slice/b.service", limit: str | None = "/a.slice", at: str = ""
) -> str:
    scope = f"oom_memcg={limit}" if limit else "global_oom"
    constraint = "CONSTRAINT_MEMCG" if limit else "CONSTRAINT_NONE"
    return (
        f"{at}oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,{scope},"
        f"task_memcg={memcg},task={comm},pid={pid},uid=1000"
    )


def killed(pid: int, comm: str = "victim", reason: str = "Memory cgroup out of memory: ", at: str = "") -> str:
    return f"{at}{reason}Killed process {pid} ({comm}) {TAIL}"


def test_a_whole_oom_is_one_event_with_everything() -> None:
    (event,) = events(invoked(), summary(7), killed(7))
    assert (event.kind, event.victim_pid, event.victim_comm, event.constraint) == (
        "memcg",
        7,
        "victim",
        "CONSTRAINT_MEMCG",
    )
    assert (event.task_memcg, event.oom_memcg) == ("/a.slice/b.service", "/a.slice")
    assert (event.invoker_comm, event.gfp_order, event.uid) == ("asker", 2, 1000)
    assert (event.anon_rss_kb, event.file_rss_kb, event.shmem_rss_kb, event.total_vm_kb) == (300, 20, 0, 400)
    assert event.line == 3


def test_ten_kills_whose_headers_were_rate_limited_are_ten_events() -> None:
    found = events(invoked(), summary(1), *(killed(pid) for pid in range(1, 11)))
    assert [event.victim_pid for event in found] == list(range(1, 11))
    assert [event.invoker_comm for event in found] == ["asker"] + [None] * 9
    assert [event.task_memcg for event in found] == ["/a.slice/b.service"] + [None] * 9


def test_a_kill_without_its_header_does_not_take_the_header_of_another() -> None:
    found = events(invoked(), summary(1), killed(2), killed(1))
    assert [(event.victim_pid, event.invoker_comm, event.task_memcg) for event in found] == [
        (2, None, None),
        (1, "asker", "/a.slice/b.service"),
    ]


def test_an_old_header_is_not_taken_for_a_kill_hours_later() -> None:
    (event,) = events(invoked(at="[  100.000000] "), killed(7, at="[ 9000.000000] "))
    assert event.invoker_comm is None


def test_the_same_pid_from_unit_and_slice_and_an_echo_is_one_event() -> None:
    assert len(events(killed(7), killed(7))) == 1
    assert len(events(killed(7, at="Jul 19 05:19:24 board kernel: "), killed(7, at="[   12.345678] "))) == 1


def test_a_group_kill_is_one_event_for_each_process_and_the_first_is_not_doubled() -> None:
    group = "Tasks in /a.slice/b.service are going to be killed due to memory.oom.group set"
    found = events(invoked(), summary(7), killed(7), group, killed(7), killed(8, "other"), killed(9, "third"))
    assert [event.victim_pid for event in found] == [7, 8, 9]
    assert {event.invoker_comm for event in found} == {"asker"}
    assert {event.constraint for event in found} == {"CONSTRAINT_MEMCG"}
    assert {event.task_memcg for event in found} == {"/a.slice/b.service"}
    assert [event.group_memcg for event in found] == [None, "/a.slice/b.service", "/a.slice/b.service"]


def test_members_of_a_group_above_the_victims_cgroup_are_not_put_into_it() -> None:
    group = "Tasks in /a.slice are going to be killed due to memory.oom.group set"
    found = events(invoked(), summary(7), killed(7), group, killed(8, "other"))
    assert [event.task_memcg for event in found] == ["/a.slice/b.service", None]


def test_a_4_19_group_kill_without_reasons_is_still_of_its_cgroup() -> None:
    found = events(
        "Memory cgroup out of memory: Kill process 7 (a) score 900 or sacrifice child",
        killed(7, "a", reason=""),
        "Tasks in /x are going to be killed due to memory.oom.group set",
        killed(8, "b", reason=""),
    )
    assert [(event.victim_pid, event.kind) for event in found] == [(7, "memcg"), (8, "memcg")]


def test_the_sacrificed_child_is_the_victim_not_its_parent() -> None:
    (event,) = events(
        invoked(),
        "Task in /docker/1 killed as a result of limit of /docker",
        "Memory cgroup out of memory: Kill process 7 (parent) score 900 or sacrifice child",
        killed(8, "child", reason=""),
    )
    assert (event.victim_pid, event.victim_comm, event.kind) == (8, "child", "memcg")
    assert (event.task_memcg, event.oom_memcg, event.invoker_comm) == ("/docker/1", "/docker", "asker")


def test_without_any_reason_the_kind_is_unknown() -> None:
    (event,) = events(killed(7, reason=""))
    assert event.kind == "unknown"


def test_the_reason_of_one_kill_is_not_taken_for_the_next() -> None:
    choice = "Out of memory: Kill process 7 (a) score 900 or sacrifice child"
    assert [event.kind for event in events(choice, killed(7, reason=""), killed(8, reason=""))] == ["global", "unknown"]


def test_a_log_printed_newest_first_gives_the_same_attribution() -> None:
    (event,) = events(killed(7), summary(7), "[  7]  1000   7  400  300 40960 0 0 victim", invoked())
    assert (event.task_memcg, event.invoker_comm, event.gfp_order) == ("/a.slice/b.service", "asker", 2)
    (event,) = events(
        killed(7, reason=""), "Out of memory: Kill process 7 (victim) score 9 or sacrifice child", invoked()
    )
    assert (event.kind, event.invoker_comm) == ("global", "asker")


@pytest.mark.parametrize("clock", ["[ {}.000000] ", "Jul 19 05:19:{} board kernel: "])
def test_a_long_log_printed_newest_first_equals_the_same_log_printed_oldest_first(clock: str) -> None:
    lines = []
    for number in range(4):
        at = [clock.format(10 + number * 10 + second) for second in range(5)]
        lines += [
            invoked(f"asker {number}", at=at[0]),
            f"{at[1]}Task in /t{number} killed as a result of limit of /l{number}",
            f"{at[2]}Memory cgroup out of memory: Kill process {7 + number} (v) score 9 or sacrifice child",
            killed(7 + number, "v", reason="", at=at[3]),
        ]
        lines += [invoked(f"other {number}", at=at[4]), killed(70 + number, "w", at=clock.format(15 + number * 10))]
    forward = [replace(event, line=0) for event in events(*lines)]
    assert [event.invoker_comm for event in forward[:2]] == ["asker 0", "other 0"]
    assert [replace(event, line=0) for event in events(*reversed(lines))] == forward[::-1]


def test_a_victim_that_the_kernel_named_is_an_event_even_if_its_kill_line_is_lost() -> None:
    found, notices = read(invoked(), summary(7), invoked("second"), summary(8), killed(8))
    assert [(event.victim_pid, event.invoker_comm, event.anon_rss_kb) for event in found] == [
        (7, "asker", None),
        (8, "second", 300),
    ]
    assert [notice.kind for notice in notices] == ["cut_record"]


def test_an_intention_to_kill_is_not_a_kill() -> None:
    found, notices = read(invoked(), "Out of memory: Kill process 7 (parent) score 900 or sacrifice child", "next line")
    assert found == []
    assert [notice.kind for notice in notices] == ["cut_record"]


def test_the_output_of_a_search_for_out_of_memory_gives_the_chosen_processes() -> None:
    prefix = "Jul 19 05:19:24 board kernel: Out of memory: "
    found, notices = read(
        f"{prefix}Kill process 7 (a) score 9 or sacrifice child",
        f"{prefix}Kill process 8 (b) score 9 or sacrifice child",
    )
    assert [(event.victim_pid, event.kind) for event in found] == [(7, "global"), (8, "global")]
    assert [notice.kind for notice in notices] == ["cut_record", "cut_record"]


def test_a_victim_that_was_exiting_anyway_is_no_kill() -> None:
    spared = "Memory cgroup out of memory: OOM victim 7 (victim) is already exiting. Skip killing the task"
    assert events(invoked(), summary(7), spared) == []


def test_a_summary_in_pieces_is_put_together() -> None:
    whole = summary(7)
    at = whole.index(",oom_memcg=")
    (event,) = events(invoked(), whole[:at], whole[at:], killed(7))
    assert (event.constraint, event.task_memcg, event.uid) == ("CONSTRAINT_MEMCG", "/a.slice/b.service", 1000)


def test_a_name_cut_in_the_kill_line_is_whole_in_the_summary() -> None:
    (event,) = events(summary(7, "llama-server"), "Memory cgroup out of memory: Killed process 7 (llama-s")
    assert (event.victim_pid, event.victim_comm) == (7, "llama-server")


def test_two_ooms_of_an_old_kernel_at_the_same_time_are_told_apart_by_name() -> None:
    found = events(
        invoked("one", at="[  1.000000] "),
        invoked("two", at="[  1.000100] "),
        "[  1.000200] Memory cgroup out of memory: Kill process 7 (one) score 900 or sacrifice child",
        "[  1.000300] Memory cgroup out of memory: Kill process 8 (two) score 900 or sacrifice child",
        killed(8, "two", reason="", at="[  1.000400] "),
        killed(7, "one", reason="", at="[  1.000500] "),
    )
    assert [(event.victim_pid, event.invoker_comm, event.kind) for event in found] == [
        (8, "two", "memcg"),
        (7, "one", "memcg"),
    ]


def test_no_victim_and_its_panic_are_one_event() -> None:
    found = events(
        invoked(),
        "Out of memory and no killable processes...",
        "Kernel panic - not syncing: System is deadlocked on memory",
    )
    assert [(event.kind, event.invoker_comm, event.victim_pid) for event in found] == [("no_victim", "asker", None)]
    assert [
        event.kind for event in events("Kernel panic - not syncing: Out of memory and no killable processes...")
    ] == ["no_victim"]


@pytest.mark.parametrize(
    "text",
    [
        "Out of memory: system-wide panic_on_oom is enabled",
        "Out of memory: compulsory panic_on_oom is enabled",
        "out of memory. panic_on_oom is selected.",
    ],
)
def test_a_panic_on_oom_names_no_victim(text: str) -> None:
    found = events(
        invoked(), f"Kernel panic - not syncing: {text}", f"---[ end Kernel panic - not syncing: {text} ]---"
    )
    assert [(event.kind, event.invoker_comm, event.victim_pid) for event in found] == [("panic", "asker", None)]


def test_the_same_pid_after_a_reboot_is_another_kill() -> None:
    assert len(events(killed(7), "Linux version 6.1.0", killed(7))) == 2
    assert len(events(killed(7), "-- Boot 0123456789abcdef --", killed(7))) == 2
    assert len(events(killed(7, at="[ 9000.000000] "), killed(7, at="[   12.345678] "))) == 2


def test_the_same_pid_hours_later_is_another_kill() -> None:
    assert len(events(killed(7, at="[  100.000000] "), killed(7, at="[ 9000.000000] "))) == 2
    at = "Jul {} {} board kernel: "
    assert len(events(killed(7, at=at.format(19, "05:19:24")), killed(7, at=at.format(19, "09:19:24")))) == 2
    assert len(events(killed(7, at=at.format(19, "23:59:59")), killed(7, at=at.format(20, "00:00:01")))) == 1


def test_the_live_log_gives_an_event_with_its_kill_line() -> None:
    parser = OomParser(hold_records=0)
    counts = []
    for line in (invoked(), summary(7), killed(7), killed(8)):
        record = frame(line)
        assert record is not None
        counts.append(len(parser.feed(record)))
    assert counts == [0, 0, 1, 1]
    assert parser.finish() == []


def test_failed_allocations_are_notices_of_their_own_kind() -> None:
    lines = {
        "page_allocation_failure": "adb: page allocation failure: order:8, mode:0x24040c0",
        "cma_failure": "cma: cma_alloc: reserved: alloc failed, req-size: 3548 pages, ret: -12",
        "nvmap_failure": "NvMapMemAllocInternalTagged: 1075072515 error 12",
        "nvrm_failure": "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",
        "rknpu_failure": "RKNPU: rknpu_gem_object_create: failed to allocate memory, size: 4096",
        "swiotlb_full": "mmc0: swiotlb buffer is full (sz: 4096 bytes), total 32768 (slots), used 32768 (slots)",
        "tcp_memory": "TCP: out of memory -- consider tuning tcp_mem",
        "fault_without_kill": "Huh VM_FAULT_OOM leaked out to the #PF handler. Retrying PF",
        "vmalloc_failure": "vmap allocation for size 4198400 failed: use vmalloc=<size> to increase size.",
    }
    found, notices = read(*(f"[  12.345678] {line}" for line in lines.values()))
    assert found == []
    assert [notice.kind for notice in notices] == list(lines)


def test_driver_libraries_that_print_to_a_log_or_terminal_are_notices_too() -> None:
    found, notices = read(
        "E RKNN: [09:40:45.140] failed to allocate handle, ret: -1, errno: 14, errstr: Bad address",
        "E RKNN: [09:40:45.140] failed to malloc npu memory, size: 3085697024, flags: 0x2",
        "2022-07-06 15:37:03.100 12848-12876 E/RKNN: failed to malloc npu memory!, size: 59187712, flags: 0x2",
        "09-14 08:45:03.277  6912  6912 E RKNN    : failed to malloc npu memory!, size: 6421360, flags: 0xa",
        "01-01 04:02:47.025     0     0 W RKNPU fde40000.npu: swiotlb buffer is full (sz: 6422528 bytes)",
        "Jul 19 05:19:24 board ollama[7]: NvMapMemAllocInternalTagged: 1075072515 error 12",
    )
    assert found == []
    assert [notice.kind for notice in notices] == ["rknpu_failure"] * 4 + ["swiotlb_full", "nvmap_failure"]


def test_programs_that_speak_of_oom_are_mentions() -> None:
    found, notices = read(
        "Feb 09 13:35:56 board systemd[1]: 100.scope: A process of this unit has been killed by the OOM killer.",
        "Feb 09 13:35:56 board ollama[7]: CUDA error: out of memory",
        "Feb 09 13:35:56 board npd[7]: " + killed(7),
    )
    assert found == []
    assert [notice.kind for notice in notices] == ["userspace_mention"] * 3


def test_a_flood_of_notices_keeps_the_newest_and_counts_the_rest() -> None:
    parser = OomParser()
    for _ in range(MAX_NOTICES + 10):
        record = frame("TCP: out of memory -- consider tuning tcp_mem")
        assert record is not None
        parser.feed(record)
    assert (len(parser.take_notices()), parser.dropped_notices) == (MAX_NOTICES, 10)


def test_a_name_before_a_cut_is_still_a_name() -> None:
    for rest in (") total", ") ...", ") total-vm", "), UID"):
        (event,) = events(f"Killed process 7 (java{rest}")
        assert (event.victim_pid, event.victim_comm) == (7, "java")


def test_a_summary_broken_by_mail_is_read() -> None:
    broken = (
        summary(7)
        .replace(",cpuset", ", cpuset")
        .replace(",oom_memcg", ", oom_memcg")
        .replace(",task_memcg", ",  task_memcg")
    )
    (event,) = events(broken, killed(7))
    assert (event.task_memcg, event.oom_memcg) == ("/a.slice/b.service", "/a.slice")
