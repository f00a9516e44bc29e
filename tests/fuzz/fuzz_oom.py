"""Throws damaged kernel logs at the parser for a given time: `python tests/fuzz/fuzz_oom.py SECONDS [SEED]`.

With atheris installed it is guided by coverage, else it mutates the corpus by itself. Either way these must hold:
no exception but UserError, no victim whose pid the log does not hold, no size below zero, no name longer than the
kernel's (escaped), no input that takes longer than a second. A failing input is written beside the script's output.
"""

from __future__ import annotations

import io
import json
import random
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from slmguard.core.errors import UserError  # noqa: E402
from slmguard.kernel_log.event import OomEvent  # noqa: E402
from slmguard.kernel_log.framing import COLOUR  # noqa: E402
from slmguard.kernel_log.json_lines import journal_entry  # noqa: E402
from slmguard.kernel_log.kmsg_record import parse_kmsg, unescape  # noqa: E402
from slmguard.kernel_log.record import FORMS  # noqa: E402
from slmguard.kernel_log.scan import LogScan  # noqa: E402
from slmguard.kernel_log.task_table import parse_task_table  # noqa: E402
from slmguard.kernel_log.wording import details, headline, printable  # noqa: E402

CORPUS = ROOT / "tests" / "kernel_log" / "corpus.jsonl"
SLOWEST_S = 1.0
LONGEST_COMM_CHARS = 60
TOKENS = (
    *(
        b"Killed process ",
        b"Out of memory: ",
        b"Memory cgroup out of memory: ",
        b"oom-kill:constraint=",
        b") total-vm:1kB",
    ),
    *(
        b" invoked oom-killer: gfp_mask=",
        b",task=",
        b",pid=7,uid=0",
        b",task_memcg=/",
        b"Tasks in /",
        b"Task in /",
        b"kernel: ",
    ),
    *(
        b"[    1.000000] ",
        b"<3>",
        b"3,1,1,-;",
        b"\\x0a",
        b"\n",
        b"\r",
        b"\x00",
        b"\x1b[31m",
        b"\xff",
        b"\xf0\x9f",
        b"(",
    ),
    *(
        b")",
        b"{",
        b'{"MESSAGE":"',
        b'"}',
        b"Kernel panic - not syncing: ",
        b"-- Boot x --\n",
        b"99999999999999999999",
        b" " * 500,
    ),
)


def check(data: bytes, form: str) -> None:
    """One input through everything; raises AssertionError when an invariant does not hold."""
    started_s = time.monotonic()
    try:
        scan = LogScan(io.BytesIO(data), "fuzz", form)
        events = list(scan.events())
    except UserError:
        return
    text = data.decode("utf-8", "replace")
    for event in events:
        check_event(event, text)
    for tally in scan.tallies.values():
        json.dumps(tally.document())
    lines = text.split("\n")
    parse_task_table(lines)
    for line in lines[:20]:
        parse_kmsg(line)
        unescape(line)
        journal_entry({"MESSAGE": line, "_TRANSPORT": "kernel", "__REALTIME_TIMESTAMP": line})
    assert time.monotonic() - started_s < SLOWEST_S, "too slow"


def check_event(event: OomEvent, text: str) -> None:
    """What must hold of any event, whatever the log."""
    json.dumps(event.document())
    assert printable(headline(event)).isprintable()
    assert all(line.isprintable() for line in details(event))
    if event.victim_pid is not None:
        assert 0 < event.victim_pid <= 1 << 22
        # Escapes and colours inside the number are undone before it is read; digits of other scripts are digits.
        shown = unescape(COLOUR.sub("", text))
        assert str(event.victim_pid) in shown or "\\" in text or not text.isascii()
    assert len(event.victim_comm or "") <= LONGEST_COMM_CHARS
    for size in (event.anon_rss_kb, event.file_rss_kb, event.shmem_rss_kb, event.total_vm_kb):
        assert size is None or size >= 0
    assert event.oom_score_adj is None or -1000 <= event.oom_score_adj <= 1000


def seeds() -> list[bytes]:
    """The logs of the corpus."""
    records = [json.loads(line) for line in CORPUS.read_text("utf-8").splitlines()]
    return ["\n".join(record["lines"]).encode("utf-8", "surrogateescape") for record in records]


def mutated(chance: random.Random, pool: list[bytes]) -> bytes:
    """A log with some damage: cut, spliced, repeated, bytes changed, tokens put in, lines shuffled."""
    data = bytearray(chance.choice(pool))
    for _ in range(chance.randint(1, 8)):
        at = chance.randint(0, len(data))
        kind = chance.randrange(7)
        if kind == 0:
            del data[at : at + chance.randint(1, 60)]
        elif kind == 1:
            data[at:at] = chance.choice(TOKENS)
        elif kind == 2:
            other = chance.choice(pool)
            start = chance.randint(0, len(other))
            data[at:at] = other[start : start + chance.randint(1, 300)]
        elif kind == 3 and data:
            data[at % len(data)] = chance.randrange(256)
        elif kind == 4:
            data[at:at] = data[at : at + chance.randint(1, 80)] * chance.choice((1, 2, 200))
        elif kind == 5:
            lines = data.split(b"\n")
            chance.shuffle(lines)
            data = bytearray(b"\n".join(lines))
        else:
            data = data[:at]
    return bytes(data[: 256 * 1024])


def run_plain(seconds: float, seed: int) -> int:
    """Mutates the corpus until the time is over; returns the exit code."""
    chance = random.Random(seed)  # noqa: S311 (not for secrets)
    pool = seeds()
    end_s = time.monotonic() + seconds
    rounds = 0
    while time.monotonic() < end_s:
        data, form = mutated(chance, pool), chance.choice(("auto", *FORMS))
        try:
            check(data, form)
        except Exception as error:  # noqa: BLE001 (any exception is what a fuzzer looks for)
            failing = Path(f"fuzz-oom-{seed}-{rounds}.bin")
            failing.write_bytes(data)
            print(f"seed {seed} round {rounds} format {form}: {type(error).__name__}: {error}; input in {failing}")
            return 1
        rounds += 1
    print(f"{rounds} damaged logs in {seconds:g} s, seed {seed}: nothing found")
    return 0


def run_guided(seconds: float) -> None:
    """Lets atheris drive."""
    import atheris  # type: ignore[import-untyped,import-not-found,unused-ignore]

    atheris.instrument_all()
    atheris.Setup([sys.argv[0], f"-max_total_time={seconds:g}"], lambda data: check(data, "auto"))
    atheris.Fuzz()


def main() -> int:
    """Read the arguments and run."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 10.0
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else random.SystemRandom().randrange(1 << 32)
    try:
        import atheris  # noqa: F401 # type: ignore[import-untyped,import-not-found,unused-ignore]
    except ImportError:
        return run_plain(seconds, seed)
    run_guided(seconds)
    return 0


if __name__ == "__main__":
    sys.exit(main())
