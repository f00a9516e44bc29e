"""How many lines of kernel log a second one core reads: `python benchmarks/kernel_log_parser.py [--json]`.

Three logs: a mix as servers write it (one OOM report of 80 lines in 2,000 lines of other messages), nothing but OOM
reports (every line of interest), and a flood of raw records through the live reader's path. The yardstick is a plain
search of each line of the mix for one regular expression, in the same run, so that figures of different machines and
of a busy one can be compared. Times are the best of five, in CPU seconds of this process.
"""

from __future__ import annotations

import io
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from slmguard.kernel_log.kmsg_record import parse_kmsg
from slmguard.kernel_log.parser import OomParser
from slmguard.kernel_log.scan import LogScan

ROUNDS = 5
YARDSTICK = re.compile(rb"Killed process (\d+) \((.+)\)")
ORDINARY = (
    'audit: type=1400 audit(1700000000.123:45): apparmor="STATUS" operation="profile_load" name="docker-default"',
    "docker0: port 2(vethcd0dbfb) entered forwarding state",
    "usb 1-1.4: new high-speed USB device number 7 using xhci_hcd",
    "EXT4-fs (mmcblk0p2): mounted filesystem with ordered data mode. Opts: (null)",
    "systemd[1]: Started Session 12 of user pi.",
    "brcmfmac: brcmf_cfg80211_set_power_mgmt: power save enabled",
    "IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
)


def report(pid: int) -> list[str]:
    """One OOM as 6.x prints it."""
    rows = [
        f"[{pid - 60 + row:7d}]  1000 {pid - 60 + row:7d}    42313      128   172032        0             0 worker"
        for row in range(60)
    ]
    stack = [f" ? try_charge_memcg+0x{offset:x}/0x6f0" for offset in range(17)]
    return [
        "llama-server invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
        *stack,
        *rows,
        (
            "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/system.slice/llama.service,"
            f"task_memcg=/system.slice/llama.service,task=llama-server,pid={pid},uid=995"
        ),
        (
            f"Memory cgroup out of memory: Killed process {pid} (llama-server) total-vm:6511152kB, anon-rss:3072484kB, "
            "file-rss:21320kB, shmem-rss:0kB, UID:995 pgtables:240kB oom_score_adj:0"
        ),
    ]


def mix(reports: int) -> bytes:
    """A syslog file."""
    lines = []
    for number in range(reports):
        lines += [ORDINARY[index % len(ORDINARY)] for index in range(2000)]
        lines += report(1000 + number)
    return "".join(
        f"Jul 19 05:19:24 board kernel: [{index / 100:12.6f}] {line}\n" for index, line in enumerate(lines)
    ).encode()


def only_reports(reports: int) -> bytes:
    """The lines of OOM reports that say something, and nothing else."""
    lines = [line for number in range(reports) for line in (report(1000 + number)[0], *report(1000 + number)[-2:])]
    return "".join(f"Jul 19 05:19:24 board kernel: {line}\n" for line in lines).encode()


def raw(reports: int) -> list[str]:
    """Records as /dev/kmsg gives them."""
    lines = [line for number in range(reports) for line in (*ORDINARY * 20, *report(1000 + number))]
    return [f"6,{index},{index * 100},-;{line}\n" for index, line in enumerate(lines)]


def read_file(data: bytes) -> int:
    """The events in a file."""
    return sum(1 for _ in LogScan(io.BytesIO(data), "benchmark").events())


def read_live(records: list[str]) -> int:
    """The events in a live stream of records."""
    parser = OomParser(hold_records=0)
    count = 0
    for text in records:
        record = parse_kmsg(text)
        if record is not None:
            count += len(parser.feed(record))
    return count


def search(data: bytes) -> int:
    """The yardstick."""
    return sum(1 for line in io.BytesIO(data) if YARDSTICK.search(line))


def lines_per_s(lines: int, work: Callable[[], int], expected: int) -> float:
    """The best of five runs; raises SystemExit when a run finds the wrong number of events."""
    best_s = float("inf")
    for _ in range(ROUNDS):
        started_s = time.process_time()
        found = work()
        best_s = min(best_s, time.process_time() - started_s)
        if found != expected:
            raise SystemExit(f"found {found} events, expected {expected}")
    return lines / best_s


def main() -> None:
    """Measure and print."""
    mixed, reports, records = mix(40), only_reports(4000), raw(200)
    figures = {
        "mix": lines_per_s(mixed.count(b"\n"), lambda: read_file(mixed), 40),
        "only_oom_reports": lines_per_s(reports.count(b"\n"), lambda: read_file(reports), 4000),
        "live_records": lines_per_s(len(records), lambda: read_live(records), 200),
        "yardstick_plain_search": lines_per_s(mixed.count(b"\n"), lambda: search(mixed), 40),
    }
    if "--json" in sys.argv:
        print(json.dumps({f"{name}_lines_per_s": round(value) for name, value in figures.items()}))
        return
    for name, value in figures.items():
        print(f"{name.replace('_', ' '):24} {value:>12,.0f} lines/s")


if __name__ == "__main__":
    main()
