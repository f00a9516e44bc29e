"""The single messages that the OOM killer prints, from 2.6 to today.

Where the texts differ by version, as read off kernel sources and logs:
2.6       `Out of Memory: Killed process N (comm).`
2.6.32 EL `Killed process N, UID n, (comm) total-vm:…`, EL 7 `Killed process N (comm), UID n, total-vm:…`
< 5.1     `Out of memory: Kill process N (comm) score S or sacrifice child`, then `Killed process M (comm) total-vm:…`
>= 5.1    `Out of memory: Killed process N (comm) total-vm:…, UID:n pgtables:…kB oom_score_adj:n` (tail grew over time)
>= 5.0    `oom-kill:constraint=…,oom_memcg=…,task_memcg=…,task=comm,pid=N,uid=n` before it
A comm is chosen by whoever runs the program: it may hold blanks, brackets, colons or an imitation of what follows it.
The kernel keeps 15 bytes of it, which is what separates the real end from an imitated one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slmguard.kernel_log.event import GLOBAL, MEMCG

COMM_BYTES = 15
# A byte that dmesg or syslog escaped takes up to four characters (\x1b, #033).
ESCAPED_COMM_CHARS = 4 * COMM_BYTES
PID_MAX = 1 << 22  # the kernel's PID_MAX_LIMIT on 64 bit; larger numbers are garbage

REASON = r"(?P<reason>(?:Memory cgroup o|O)ut of [mM]emory(?: \([^)]{0,40}\))?(?: in UB \d+)?: )?"
KILLED = re.compile(REASON + r"(?:OOM killed|Killed) process (?P<pid>\d{1,10})(?:, UID (?P<uid>-?\d{1,10}),)? \(")
CHOSEN = re.compile(REASON + r"[Kk]ill process (?P<pid>\d{1,10}) \(")
COMM_END = re.compile(r"\)(?:, UID (?P<uid>-?\d{1,10}),?)?,? +(?:total-vm|vsz|vm|adj|score)[: ]")
CHOSEN_END = re.compile(r"\) score -?\d+")
SIZE = re.compile(r"\b(total-vm|vsz|vm|anon-rss|file-rss|shmem-rss|pgtables):(\d{1,15})kB")
SIZE_FIELDS = {
    "total-vm": "total_vm_kb",
    "vsz": "total_vm_kb",
    "vm": "total_vm_kb",
    "anon-rss": "anon_rss_kb",
    "file-rss": "file_rss_kb",
    "shmem-rss": "shmem_rss_kb",
    "pgtables": "pgtables_kb",
}
TAIL_UID = re.compile(r"\bUID:(-?\d{1,10})(?= |,|$)")
TAIL_ADJ = re.compile(r"\boom_score_adj:(-?\d{1,4})(?=[ ,]|$)")
# A name may hold a line feed; /dev/kmsg keeps it within the record.
INVOKED = re.compile(r"(?:(?P<comm>.{1,80}) invoked )?oom-killer: ?gfp_mask=", re.DOTALL)
INVOKED_ORDER = re.compile(r"\border=(-?\d{1,2})(?=,|\s|$)")
SUMMARY = "oom-kill:constraint="
SUMMARY_END = re.compile(r",pid=(\d{1,10}),(?:uid=(-?\d{1,10})\s*|(?:u|ui|uid|uid=|uid=-)?)$")
# Where a mail or a terminal broke the line, a blank is left after the comma.
BROKEN_LINE = re.compile(r", +(?=(?:nodemask|cpuset|mems_allowed|oom_memcg|global_oom|task_memcg)\b)")
CONSTRAINT = re.compile(r"oom-kill:constraint=(CONSTRAINT_(?:NONE|CPUSET|MEMORY_POLICY|MEMCG))(?=,|\s|$)")
TASK_IN = re.compile(r"Task in (?P<task>/.*?)(?: killed as a result of limit of (?P<limit>/.*))?$")
LIMIT_REACHED = re.compile(r"Memory limit reached of cgroup (/.*)$")
GROUP = re.compile(r"Tasks in (/.*) are going to be killed due to memory\.oom\.group set")
SPARED = re.compile(r"(?:.{0,60}: )?OOM victim (\d{1,10}) \(.{0,80}\) is already exiting", re.DOTALL)
NO_VICTIM = re.compile(
    r"(?:Kernel panic - not syncing: )?(?:Out of memory and no killable processes|System is deadlocked on memory)"
)
PANIC = re.compile(r"Kernel panic - not syncing: [oO]ut of memory.{0,40}\bpanic_on_oom\b")


@dataclass(frozen=True, slots=True)
class Killed:
    """`Killed process`: the line that counts. `kind` is None when the line itself gives no reason."""

    pid: int
    comm: str
    comm_is_cut: bool
    kind: str | None
    uid: int | None
    sizes: dict[str, int]
    oom_score_adj: int | None


@dataclass(frozen=True, slots=True)
class Chosen:
    """`Kill process N … or sacrifice child`: an intention; a child of N may be the one that dies."""

    pid: int
    comm: str
    kind: str


@dataclass(frozen=True, slots=True)
class Invoked:
    """The first line of an OOM: who asked for memory and how much (2^order pages)."""

    comm: str | None
    order: int | None


@dataclass(frozen=True, slots=True)
class Summary:
    """`oom-kill:`; `pid` is None when the line is cut before the end of the number."""

    text: str
    constraint: str | None
    oom_memcg: str | None
    is_global: bool
    pid: int | None
    uid: int | None

    @property
    def kind(self) -> str | None:
        """Whether a cgroup's limit or the host's memory ran out; 5.0-rc printed CONSTRAINT_NONE with an oom_memcg."""
        if self.oom_memcg or self.constraint == "CONSTRAINT_MEMCG":
            return MEMCG
        return GLOBAL if self.is_global or self.constraint else None

    def comm(self) -> str | None:
        """The victim's name, as far as the line has it whole."""
        end = SUMMARY_END.search(self.text)
        if end is None:
            return None
        start = self.text.rfind(",task=", max(0, end.start() - ESCAPED_COMM_CHARS - 6), end.start())
        return self.text[start + 6 : end.start()] if start >= 0 else None

    def task_memcg(self, comm: str | None) -> str | None:
        """The victim's cgroup; a known `comm` finds its end even if the name imitates `,task=`."""
        start = self.text.find(",task_memcg=")
        if start < 0:
            return None
        start += len(",task_memcg=")
        end = self.text.find(f",task={comm},", start) if comm else -1
        if end < 0:
            end = self.text.rfind(",task=", start)
        if end < 0:  # cut: the path counts only when the comma after it is there
            end = self.text.rfind(",", start)
        return self.text[start:end] if end > start else None


