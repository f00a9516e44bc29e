"""The state machine: records in, OOM events out. One for all kernels, for whole files and for the live log.

`Killed process` is what counts: the kernel never rate-limits it, while the first line and `oom-kill:` are limited to
10 in 5 s. The other lines only attribute: they are bound to a kill by the victim's pid, or by standing before it in an
OOM that has no kill yet. Everything kept between records is bounded.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from slmguard.kernel_log import messages
from slmguard.kernel_log.android import parse_lmk, parse_lmk_beneficiary
from slmguard.kernel_log.attribution import (
    SAME_OOM_S,
    Oom,
    OpenOoms,
    apart_s,
    attributed,
    is_near,
    with_summary,
)
from slmguard.kernel_log.event import ANDROID_LMK, MEMCG, NO_VICTIM, PANIC, UNKNOWN, Notice, OomEvent
from slmguard.kernel_log.held import HeldEvents, SeenKills
from slmguard.kernel_log.messages import Chosen, Invoked, Killed, Summary
from slmguard.kernel_log.notices import notice_in
from slmguard.kernel_log.record import Record
from slmguard.kernel_log.stamps import is_before as is_stamp_before

# Every record of interest holds one of these; the test costs 0.5 us a line, taking the prefix off costs 10.
HINTS = (
    *(
        "oom",
        "OOM",
        "emory",
        "ill",
        "alloc",
        "ALLOC",
        "Alloc",
        "NvMap",
        "nvmap",
        "panic",
        "swiotlb",
        "SW-IOMMU",
        "NVRM",
        "on behalf of",
    ),
    *("mems_allowed", "Linux version", "-- "),
)

FILE_HOLD_RECORDS = 4000  # how far behind a kill its `oom-kill:` line may stand (journalctl -r prints newest first)
NEW_BOOT_S = 60
CLOCK_JITTER_S = 0.0005  # the clocks of two CPUs
MAX_NOTICES = 256
MAX_LONE_CHOICES = 10_000
LONGEST_SUMMARY_CHARS = 8192  # cgroup paths are at most 4096


def is_of_interest(text: str) -> bool:
    """Whether a line can say anything about an OOM; a continuation of `oom-kill:` begins with a comma."""
    for hint in HINTS:
        if hint in text:
            return True
    return text.startswith(",")


class OomParser:
    """Feed records, get events.

    `hold_records` is the number of records that an event is kept back for an attribution that comes late: 0 for the
    live log, where order is given. Call `finish()` at the end of a file, or when the live log has gone quiet.
    """

    def __init__(self, hold_records: int = FILE_HOLD_RECORDS) -> None:
        self._ooms = OpenOoms()
        self._held = HeldEvents(hold_records)
        self._seen = SeenKills()
        self._notices: deque[Notice] = deque(maxlen=MAX_NOTICES)
        self._last_record: Record | None = None
        self._is_backward = False
        self._only_choices: list[tuple[Chosen, Record]] | None = []
        self.records = 0
        self.dropped_notices = 0

    def feed(self, record: Record) -> list[OomEvent]:
        """Take one record; returns the events that are complete, in the order of their kill lines."""
        self.records += 1
        text = record.text
        if is_of_interest(text):
            self._take(record)
        elif text:
            self._only_choices = None
        return self._held.release(self.records) if self._held else []

    def skip(self, records: int) -> list[OomEvent]:
        """Count records that hold none of HINTS and were not worth framing; returns events as `feed` does."""
        self.records += records
        self._only_choices = None
        return self._held.release(self.records) if self._held else []

    def finish(self) -> list[OomEvent]:
        """Everything that is still held; the parser can be fed on."""
        for oom in self._ooms.drain():
            self._abandon(oom)
        for chosen, record in self._only_choices or ():
            self._report_lone_choice(chosen, record)
        self._only_choices = None
        return self._held.drain()

    def take_notices(self) -> list[Notice]:
        """Notices since the last call, the newest 256 of them; `dropped_notices` counts the others."""
        notices = list(self._notices)
        self._notices.clear()
        return notices

    # One record

    def _take(self, record: Record) -> None:
        if not record.from_kernel:
            self._note_if_any(record)
            return
        self._note_direction(record)
        text = record.text
        if (chosen := messages.parse_chosen(text)) is not None:
            self._on_chosen(chosen, record)
            return
        self._only_choices = None
        if (killed := messages.parse_killed(text)) is not None:
            self._on_killed(killed, record)
        elif (summary := messages.parse_summary(text)) is not None:
            self._on_summary(summary, record)
        elif (invoked := messages.parse_invoked(text)) is not None:
            self._on_invoked(invoked, record)
        elif not self._take_cgroup(record) and not self._take_end(record) and not self._take_lmk(record):
            self._note_if_any(record)

    def _take_cgroup(self, record: Record) -> bool:
        """The lines that name cgroups; True when this is one."""
        text = record.text
        if group := messages.GROUP.match(text):
            self._on_group(group[1], record)
        elif task := messages.TASK_IN.match(text):
            self._on_limit(task["task"], task["limit"], record)
        elif limit := messages.LIMIT_REACHED.match(text):
            self._on_limit(None, limit[1], record)
        elif text.startswith(","):
            self._on_continuation(record)
        else:
            return False
        return True

    def _take_end(self, record: Record) -> bool:
        """The lines that end an OOM without a kill, and boots; True when this is one."""
        text = record.text
        if messages.NO_VICTIM.match(text):
            last = self._held.last
            if "deadlocked" not in text or last is None or last.kind != NO_VICTIM:
                self._without_victim(NO_VICTIM, record)
        elif messages.PANIC.match(text):
            self._without_victim(PANIC, record)
        elif spared := messages.SPARED.match(text):
            self._ooms.drop_spared(int(spared[1]))
        elif text.startswith(("Linux version ", "-- Boot ", "-- Reboot --")):
            for oom in self._ooms.drain():
                self._abandon(oom)
            self._seen.forget()
            self._last_record = None
        else:
            return False
        return True

    def _take_lmk(self, record: Record) -> bool:
        """Android's in-kernel killer, whose message comes in several lines; True when this is one."""
        if (event := parse_lmk(record.text)) is not None:
            self._emit(placed(event, record))
        elif (invoker := parse_lmk_beneficiary(record.text)) is not None:
            last = self._held.last
            if last is not None and last.kind == ANDROID_LMK:
                self._held.amend(last.victim_pid, lambda event: replace(event, invoker_comm=invoker))
        else:
            return False
        return True

    def _on_invoked(self, invoked: Invoked, record: Record) -> None:
        event = self._behind(record)
        if event is not None and event.invoker_comm is None:
            self._held.amend(event.victim_pid, lambda event: with_invoked(event, invoked))
            return
        self._start(record).invoked = invoked

    def _on_summary(self, summary: Summary, record: Record) -> None:
        if self._attribute_late(summary):
            return
        oom = self._ooms.unsettled(record, summary.comm())
        if oom is None or oom.summary is not None:
            oom = self._start(record)
        oom.summary = summary
        oom.kind = summary.kind or oom.kind

    def _on_continuation(self, record: Record) -> None:
        """A summary printed in pieces (the early 5.0 series, or another CPU in between)."""
        oom = self._ooms.unsettled(record)
        if oom is None or oom.summary is None or oom.summary.pid is not None:
            return
        if len(oom.summary.text) > LONGEST_SUMMARY_CHARS:
            return
        summary = messages.parse_summary(oom.summary.text + record.text)
        if summary is not None:
            oom.summary = summary
            oom.kind = summary.kind or oom.kind

    def _on_chosen(self, chosen: Chosen, record: Record) -> None:
        late = self._held.of_pid(chosen.pid) or self._behind(record)
        if late is not None and late.kind == UNKNOWN:
            self._held.amend(late.victim_pid, lambda event: replace(event, kind=chosen.kind))
            self._is_backward = True
            self._only_choices = None
            return
        oom = self._ooms.unsettled(record, chosen.comm)
        if oom is None or oom.chosen is not None:
            oom = self._start(record)
        oom.chosen = chosen
        oom.kind = chosen.kind
        if self._only_choices is not None and len(self._only_choices) < MAX_LONE_CHOICES:
            self._only_choices.append((chosen, record))

    def _on_group(self, path: str, record: Record) -> None:
        oom = self._ooms.newest
        if oom is None or not is_near(oom, record):
            oom = self._start(record)
        oom.kind = oom.kind or MEMCG
        oom.group_memcg = path
        oom.record = record

    def _on_limit(self, task_memcg: str | None, oom_memcg: str | None, record: Record) -> None:
        event = self._behind(record)
        if event is not None and event.oom_memcg is None:
            self._held.amend(event.victim_pid, lambda event: replace(event, task_memcg=task_memcg, oom_memcg=oom_memcg))
            return
        oom = self._ooms.unsettled(record) or self._start(record)
        oom.kind = MEMCG
        oom.task_memcg, oom.oom_memcg = task_memcg, oom_memcg

    def _on_killed(self, killed: Killed, record: Record) -> None:
        oom = self._ooms.of_kill(killed, record)
        if oom is not None:
            oom.is_settled = True
            oom.kind = killed.kind or oom.kind
        if self._seen.is_repeat(killed, record):
            return
        if killed.comm_is_cut:
            self._note("cut_record", f"the kill of process {killed.pid} is cut in its name", record)
        self._emit(attributed(killed, oom, record))

    def _without_victim(self, kind: str, record: Record) -> None:
        oom = self._ooms.unsettled(record)
        event = OomEvent(kind)
        if oom is not None:
            self._ooms.drop(oom)
            event = replace(event, oom_memcg=oom.oom_memcg)
            if oom.invoked is not None:
                event = with_invoked(event, oom.invoked)
        self._emit(placed(event, record))

    # OOMs without a kill line

    def _start(self, record: Record) -> Oom:
        oom, ended = self._ooms.start(record)
        for old in ended:
            self._abandon(old)
        return oom

    def _abandon(self, oom: Oom) -> None:
        """An OOM ends without its kill line. A victim that the kernel named for certain is an event, a guess is not."""
        summary, chosen, record = oom.summary, oom.chosen, oom.record
        if oom.is_settled:
            return
        if summary is None or summary.pid is None or (chosen is not None and chosen.pid != summary.pid):
            if chosen is not None and self._only_choices is None:
                text = (
                    f"process {chosen.pid} ({chosen.comm}) was chosen, its kill line is missing: a child may have died"
                )
                self._note("cut_record", text, record)
            return
        comm = chosen.comm if chosen is not None else summary.comm() or ""
        killed = Killed(summary.pid, comm, False, chosen.kind if chosen else summary.kind, summary.uid, {}, None)
        if not self._seen.is_repeat(killed, record):
            self._note("cut_record", f"the kill line of process {summary.pid} is missing: sizes are unknown", record)
            self._emit(attributed(killed, oom, record))

    def _report_lone_choice(self, chosen: Chosen, record: Record) -> None:
        """A log made of nothing but `Kill process` lines is the output of a search for "Out of memory"."""
        killed = Killed(chosen.pid, chosen.comm, False, chosen.kind, None, {}, None)
        if not self._seen.is_repeat(killed, record):
            text = f"process {chosen.pid} ({chosen.comm}) has no kill line: a child may have died in its place"
            self._note("cut_record", text, record)
            self._emit(attributed(killed, None, record))

    # Events already seen

    def _attribute_late(self, summary: Summary) -> bool:
        """A summary whose kill line came before it: the log is printed newest first."""
        pid = summary.pid
        event = self._held.of_pid(pid)
        if event is None or event.constraint is not None:
            return False
        self._held.amend(pid, lambda event: with_summary(event, summary, summary.task_memcg(event.victim_comm)))
        self._is_backward = True
        return True

    def _note_direction(self, record: Record) -> None:
        """Whether the log is printed newest first, and whether a new boot has begun."""
        last, self._last_record = self._last_record, record
        if last is None:
            return
        if record.uptime_s is None or last.uptime_s is None:
            is_before = is_stamp_before(record.time, last.time) if record.uptime_s is last.uptime_s else None
            self._is_backward = self._is_backward if is_before is None else is_before
            return
        if record.uptime_s < last.uptime_s - NEW_BOOT_S:
            self._seen.forget()  # or a log that is printed newest first, where it does no harm
        if abs(record.uptime_s - last.uptime_s) > CLOCK_JITTER_S:
            self._is_backward = record.uptime_s < last.uptime_s

    def _behind(self, record: Record) -> OomEvent | None:
        """In a log that is printed newest first: the kill that the record, printed after it, came before."""
        last = self._held.last
        if not self._is_backward or last is None or last.victim_pid is None:
            return None
        event = self._held.of_pid(last.victim_pid)
        return event if event is not None and (apart_s(event, record) or 0) <= SAME_OOM_S else None

    def _emit(self, event: OomEvent) -> None:
        self._held.add(event, self.records)
        self._seen.add(event)

    def _note_if_any(self, record: Record) -> None:
        notice = notice_in(record)
        if notice is not None:
            self._append(notice)

    def _note(self, kind: str, text: str, record: Record) -> None:
        self._append(Notice(kind, text, record.time, record.line))

    def _append(self, notice: Notice) -> None:
        if len(self._notices) == MAX_NOTICES:
            self.dropped_notices += 1
        self._notices.append(notice)


def with_invoked(event: OomEvent, invoked: Invoked) -> OomEvent:
    """The event with who asked for the memory."""
    return replace(event, invoker_comm=invoked.comm, gfp_order=invoked.order)


def placed(event: OomEvent, record: Record) -> OomEvent:
    """The event with where and when it was found."""
    return replace(
        event, time=record.time, source=record.form, uptime_s=record.uptime_s, seq=record.seq, line=record.line
    )
