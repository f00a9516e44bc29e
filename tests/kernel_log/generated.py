"""OOM reports made by a model of the kernel, and the prefixes that logs put before them: for the property tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import strategies as st

Prefix = Callable[[int, str], str]


def escaped(text: str) -> str:
    """As /dev/kmsg escapes."""
    return "".join(
        chr(byte) if 32 <= byte < 127 and byte != 0x5C else f"\\x{byte:02x}" for byte in text.encode("utf-8", "replace")
    )


PREFIXES: dict[str, Prefix] = {
    "kmsg": lambda number, text: f"3,{number},{7_000_000 + number},-;{escaped(text)}",
    "kmsg with caller": lambda number, text: f"3,{number},{7_000_000 + number},-,caller=T77;{escaped(text)}",
    "dmesg": lambda number, text: f"[    7.{number:06d}] {text}",
    "dmesg bare": lambda _, text: text,
    "dmesg caller": lambda number, text: f"[    7.{number:06d}][  T77] {text}",
    "dmesg -T": lambda _, text: f"[Wed Apr 26 15:46:13 2023] {text}",
    "dmesg -T zh": lambda _, text: f"[五 5月 15 17:19:17 2026] {text}",
    "console": lambda number, text: f"<3>[    7.{number:06d}] {text}",
    "journal": lambda _, text: f"Jul 19 05:19:24 board kernel: {text}",
    "journal iso": lambda _, text: f"2026-09-13T07:47:06-0400 board kernel: {text}",
    "journal precise": lambda number, text: f"Jul 19 05:19:24.{number:06d} board kernel: {text}",
    "journal ru": lambda _, text: f"апр 28 01:23:30 board kernel: {text}",
    "syslog": lambda number, text: f"Jul 19 05:19:24 board kernel: [    7.{number:06d}] {text}",
    "rfc5424": lambda _, text: f"<3>1 2023-05-06T10:00:00.123Z board kernel - - - {text}",
    "netconsole": lambda number, text: f"2016-12-17 21:37:07 192.0.2.23:6665 [    7.{number:06d}] {text}",
    "logcat": lambda _, text: f"05-06 10:00:00.123     0     0 E         : {text}",
}


@dataclass(frozen=True)
class Kill:
    """What really happened."""

    pid: int
    comm: str
    uid: int
    adj: int
    anon_kb: int
    kind: str
    task_memcg: str
    oom_memcg: str
    invoker: str


def lines_of(kill: Kill, style: str) -> list[str]:
    """What kernels of three generations print of it."""
    scope = f"oom_memcg={kill.oom_memcg}" if kill.kind == "memcg" else "global_oom"
    constraint = "CONSTRAINT_MEMCG" if kill.kind == "memcg" else "CONSTRAINT_NONE"
    reason = "Memory cgroup out of memory" if kill.kind == "memcg" else "Out of memory"
    sizes = f"total-vm:{kill.anon_kb + 9}kB, anon-rss:{kill.anon_kb}kB, file-rss:8kB"
    invoked = f"{kill.invoker} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=77"
    if style == "3.x":
        limit = (
            [f"Task in {kill.task_memcg} killed as a result of limit of {kill.oom_memcg}"]
            if kill.kind == "memcg"
            else []
        )
        return [
            invoked,
            *limit,
            f"[ {kill.pid}]  {kill.uid} {kill.pid}  400  300  12  0  {kill.adj} {kill.comm}",
            f"{reason}: Kill process {kill.pid} ({kill.comm}) score 900 or sacrifice child",
            f"Killed process {kill.pid} ({kill.comm}) {sizes}",
        ]
    summary = (
        f"oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,{scope},"
        f"task_memcg={kill.task_memcg},task={kill.comm},pid={kill.pid},uid={kill.uid}"
    )
    tail = f", shmem-rss:0kB, UID:{kill.uid} pgtables:4kB oom_score_adj:{kill.adj}"
    end = f"{reason}: Killed process {kill.pid} ({kill.comm}) {sizes}{tail}"
    return [end] if style == "rate-limited" else [invoked, "Mem-Info:", summary, end]


STYLES = ("3.x", "6.x", "rate-limited")


def comms(*, for_kmsg: bool) -> st.SearchStrategy[str]:
    """Names of at most 15 bytes; a text log cannot carry control characters, the kernel's device can."""
    spiky = st.sampled_from(
        [*")( ,:=[]<>;\\/_-", "total-vm:", "pid=", "uid=", "kB", ", UID 0", "task=", "score ", "é", "五"]
    )
    text_only = st.characters(min_codepoint=32, max_codepoint=0x2FFF, exclude_categories=["C", "Z"])
    anything = st.characters(min_codepoint=1, max_codepoint=0x2FFF, exclude_categories=["Cs"])
    plain = st.text(anything if for_kmsg else text_only, max_size=8)
    return st.lists(spiky | plain, max_size=6).map(lambda parts: cut("".join(parts)))


def cut(name: str) -> str:
    return name.encode()[:15].decode("utf-8", "ignore").replace("\0", "")


PATHS = st.lists(st.text("abz019.@_\\:-", min_size=1, max_size=12), min_size=1, max_size=4).map(
    lambda parts: "/" + "/".join(parts)
)


def kills(*, for_kmsg: bool = False) -> st.SearchStrategy[Kill]:
    return st.builds(
        Kill,
        pid=st.integers(2, 4_194_304),
        comm=comms(for_kmsg=for_kmsg),
        uid=st.integers(0, 2**31 - 1),
        adj=st.integers(-1000, 1000),
        anon_kb=st.integers(0, 10**9),
        kind=st.sampled_from(["memcg", "global"]),
        task_memcg=PATHS,
        oom_memcg=PATHS,
        invoker=st.sampled_from(["llama-server", "CPU 0/KVM", "MCR 0 interpret", "kworker/0:1", "a: b", "(sd-pam)"]),
    )