def parse_killed(text: str) -> Killed | None:
    """The fields of a kill line, or None for any other line, or a kill line cut before the name."""
    match = KILLED.match(text) if "illed process " in text else None
    if match is None or (pid := _pid(match["pid"])) is None:
        return None
    comm, tail, uid, is_cut = _split_comm(text, match.end(), COMM_END)
    sizes: dict[str, int] = {}
    for name, kb in SIZE.findall(tail):
        sizes.setdefault(SIZE_FIELDS[name], int(kb))
    tail_uid = TAIL_UID.search(tail) if "UID:" in tail else None
    adj = TAIL_ADJ.search(tail) if "oom_score_adj:" in tail else None
    uid_text = tail_uid[1] if tail_uid else match["uid"] or uid
    return Killed(
        pid=pid,
        comm=comm,
        comm_is_cut=is_cut,
        kind=_kind_of(match["reason"]),
        uid=int(uid_text) if uid_text else None,
        sizes=sizes,
        oom_score_adj=int(adj[1]) if adj and -1000 <= int(adj[1]) <= 1000 else None,
    )


def parse_chosen(text: str) -> Chosen | None:
    """The process the kernel (before 5.1) meant to kill; None for `… sharing same memory`, which follows a kill."""
    match = CHOSEN.match(text) if "ill process " in text else None
    if match is None or match["reason"] is None or (pid := _pid(match["pid"])) is None:
        return None
    comm, _, _, _ = _split_comm(text, match.end(), CHOSEN_END)
    return Chosen(pid, comm, _kind_of(match["reason"]) or GLOBAL)


