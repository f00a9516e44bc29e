"""Each message of the OOM killer by itself, as the kernels print it."""

from __future__ import annotations

from typing import Any

import pytest

from slmguard.kernel_log.messages import parse_chosen, parse_invoked, parse_killed, parse_summary

TAIL = "total-vm:4kB, anon-rss:3kB, file-rss:2kB"
SIZES = {"total_vm_kb": 4, "anon_rss_kb": 3, "file_rss_kb": 2}

KILL_LINES: list[tuple[str, dict[str, Any]]] = [
    ("Out of Memory: Killed process 7 (a).", {"kind": "global", "sizes": {}}),
    ("Out of memory: Killed process 7 (a).", {"kind": "global", "sizes": {}}),
    (f"Killed process 7 (a) {TAIL}", {"kind": None, "sizes": SIZES}),
    ("Killed process 7 (a) vsz:4kB, anon-rss:3kB, file-rss:2kB", {"kind": None, "sizes": SIZES}),
    (f"Killed process 7, UID 0, (a) {TAIL}", {"kind": None, "uid": 0, "sizes": SIZES}),
    (f"Killed process 7 (a), UID 1000, {TAIL}", {"kind": None, "uid": 1000, "sizes": SIZES}),
    (f"Out of memory: Killed process 7, UID 500, (a) {TAIL}", {"kind": "global", "uid": 500, "sizes": SIZES}),
    (f"Killed process 7 (a) {TAIL}, shmem-rss:1kB", {"kind": None, "sizes": SIZES | {"shmem_rss_kb": 1}}),
    (f"Memory cgroup out of memory: Killed process 7 (a) {TAIL}", {"kind": "memcg", "sizes": SIZES}),
    (f"Out of memory (oom_kill_allocating_task): Killed process 7 (a) {TAIL}", {"kind": "global", "sizes": SIZES}),
    (
        f"Out of memory: Killed process 7 (a) {TAIL}, shmem-rss:1kB, UID:5 pgtables:9kB oom_score_adj:-300",
        {"kind": "global", "uid": 5, "oom_score_adj": -300, "sizes": SIZES | {"shmem_rss_kb": 1, "pgtables_kb": 9}},
    ),
    (
        f"Memory cgroup out of memory: Killed process 7 (a) {TAIL}, UID:995",
        {"kind": "memcg", "uid": 995, "sizes": SIZES},
    ),
    (
        "Out of memory in UB 101: OOM killed process 7 (a) score 0 vm:4kB, rss:1kB, swap:1kB",
        {"kind": "memcg", "sizes": {"total_vm_kb": 4}},
    ),
]


@pytest.mark.parametrize(("line", "expected"), KILL_LINES, ids=[line for line, _ in KILL_LINES])
def test_every_kernels_kill_line_is_understood(line: str, expected: dict[str, Any]) -> None:
    killed = parse_killed(line)
    assert killed is not None
    assert (killed.pid, killed.comm, killed.comm_is_cut) == (7, "a", False)
    assert killed.kind == expected["kind"]
    assert killed.sizes == expected["sizes"]
    assert killed.uid == expected.get("uid")
    assert killed.oom_score_adj == expected.get("oom_score_adj")


HOSTILE = [
    "(sd-pam)",
    "a) total-vm:1kB",
    ") (",
    "llama (srv) x",
    "VLLM::EngineCor",
    "Killed process ",
    "x, UID 0, (y)",
    "a, UID:0",
    "\x1b[31mred",
    "a\nb",
    "😀😀😀\ufffd",
    ",pid=1,uid=0",
    "a,task=b",
    "",
    " ",
    ")",
    "((((((((((((((("[:15],
    ") score 0",
    "x).",
]


@pytest.mark.parametrize("comm", HOSTILE, ids=repr)
def test_a_name_cannot_imitate_what_follows_it(comm: str) -> None:
    killed = parse_killed(
        f"Out of memory: Killed process 7 ({comm}) {TAIL}, shmem-rss:1kB, UID:5 pgtables:9kB oom_score_adj:6"
    )
    assert killed is not None
    assert (killed.pid, killed.comm, killed.uid, killed.oom_score_adj) == (7, comm, 5, 6)
    assert killed.sizes["total_vm_kb"] == 4
    chosen = parse_chosen(f"Out of memory: Kill process 7 ({comm}) score 900 or sacrifice child")
    assert chosen is not None
    assert (chosen.pid, chosen.comm) == (7, comm)


