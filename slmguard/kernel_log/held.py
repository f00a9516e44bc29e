"""Events that may still get an attribution, and the processes whose kill has been told already."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from slmguard.kernel_log.attribution import GROUP_KILL_S, apart_s
from slmguard.kernel_log.event import OomEvent
from slmguard.kernel_log.messages import Killed
from slmguard.kernel_log.record import Record

SAME_PID_S = 600  # the kernel hands out all other pids first; within this time the same pid is the same process
MAX_REMEMBERED_PIDS = 4096


class HeldEvents:
    """Keeps each event for `hold_records` records, in order, so that a line behind it can still complete it."""

    def __init__(self, hold_records: int) -> None:
        self._hold_records = hold_records
        self._events: OrderedDict[int, tuple[int, OomEvent]] = OrderedDict()
        self._serial_of_pid: dict[int, int] = {}
        self._serial = 0
        self.last: OomEvent | None = None

    def __bool__(self) -> bool:
        return bool(self._events)

    def add(self, event: OomEvent, at: int) -> None:
        """Hold an event that was found at record number `at`."""
        self.last = event
        self._serial += 1
        self._events[self._serial] = (at, event)
        if event.victim_pid is not None:
            self._serial_of_pid[event.victim_pid] = self._serial

    def of_pid(self, pid: int | None) -> OomEvent | None:
        """The newest held event of this victim."""
        serial = self._serial_of_pid.get(pid) if pid is not None else None
        return self._events[serial][1] if serial is not None else None

    def amend(self, pid: int | None, change: Callable[[OomEvent], OomEvent]) -> None:
        """Replace the newest held event of this victim; nothing happens when it is not held any more."""
        serial = self._serial_of_pid.get(pid) if pid is not None else None
        if serial is not None:
            at, event = self._events[serial]
            self._events[serial] = (at, change(event))

    def release(self, now: int) -> list[OomEvent]:
        """The events that have been held long enough at record number `now`."""
        ready = []
        while self._events:
            serial, (at, event) = next(iter(self._events.items()))
            if at + self._hold_records > now:
                break
            del self._events[serial]
            if event.victim_pid is not None and self._serial_of_pid.get(event.victim_pid) == serial:
                del self._serial_of_pid[event.victim_pid]
            ready.append(event)
        return ready

    def drain(self) -> list[OomEvent]:
        """All that are held."""
        events = [event for _, event in self._events.values()]
        self._events.clear()
        self._serial_of_pid.clear()
        return events


class SeenKills:
    """The newest 4096 victims, to tell a kill that is printed again from another one."""

    def __init__(self) -> None:
        self._events: OrderedDict[int, OomEvent] = OrderedDict()

    def add(self, event: OomEvent) -> None:
        """Remember the victim, if there is one."""
        if event.victim_pid is None:
            return
        self._events[event.victim_pid] = event
        self._events.move_to_end(event.victim_pid)
        if len(self._events) > MAX_REMEMBERED_PIDS:
            self._events.popitem(last=False)

    def forget(self) -> None:
        """Another boot: pids begin anew."""
        self._events.clear()

    def is_repeat(self, killed: Killed, record: Record) -> bool:
        """Whether it was told before: by unit and slice, as the first of a group kill, as an echo in syslog."""
        seen = self._events.get(killed.pid)
        if seen is None:
            return False
        apart = apart_s(seen, record)
        if apart is not None and apart > SAME_PID_S:
            return False
        is_same_name = (seen.victim_comm or "") == killed.comm or killed.comm_is_cut
        return is_same_name or (apart is not None and apart <= GROUP_KILL_S)