def parse_invoked(text: str) -> Invoked | None:
    """The OOM's first line. 2.6.9 printed it without a name."""
    match = INVOKED.match(text) if "oom-killer:" in text else None
    if match is None:
        return None
    order = INVOKED_ORDER.search(text, match.end())
    return Invoked(match["comm"], int(order[1]) if order else None)


def parse_summary(text: str) -> Summary | None:
    """The `oom-kill:` line, whole or cut. Fields are found by their names: nodemask and paths may hold commas."""
    if not text.startswith(SUMMARY):
        return None
    if ", " in text:
        text = BROKEN_LINE.sub(",", text)
    constraint = CONSTRAINT.match(text)
    end = SUMMARY_END.search(text)
    pid = _pid(end[1]) if end else None
    head = text[: text.find(",task_memcg=")] if ",task_memcg=" in text else text
    oom_memcg = None
    start = head.find(",oom_memcg=")
    if start >= 0:
        oom_memcg = _until_field(head[start + len(",oom_memcg=") :], is_whole=len(head) < len(text))
    return Summary(
        text=text,
        constraint=constraint[1] if constraint else None,
        oom_memcg=oom_memcg,
        is_global=",global_oom" in head,
        pid=pid,
        uid=int(end[2]) if end and end[2] else None,
    )


def _until_field(value: str, *, is_whole: bool) -> str | None:
    """A path up to the next field; at the end of a cut line only the part before the last comma is whole."""
    end = value.rfind(",task=")
    if end >= 0:
        return value[:end]
    return value if is_whole else value.rpartition(",")[0] or None


def _split_comm(text: str, start: int, end: re.Pattern[str]) -> tuple[str, str, str | None, bool]:
    """Name, what follows it, a UID between the two, and whether the name's end is missing.

    Of several possible ends the last within the longest possible name is the real one: what a name imitates
    stands before its end. Two kill lines run together (printk before 4.x) put the second end out of reach.
    """
    best = None
    for match in end.finditer(text, start):
        name = text[start : match.start()]
        if best is not None and not _may_be_comm(name):
            break
        best = match
    if best is not None:
        return (
            text[start : best.start()][:ESCAPED_COMM_CHARS],
            text[best.start() + 1 :],
            best.groupdict().get("uid"),
            False,
        )
    if text.rstrip(". ").endswith(")"):  # 2.6 ends after the name
        return text[start:].rstrip(". ")[:-1][:ESCAPED_COMM_CHARS], "", None, False
    return _cut_comm(text[start:]), "", None, True


def _cut_comm(rest: str) -> str:
    """The name in a line that breaks off in or soon after it: up to the last bracket that can be its end."""
    for end in range(min(len(rest), ESCAPED_COMM_CHARS), -1, -1):
        if rest.startswith((") ", "),"), end) and _may_be_comm(rest[:end]):
            return rest[:end]
    return rest[:ESCAPED_COMM_CHARS]


def _may_be_comm(name: str) -> bool:
    if len(name.encode("utf-8", "replace")) <= COMM_BYTES:
        return True
    escapes = name.count("\\x") + name.count("#") + name.count("\ufffd")
    return len(name) - 3 * escapes <= COMM_BYTES


def _kind_of(reason: str | None) -> str | None:
    if not reason:
        return None
    return MEMCG if reason.startswith("Memory cgroup") or " in UB " in reason else GLOBAL


def _pid(digits: str) -> int | None:
    pid = int(digits)
    return pid if 0 < pid <= PID_MAX else None
