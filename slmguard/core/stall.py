"""Is the service stalled? Throttled by memory.high while nothing gets done, yet nothing is killed.

Measured: above MemoryHigh the kernel evicted the mapped weights and decode fell from 15.9 to 0.15 token/s; an
anonymous hog without swap stayed between MemoryHigh and MemoryMax for good. In both cases systemd says `active`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slmguard.core.figures import Figures
from slmguard.core.model import Sample
from slmguard.core.settings import StallSettings

PAGE_BYTES = 4096
MIN_SPAN_S = 4.0
NEAR_LIMIT_RATIO = 0.97


@dataclass(frozen=True, slots=True)
class Mark:
    """The counters of one instant that the detector compares."""

    at_s: float
    high_events: int
    refault_pages: int | None
    psi_full_us: int | None
    progress_tokens: int | None
    progress_at_s: float | None
    busy_slots: int | None
    reachable: bool | None


@dataclass(frozen=True, slots=True)
class StallState:
    """Marks of the last window, and since when the service has been stalled (None: it is not)."""

    marks: tuple[Mark, ...] = ()
    since_s: float | None = None
    why: str = ""


def observe(state: StallState, sample: Sample, figures: Figures, settings: StallSettings) -> StallState:
    """`state` after one more sample. A reading without event counters (no cgroup) can never show a stall."""
    memory = sample.memory
    if not settings.enabled or memory is None or memory.events is None:
        return StallState()
    server = sample.server
    mark = Mark(
        at_s=sample.now_s,
        high_events=memory.events.high,
        refault_pages=memory.refault_pages,
        psi_full_us=memory.psi_full_us,
        progress_tokens=server.progress_tokens if server else None,
        progress_at_s=server.asked_at_s if server else None,
        busy_slots=server.busy_slots if server else None,
        reachable=server.reachable if server else None,
    )
    if state.marks and mark.at_s - state.marks[-1].at_s < settings.window_s / 10:
        marks = state.marks
    else:
        oldest_s = sample.now_s - settings.window_s
        kept = [old for old in state.marks if old.at_s >= oldest_s]
        # One mark from before the window stays, so that the window is always spanned.
        before = [old for old in state.marks if old.at_s < oldest_s][-1:]
        marks = (*before, *kept, mark)
    why = _why_stalled((*marks, mark), figures, settings)
    if why is None:
        return StallState(marks=marks)
    since_s = state.since_s if state.since_s is not None else sample.now_s
    return replace(state, marks=marks, since_s=since_s, why=why)


def _why_stalled(marks: tuple[Mark, ...], figures: Figures, settings: StallSettings) -> str | None:
    first, last = marks[0], marks[-1]
    span_s = last.at_s - first.at_s
    if span_s < max(MIN_SPAN_S, settings.window_s * 0.8):
        return None
    throttled = _throttled(first, last, span_s, figures, settings)
    if throttled is None or _progresses(marks, settings):
        return None
    return f"{throttled} for {span_s:.0f} s and no progress"


def _throttled(first: Mark, last: Mark, span_s: float, figures: Figures, settings: StallSettings) -> str | None:
    high_per_s = (last.high_events - first.high_events) / span_s
    if high_per_s < settings.high_events_per_s:
        return None
    text = f"throttled by memory.high ({high_per_s:.1f} events/s)"
    if first.psi_full_us is not None and last.psi_full_us is not None:
        full_ratio = (last.psi_full_us - first.psi_full_us) / 1e6 / span_s
        if full_ratio >= settings.psi_full_ratio:
            return f"{text}, all tasks waiting for memory {full_ratio:.0%} of the time"
    if first.refault_pages is not None and last.refault_pages is not None:
        refault_bytes_per_s = (last.refault_pages - first.refault_pages) * PAGE_BYTES / span_s
        if refault_bytes_per_s >= settings.refault_bytes_per_s:
            return f"{text}, re-reading {refault_bytes_per_s / (1 << 20):.0f} MiB/s of what was evicted"
    limit = figures.limit_bytes
    if limit and figures.unreclaimable_bytes >= NEAR_LIMIT_RATIO * limit:
        return f"{text} with nothing left to reclaim"
    return None


def _progresses(marks: tuple[Mark, ...], settings: StallSettings) -> bool:
    """True when the server shows that work gets done, or that it has none to do."""
    told = [mark for mark in marks if mark.progress_tokens is not None and mark.progress_at_s is not None]
    if len(told) >= 2 and told[-1].progress_at_s != told[0].progress_at_s:
        first, last = told[0], told[-1]
        tokens = (last.progress_tokens or 0) - (first.progress_tokens or 0)
        seconds = (last.progress_at_s or 0.0) - (first.progress_at_s or 0.0)
        if tokens < 0:  # the server started anew: its counters did too
            return True
        if tokens / seconds >= settings.crawl_tokens_per_s:
            return True
    idle = [mark for mark in marks if mark.reachable and mark.busy_slots == 0]
    return len(idle) == len([mark for mark in marks if mark.reachable is not None]) and bool(idle)
