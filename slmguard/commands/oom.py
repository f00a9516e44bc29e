"""`slmguard oom`: the OOM kills that a kernel log holds."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING

from slmguard.core.errors import EXIT_OK, UserError

if TYPE_CHECKING:
    from slmguard.kernel_log.scan import LogScan

HELP = "find the OOM kills in a kernel log"
DESCRIPTION = """Reads a kernel log in any usual form and prints every process that the kernel killed for lack of
memory: raw /dev/kmsg records, dmesg, dmesg -T, journalctl -k, syslog files, netconsole, also compressed (gz, xz, bz2).
Failed allocations of drivers and programs that merely speak of OOM are listed apart, never as kills."""
EPILOG = """examples:
  slmguard oom /var/log/kern.log           what did the kernel kill?
  journalctl -k -b -1 | slmguard oom       before the last reboot
  dmesg -T | slmguard oom --json | jq .events
  slmguard oom /var/log/kern.log.2.gz

The exit code is 0 whether or not there were kills. The fields are described in docs/reference/oom-events.md.
"""
FORMATS = ("auto", "kmsg", "dmesg", "dmesg-T", "journal", "syslog")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `slmguard oom`."""
    parser.add_argument("file", nargs="?", default="-", metavar="FILE", help="the log; - or nothing is standard input")
    parser.add_argument("--format", choices=FORMATS, default="auto", help="the form of the log (default: auto)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Print the events; raises UserError when the file cannot be read."""
    from slmguard.kernel_log.scan import LogScan

    with _open(args.file) as stream:
        scan = LogScan(stream, args.file, args.format)
        if args.json:
            _print_json(scan)
        else:
            _print_text(scan)
    return EXIT_OK


def _open(name: str) -> IO[bytes]:
    if name == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UserError("no log given: name a file, or pipe one in, for example: journalctl -k | slmguard oom")
        return os.fdopen(os.dup(sys.stdin.fileno()), "rb")
    try:
        mode = Path(name).stat().st_mode
        if stat.S_ISDIR(mode):
            raise UserError(f"{name} is a directory: name a log file in it")
        if stat.S_ISCHR(mode):
            return _open_kmsg(name)
        return open(name, "rb")  # noqa: PTH123 (the caller closes it)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(f"cannot read {name!r}: {reason}") from error


def _open_kmsg(name: str) -> IO[bytes]:
    """What /dev/kmsg holds at this moment; reading it as a file would wait for more for ever."""
    from slmguard.kernel_log.snapshot import kmsg_snapshot

    return kmsg_snapshot(name)


def _print_json(scan: LogScan) -> None:
    """One JSON document, written event by event so that a log of any size needs no more memory."""
    import json

    sys.stdout.write('{"events": [')
    separator = "\n  "
    for event in scan.events():
        sys.stdout.write(separator + json.dumps(event.document()))
        separator = ",\n  "
    sys.stdout.write("\n],\n")
    sys.stdout.write('"warnings": [')
    separator = "\n  "
    for tally in scan.tallies.values():
        sys.stdout.write(separator + json.dumps(tally.document()))
        separator = ",\n  "
    sys.stdout.write("\n]}\n")


def _print_text(scan: LogScan) -> None:
    from slmguard.kernel_log.wording import details, headline, printable

    counts: Counter[str] = Counter()
    for event in scan.events():
        counts[event.kind] += 1
        when = printable(event.time) if event.time else "no time"
        print(f"{when} (line {event.line})")
        print(f"  {headline(event)}")
        for line in details(event):
            print(f"    {line}")
    if counts:
        kinds = ", ".join(f"{count} {kind}" for kind, count in counts.items())
        total = sum(counts.values())
        print(f"\n{total} OOM event{'s' if total > 1 else ''} in {scan.lines} lines: {kinds}")
    else:
        print(f"no OOM kill in {scan.lines} lines")
    for tally in scan.tallies.values():
        times = f", {tally.count} times" if tally.count > 1 else ""
        where = f" (line {tally.first.line}{times})" if tally.first.line else ""
        print(f"note: {tally.first.kind.replace('_', ' ')}{where}: {printable(tally.first.text)}")
