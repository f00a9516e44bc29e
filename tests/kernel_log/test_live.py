"""Reader, parser and excerpt together, as the daemon joins them."""

from __future__ import annotations

import errno
import os

from slmguard.kernel_log.cursor import NoCursorStore
from slmguard.kernel_log.event import OomEvent
from slmguard.kernel_log.excerpt import Excerpt
from slmguard.kernel_log.parser import OomParser
from slmguard.kernel_log.reader import KmsgReader
from slmguard.kernel_log.task_table import parse_task_table

KILL = "Memory cgroup out of memory: Killed process {} (llama-server) total-vm:9kB, anon-rss:8kB, file-rss:1kB"
REPORT = [
    "asker invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name",
    "[    500]   995   500     8623     7096    110592        0             0 llama-server",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,oom_memcg=/a,task_memcg=/a,task=llama-server,pid={},uid=9",
    KILL,
]


class Ring:
    """The kernel's ring as a reader sees it: it holds `size` records and forgets the oldest."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._records: list[tuple[int, bytes]] = []
        self._next_seq = 0
        self._position = 0

    def write(self, *texts: str) -> None:
        for text in texts:
            self._records.append((self._next_seq, f"6,{self._next_seq},{self._next_seq * 10},-;{text}\n".encode()))
            self._next_seq += 1
        self._records = self._records[-self._size :]

    def read(self, _fd: int, _size: int) -> bytes:
        if self._records and self._records[0][0] > self._position:
            self._position = self._records[0][0]
            raise BrokenPipeError(errno.EPIPE, "overrun")
        if self._position == self._next_seq:
            raise BlockingIOError(errno.EAGAIN, "nothing new")
        seq, raw = self._records[self._position - self._records[0][0]]
        self._position = seq + 1
        return raw

    def reader(self) -> KmsgReader:
        return KmsgReader(
            NoCursorStore(),
            boot_id="boot",
            from_oldest=True,
            opener=lambda _path: os.open(os.devnull, os.O_RDONLY),
            read=self.read,
        )


def drain(reader: KmsgReader, parser: OomParser, excerpt: Excerpt) -> list[OomEvent]:
    events: list[OomEvent] = []
    while records := reader.read(0.0):
        for record in records:
            excerpt.add(record)
            events += parser.feed(record)
    return events


def test_kills_in_a_flood_that_fits_the_ring_are_all_told_and_nothing_is_lost() -> None:
    ring = Ring(size=200_000)
    for number in range(100):
        ring.write(*("docker0: port 2(veth) entered disabled state" for _ in range(1000)))
        ring.write(*(line.format(500 + number) for line in REPORT))
    reader, parser, excerpt = ring.reader(), OomParser(hold_records=0), Excerpt()
    events = drain(reader, parser, excerpt)
    reader.close()
    assert [event.victim_pid for event in events] == list(range(500, 600))
    assert {event.invoker_comm for event in events} == {"asker"}
    assert reader.health.lost_records == 0


def test_an_overrun_in_the_middle_of_an_oom_loses_its_header_but_not_its_kill() -> None:
    ring = Ring(size=10)
    reader, parser, excerpt = ring.reader(), OomParser(hold_records=0), Excerpt()
    ring.write(REPORT[0])
    assert drain(reader, parser, excerpt) == []
    ring.write(*("noise" for _ in range(500)), KILL.format(77))
    (event,) = drain(reader, parser, excerpt)
    reader.close()
    assert (event.victim_pid, event.kind, event.seq) == (77, "memcg", 501)
    assert reader.health.lost_records == 491


def test_the_excerpt_at_a_kill_holds_the_task_table() -> None:
    ring = Ring(size=1000)
    ring.write("before", *(line.format(500) for line in REPORT))
    reader, parser, excerpt = ring.reader(), OomParser(hold_records=0), Excerpt()
    drain(reader, parser, excerpt)
    reader.close()
    lines = excerpt.since_invocation()
    assert lines[0] == REPORT[0]
    assert [(row.pid, row.comm, row.rss_kb) for row in parse_task_table(lines)] == [(500, "llama-server", 28384)]