@pytest.mark.parametrize("comm", HOSTILE, ids=repr)
def test_a_name_cannot_imitate_the_fields_of_the_summary(comm: str) -> None:
    summary = parse_summary(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=0,2,cpuset=a,b,mems_allowed=0,2-3,"
        f"oom_memcg=/x,y.slice,task_memcg=/x,y.slice/z.service,task={comm},pid=7,uid=5"
    )
    assert summary is not None
    assert (summary.pid, summary.uid, summary.constraint) == (7, 5, "CONSTRAINT_MEMCG")
    assert summary.oom_memcg == "/x,y.slice"
    assert summary.task_memcg(comm) == "/x,y.slice/z.service"


@pytest.mark.parametrize(
    "line",
    [
        "Killed process",
        "Killed process 12",
        "Killed process 1835561760 (x) total-vm:1kB",
        "Killed process 0 (x) total-vm:1kB",
        "process 7 (x) was killed",
        "oom_reaper: reaped process 7 (a), now anon-rss:0kB, file-rss:0kB, shmem-rss:0kB",
        "Kill process 7 (a) sharing same memory",
        "x Killed process 7 (a) total-vm:1kB",
    ],
)
def test_other_lines_are_no_kills(line: str) -> None:
    assert parse_killed(line) is None
    assert parse_chosen(line) is None


def test_two_kill_lines_run_together_are_read_as_the_first() -> None:
    killed = parse_killed(f"Killed process 7 (a) {TAIL}Killed process 8 (b) {TAIL}")
    assert killed is not None
    assert (killed.pid, killed.comm) == (7, "a")


def test_garbage_at_the_end_of_a_cut_line_is_no_number() -> None:
    killed = parse_killed(
        "Out of memory: Killed process 7 (a) total-vm:4kB, anon-rss:25, UID:0 pgtables:72kB oom_score_ad0"
    )
    assert killed is not None
    assert (killed.oom_score_adj, killed.sizes) == (None, {"total_vm_kb": 4, "pgtables_kb": 72})


@pytest.mark.parametrize(
    ("line", "comm", "order"),
    [
        ("app.out invoked oom-killer: gfp_mask=0x200da, order=0, oom_adj=0, oom_score_adj=0", "app.out", 0),
        ("app.out invoked oom-killer: gfp_mask=0x280d2, order=3, oomkilladj=0", "app.out", 3),
        (
            "python3 invoked oom-killer: gfp_mask=0x15080c0(GFP_KERNEL|__GFP_ZERO), nodemask=(null),  order=1, x",
            "python3",
            1,
        ),
        (
            "MCR 0 interpret invoked oom-killer: gfp_mask=0x1100cca(GFP_HIGHUSER_MOVABLE), order=0, x",
            "MCR 0 interpret",
            0,
        ),
        ("kworker/0:1 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=-1, oom_score_adj=0", "kworker/0:1", -1),
        ("a invoked oom-killer: gfp_mask=0x15080c0(GFP_KE", "a", None),
        ("oom-killer: gfp_mask=0xd0", None, None),
    ],
)
def test_the_first_line_names_who_asked_for_how_much(line: str, comm: str | None, order: int | None) -> None:
    invoked = parse_invoked(line)
    assert invoked is not None
    assert (invoked.comm, invoked.order) == (comm, order)


@pytest.mark.parametrize(
    ("constraint", "scope", "kind"),
    [
        ("CONSTRAINT_NONE", "global_oom", "global"),
        ("CONSTRAINT_CPUSET", "global_oom", "global"),
        ("CONSTRAINT_MEMORY_POLICY", "global_oom", "global"),
        ("CONSTRAINT_MEMCG", "oom_memcg=/a", "memcg"),
        ("CONSTRAINT_NONE", "oom_memcg=/a", "memcg"),
    ],
)
def test_the_scope_decides_the_kind(constraint: str, scope: str, kind: str) -> None:
    rest = "task_memcg=/a,task=x,pid=1,uid=0"
    line = f"oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,{scope},{rest}"
    summary = parse_summary(line)
    assert summary is not None
    assert (summary.kind, summary.constraint) == (kind, constraint)


def test_a_summary_cut_anywhere_gives_no_wrong_value() -> None:
    line = (
        "oom-kill:constraint=CONSTRAINT_MEMORY_POLICY,nodemask=0,cpuset=/,mems_allowed=0,"
        "oom_memcg=/a.slice,task_memcg=/a.slice/b.service,task=x,pid=4711,uid=-2"
    )
    for end in range(len("oom-kill:constraint="), len(line)):
        summary = parse_summary(line[:end])
        assert summary is not None
        assert summary.constraint in (None, "CONSTRAINT_MEMORY_POLICY")
        assert summary.oom_memcg in (None, "/a.slice")
        assert summary.task_memcg(None) in (None, "/a.slice/b.service")
        assert summary.pid in (None, 4711)
        assert summary.uid in (None, -2)
