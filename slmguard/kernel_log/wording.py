"""OOM events in plain words for a terminal. A process chooses its own name, so nothing of it is printed raw."""

from __future__ import annotations

from slmguard.kernel_log import event as kinds
from slmguard.kernel_log.event import OomEvent

KIB_PER_UNIT = ((1024 * 1024, "GiB"), (1024, "MiB"))

REASONS = {
    kinds.GLOBAL: "the host ran out of memory",
    kinds.MEMCG: "a memory limit was reached",
    kinds.UNKNOWN: "the log does not say why",
    kinds.ANDROID_LMK: "Android's low memory killer chose it",
}


def printable(text: str) -> str:
    r"""The text with everything that a terminal might obey (control and direction characters) as `\xHH`, `\uHHHH`."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    code = ord(char)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def size(kb: int) -> str:
    """A size in the unit that a person would choose."""
    for unit_kib, unit in KIB_PER_UNIT:
        if kb >= unit_kib:
            return f"{kb / unit_kib:.1f} {unit}"
    return f"{kb} kB"


def headline(event: OomEvent) -> str:
    """What happened, in one line."""
    if event.kind == kinds.NO_VICTIM:
        return "out of memory, and no process could be killed"
    if event.kind == kinds.PANIC:
        return "the kernel panicked instead of killing (vm.panic_on_oom)"
    name = printable(event.victim_comm) if event.victim_comm else "a process without a name"
    owner = f", uid {event.uid}" if event.uid is not None else ""
    return f"killed {name} (pid {event.victim_pid}{owner}): {reason(event)}"


def reason(event: OomEvent) -> str:
    """Whose limit it was: the unit's own, one above it, or the host's memory."""
    if event.kind != kinds.MEMCG or not event.oom_memcg:
        return REASONS.get(event.kind, event.kind)
    limit = printable(event.oom_memcg)
    if event.task_memcg is None or event.task_memcg == event.oom_memcg:
        return f"the limit of {limit} was reached"
    return f"the limit of {limit}, above its own cgroup, was reached"


def details(event: OomEvent) -> list[str]:
    """Further lines: sizes, cgroup, who asked for the memory."""
    lines = []
    sizes = (
        (event.anon_rss_kb, "anonymous"),
        (event.file_rss_kb, "file"),
        (event.shmem_rss_kb, "shared"),
        (event.total_vm_kb, "virtual"),
    )
    held = [f"{size(kb)} {name}" for kb, name in sizes if kb is not None]
    if held:
        lines.append("it held " + ", ".join(held))
    if event.task_memcg:
        lines.append("its cgroup: " + printable(event.task_memcg))
    if event.group_memcg:
        lines.append("killed as a group (memory.oom.group): " + printable(event.group_memcg))
    if event.oom_score_adj is not None:
        lines.append(f"its oom_score_adj: {event.oom_score_adj}")
    if event.invoker_comm:
        order = f", {1 << event.gfp_order} page(s)" if event.gfp_order is not None and event.gfp_order >= 0 else ""
        lines.append(f"memory was asked for by {printable(event.invoker_comm)}{order}")
    return lines
