"""What the lines around a kill say about it, and how they are joined to it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from slmguard.kernel_log.event import UNKNOWN, OomEvent
from slmguard.kernel_log.messages import Chosen, Invoked, Killed, Summary
from slmguard.kernel_log.record import Record
from slmguard.kernel_log.stamps import seconds_apart

SAME_OOM_S = 120  # a serial console at 9600 baud needs 80 s for the task table of a large host
INTERLEAVED_S = 2  # kernels before 4.x ran the OOMs of several cgroups at the same time
GROUP_KILL_S = 10
MAX_OPEN = 16


@dataclass(slots=True)
class Oom:
    """One OOM that is being told. `is_settled` once it has its kill: then only a group kill may add more."""

    record: Record
    invoked: Invoked | None = None
    summary: Summary | None = None
    chosen: Chosen | None = None
    task_memcg: str | None = None
    oom_memcg: str | None = None
    group_memcg: str | None = None
    kind: str | None = None
    is_settled: bool = False

    def names(self, pid: int) -> bool:
        """Whether its lines name this process as the victim."""
        return pid in (self.summary.pid if self.summary else None, self.chosen.pid if self.chosen else None)

    def accepts(self, killed: Killed, record: Record) -> bool:
        """Whether a kill that it does not name may still be its own."""
        if self.group_memcg is not None and (apart_s(self.record, record) or 0) <= GROUP_KILL_S:
            return killed.kind in (None, self.kind) or self.kind is None
        if self.is_settled:
            return False
        announced = self.summary.pid if self.summary else None
        is_child_of_chosen = self.chosen is not None and killed.kind is None
        return announced is None or is_child_of_chosen


class OpenOoms:
    """The OOMs whose kill has not been seen yet, oldest first, and the last one that has it.

    Since 4.x one lock lets only one OOM print at a time, so that the start of another ends the one before.
    """

    def __init__(self) -> None:
        self._open: list[Oom] = []

    def start(self, record: Record) -> tuple[Oom, list[Oom]]:
        """A new OOM begins; returns it and those that it ends."""
        ended = [oom for oom in self._open if not _may_be_interleaved(oom, record)]
        self._open = [oom for oom in self._open if _may_be_interleaved(oom, record)]
        new = Oom(record)
        self._open.append(new)
        if len(self._open) > MAX_OPEN:
            ended.append(self._open.pop(0))
        return new, ended

    @property
    def newest(self) -> Oom | None:
        """The OOM that began last, with or without its kill."""
        return self._open[-1] if self._open else None

    def unsettled(self, record: Record, comm: str | None = None) -> Oom | None:
        """The OOM that a line without a pid in common belongs to: the one that `comm` began, else the newest."""
        candidates = [oom for oom in reversed(self._open) if not oom.is_settled and is_near(oom, record)]
        by_name = (oom for oom in candidates if comm and oom.invoked and oom.invoked.comm == comm)
        return next(by_name, candidates[0] if candidates else None)

    def of_kill(self, killed: Killed, record: Record) -> Oom | None:
        """The OOM that a kill belongs to, by the pid, else by its place."""
        near = [oom for oom in reversed(self._open) if is_near(oom, record)]
        named = (oom for oom in near if not oom.is_settled and oom.names(killed.pid))
        begun = (oom for oom in near if oom.invoked and oom.invoked.comm == killed.comm and oom.accepts(killed, record))
        placed = (oom for oom in near if oom.accepts(killed, record))
        return next(named, None) or next(begun, None) or next(placed, None)

    def drop_spared(self, pid: int) -> None:
        """The victim was exiting by itself: announced, then not killed."""
        self._open = [oom for oom in self._open if oom.is_settled or not (oom.summary is None or oom.names(pid))]

    def drop(self, oom: Oom) -> None:
        """Forget one that ended without a victim."""
        self._open.remove(oom)

    def drain(self) -> list[Oom]:
        """Forget all; returns them."""
        drained, self._open = self._open, []
        return drained


def _may_be_interleaved(oom: Oom, record: Record) -> bool:
    if oom.is_settled or oom.summary is not None or record.caller is not None:
        return False
    apart = apart_s(oom.record, record)
    return apart is not None and apart <= INTERLEAVED_S


def attributed(killed: Killed, oom: Oom | None, record: Record) -> OomEvent:
    """The kill with what its OOM says about it. Sizes and score are never taken from anywhere but the kill line."""
    sizes = killed.sizes
    comm: str | None = killed.comm or None
    if killed.comm_is_cut and oom is not None:
        comm = _whole_comm(killed, oom)
    summary = oom.summary if oom is not None else None
    invoked = oom.invoked if oom is not None else None
    uid = killed.uid
    if uid is None and summary is not None and summary.pid == killed.pid:
        uid = summary.uid
    return OomEvent(
        kind=killed.kind or (oom.kind if oom is not None else None) or UNKNOWN,
        victim_pid=killed.pid,
        victim_comm=comm,
        constraint=summary.constraint if summary is not None else None,
        task_memcg=_task_memcg(killed.pid, comm, oom) if oom is not None else None,
        oom_memcg=(summary.oom_memcg if summary is not None else None) or (oom.oom_memcg if oom is not None else None),
        anon_rss_kb=sizes.get("anon_rss_kb"),
        file_rss_kb=sizes.get("file_rss_kb"),
        shmem_rss_kb=sizes.get("shmem_rss_kb"),
        total_vm_kb=sizes.get("total_vm_kb"),
        oom_score_adj=killed.oom_score_adj,
        uid=uid,
        invoker_comm=invoked.comm if invoked is not None else None,
        gfp_order=invoked.order if invoked is not None else None,
        pgtables_kb=sizes.get("pgtables_kb"),
        group_memcg=oom.group_memcg if oom is not None else None,
        time=record.time,
        source=record.form,
        uptime_s=record.uptime_s,
        seq=record.seq,
        line=record.line,
    )


def with_summary(event: OomEvent, summary: Summary, task_memcg: str | None) -> OomEvent:
    """The event with the fields of its `oom-kill:` line."""
    return replace(
        event,
        kind=(summary.kind or UNKNOWN) if event.kind == UNKNOWN else event.kind,
        constraint=summary.constraint,
        oom_memcg=summary.oom_memcg,
        task_memcg=task_memcg,
        uid=summary.uid if event.uid is None and summary.pid == event.victim_pid else event.uid,
    )


def _task_memcg(pid: int, comm: str | None, oom: Oom) -> str | None:
    """The victim's cgroup.

    Of a group kill only the first victim is named: the others share its cgroup when that is the group itself,
    and so does a child that was killed in its parent's place (5.0).
    """
    summary = oom.summary
    if summary is None:
        return oom.task_memcg
    if summary.pid in (pid, None):
        return summary.task_memcg(comm)
    own = summary.task_memcg(summary.comm())
    is_sacrificed_child = oom.chosen is not None and oom.chosen.pid == summary.pid
    return own if is_sacrificed_child or own == oom.group_memcg else None


def _whole_comm(killed: Killed, oom: Oom) -> str | None:
    if oom.summary is not None and oom.summary.pid == killed.pid and (name := oom.summary.comm()):
        return name
    if oom.chosen is not None and oom.chosen.pid == killed.pid:
        return oom.chosen.comm
    return killed.comm or None


def is_near(oom: Oom, record: Record) -> bool:
    """Whether the record can belong to the OOM by its time."""
    return (apart_s(oom.record, record) or 0) <= SAME_OOM_S


def apart_s(first: Record | OomEvent, second: Record) -> float | None:
    """Seconds between two records by the kernel's clock, else by their stamps, None when these cannot be compared."""
    if first.uptime_s is not None and second.uptime_s is not None:
        return abs(first.uptime_s - second.uptime_s)
    if first.uptime_s is not None or second.uptime_s is not None:
        return None  # only one line has the kernel's clock: not comparable
    return seconds_apart(first.time, second.time)
