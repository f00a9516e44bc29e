"""What is found in a kernel log: OOM events, and notices that are not kills."""

from __future__ import annotations

from dataclasses import dataclass

GLOBAL = "global"
MEMCG = "memcg"
UNKNOWN = "unknown"
NO_VICTIM = "no_victim"
PANIC = "panic"
ANDROID_LMK = "android_lmk"

# The order is that of the JSON document (docs/reference/oom-events.md).
EVENT_FIELDS = (
    "kind",
    "victim_pid",
    "victim_comm",
    "constraint",
    "task_memcg",
    "oom_memcg",
    "anon_rss_kb",
    "file_rss_kb",
    "shmem_rss_kb",
    "total_vm_kb",
    "oom_score_adj",
    "uid",
    "invoker_comm",
    "gfp_order",
    "time",
    "source",
)


@dataclass(frozen=True, slots=True)
class OomEvent:
    """One process that the kernel killed for lack of memory, or an OOM that found no victim or ended in a panic.

    Sizes are the victim's at the moment of the kill, in kB, as the kernel printed them; None is "not printed".
    `oom_memcg` is the cgroup whose limit was hit, `task_memcg` the victim's own. `oom_score_adj` is the victim's.
    `seq` is the /dev/kmsg sequence number and `line` the line of the file, of the line that counts.
    """

    kind: str
    victim_pid: int | None = None
    victim_comm: str | None = None
    constraint: str | None = None
    task_memcg: str | None = None
    oom_memcg: str | None = None
    anon_rss_kb: int | None = None
    file_rss_kb: int | None = None
    shmem_rss_kb: int | None = None
    total_vm_kb: int | None = None
    oom_score_adj: int | None = None
    uid: int | None = None
    invoker_comm: str | None = None
    gfp_order: int | None = None
    time: str | None = None
    source: str = ""
    pgtables_kb: int | None = None
    group_memcg: str | None = None
    uptime_s: float | None = None
    seq: int | None = None
    line: int = 0

    def document(self) -> dict[str, object]:
        """The event as it stands in the JSON output."""
        return {name: getattr(self, name) for name in EVENT_FIELDS}


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about memory that is not a kill: a failed allocation, a cut record."""

    kind: str
    text: str
    time: str | None = None
    line: int = 0
