"""The timings that llama.cpp and its servers printed from March 2023 to the end of 2026, by one set of expressions.

The printing function's name changed seven times (`main:`, `llama_print_timings:`, `llama_perf_context_print:`,
`common_perf_print:`, `slot print_timing: id 0 | task 2 |` …), the tail of the lines stayed. So everything before the
figure's name is ignored, but for the slot and task of a server, which tell interleaved requests apart.
"""

from __future__ import annotations

import re
from typing import Any

from slmguard.bench.run_figures import RunFigures, count, number, rate

_NUMBER = r"[-+]?(?:\d+(?:\.\d+)?(?:e[-+]?\d+)?|inf(?:inity)?|nan(?:\([a-z]*\))?)"
# A line may be cut anywhere: a figure counts only when what follows it is there too.
_TIME = re.compile(
    r"(?<![a-z])(?P<kind>prompt eval|generation eval|eval|load|total|predict)\s+time\s*=\s*"
    rf"(?P<ms>{_NUMBER})\s*ms\b"
    rf"(?:\s*/\s*(?P<tokens>\d+)\s+(?:runs?|tokens?)\b)?"
    rf"(?:\s*/\s*(?P<each>{_NUMBER})\s*ms per token\b)?"
    rf"(?:\s*\(\s*(?P<per>{_NUMBER})\s*ms per (?:token|run)\b)?"
    rf"(?:\s*,\s*(?P<tps>{_NUMBER})\s*tokens per second\b)?",
    re.IGNORECASE,
)
_SLOT = re.compile(r"\bid\s+(?P<slot>\d+)\s*\|\s*task\s+(?P<task>-?\d+)\s*\|")
# The chat client that took the name llama-cli in December 2025.
_CLIENT = re.compile(
    rf"\[\s*Prompt:\s*(?P<prefill>{_NUMBER})\s*t/s\s*\|\s*Generation:\s*(?P<decode>{_NUMBER})\s*t/s", re.IGNORECASE
)
# RKLLM's table: stage, total time, tokens, time per token, tokens per second.
_RKLLM = re.compile(
    rf"\b(?P<stage>Prefill|Generate)\s+(?P<ms>{_NUMBER})\s+(?P<tokens>\d+)\s+{_NUMBER}\s+(?P<tps>{_NUMBER})\s*$"
)
_RKLLM_LOAD = re.compile(rf"\bModel init time \(ms\)\s+(?P<ms>{_NUMBER})\s*$")
# `ollama run --verbose`.
_OLLAMA = re.compile(
    r"^\s*(?P<kind>total duration|load duration|prompt eval (?:count|duration|rate)|eval (?:count|duration|rate)):\s+"
    r"(?P<value>\S+)(?P<unit>.*)$"
)
_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>h|m(?!s)|s|ms|µs|us|ns)")
_DURATION_MS = {"h": 3_600_000.0, "m": 60_000.0, "s": 1000.0, "ms": 1.0, "µs": 1e-3, "us": 1e-3, "ns": 1e-6}
_KINDS = {"prompt eval": "prefill", "eval": "decode", "generation eval": "decode", "predict": "decode"}


class RunCollector:
    """Sorts timing lines into runs; feed it one line at a time, `runs()` gives what was found."""

    def __init__(self) -> None:
        self._runs: list[RunFigures] = []
        self._seen: dict[int, set[str]] = {}
        self._by_task: dict[tuple[str, str], RunFigures] = {}
        self._current: RunFigures | None = None
        self._replies: list[RunFigures] = []

    def runs(self) -> list[RunFigures]:
        """The runs in the order of their first line, without those of which nothing is known."""
        replies = {id(run) for run in self._replies}
        logged = [run for run in self._runs if id(run) not in replies]
        repeated: set[int] = set()
        for reply in self._replies:
            # A server's reply and its own log of it, saved into one file: the log's run counts, it has the total.
            twin = next((run for run in logged if id(run) not in repeated and run.same_timings(reply)), None)
            if twin is not None:
                repeated |= {id(twin), id(reply)}
        return [run for run in self._runs if not run.is_empty() and not (id(run) in repeated and id(run) in replies)]

    def line(self, line: str, *, complete: bool = True) -> None:
        """Takes what one line says about timings; not `complete`: the file ends in the middle of it, perhaps."""
        slot = _SLOT.search(line)
        if slot is not None and "print_timing" in line and not line[slot.end() :].strip():
            # Servers until mid-2026: the prefix alone, the figures on the next lines without one.
            self._current = self._task(slot["slot"], slot["task"])
        for match in _TIME.finditer(line):
            self._take(match, slot)
        if client := _CLIENT.search(line):
            self._runs.append(RunFigures(prefill_tps=number(client["prefill"]), decode_tps=number(client["decode"])))
        elif complete:
            # These figures stand at the line's end: of a cut line the last digits may be missing.
            self._open_ended(line)

    def reply(self, timings: dict[str, Any]) -> None:
        """Takes the `timings` object of a server's reply."""
        run = RunFigures(
            prefill_tokens=count(_text(timings.get("prompt_n"))),
            prefill_ms=number(_text(timings.get("prompt_ms"))),
            prefill_tps=number(_text(timings.get("prompt_per_second"))),
            decode_tokens=count(_text(timings.get("predicted_n"))),
            decode_ms=number(_text(timings.get("predicted_ms"))),
            decode_tps=number(_text(timings.get("predicted_per_second"))),
        )
        self._runs.append(run)
        self._replies.append(run)

    def ollama_reply(self, reply: dict[str, Any]) -> None:
        """Takes the durations, in nanoseconds, of Ollama's last chunk."""
        run = RunFigures(
            prefill_tokens=count(_text(reply.get("prompt_eval_count"))),
            prefill_ms=_milliseconds(reply.get("prompt_eval_duration")),
            decode_tokens=count(_text(reply.get("eval_count"))),
            decode_ms=_milliseconds(reply.get("eval_duration")),
            load_ms=_milliseconds(reply.get("load_duration")),
            total_ms=_milliseconds(reply.get("total_duration")),
        )
        run.prefill_tps = rate(run.prefill_tokens, run.prefill_ms)
        run.decode_tps = rate(run.decode_tokens, run.decode_ms)
        self._runs.append(run)

    def add(self, run: RunFigures) -> None:
        """Takes a run that was read elsewhere."""
        self._runs.append(run)

    def _open_ended(self, line: str) -> None:
        if rkllm := _RKLLM.search(line):
            phase = "prefill" if rkllm["stage"] == "Prefill" else "decode"
            run = self._run_for(phase)
            _set(run, phase, count(rkllm["tokens"]), number(rkllm["ms"]), number(rkllm["tps"]))
        elif load := _RKLLM_LOAD.search(line):
            self._run_for("load").load_ms = number(load["ms"])
        elif ollama := _OLLAMA.match(line):
            self._ollama_line(ollama["kind"], ollama["value"])

    def _take(self, match: re.Match[str], slot: re.Match[str] | None) -> None:
        kind = match["kind"].lower()
        phase = _KINDS.get(kind, kind)
        if slot is not None and slot.start() < match.start():
            run = self._task(slot["slot"], slot["task"], phase)
        else:
            run = self._run_for(phase)
        milliseconds = number(match["ms"])
        if phase == "load":
            run.load_ms = milliseconds
        elif phase == "total":
            run.total_ms = milliseconds
        else:
            tokens = count(match["tokens"])
            tps = number(match["tps"])
            if tps is None:
                each = number(match["each"])
                tps = rate(tokens, milliseconds) if tokens else 1000 / each if each else None
            _set(run, phase, tokens, milliseconds, tps)

    def _ollama_line(self, kind: str, value: str) -> None:
        if kind == "total duration":
            run = self._run_for("load")
            run.total_ms = _duration_ms(value)
            return
        run = self._current or self._run_for("load")
        phase = "prefill" if kind.startswith("prompt") else "decode"
        if kind == "load duration":
            run.load_ms = _duration_ms(value)
        elif kind.endswith("count"):
            setattr(run, f"{phase}_tokens", count(value))
        elif kind.endswith("rate"):
            setattr(run, f"{phase}_tps", number(value))
        else:
            setattr(run, f"{phase}_ms", _duration_ms(value))

    def _task(self, slot: str, task: str, phase: str | None = None) -> RunFigures:
        """The run of a server's task; numbers that come again (after a restart) begin another run."""
        run = self._by_task.get((slot, task))
        seen = self._seen[id(run)] if run is not None else set()
        if run is None or (bool(seen) if phase is None else phase in seen):
            run = self._new()
            self._by_task[slot, task] = run
        if phase is not None:
            self._seen[id(run)].add(phase)
        return run

    def _run_for(self, phase: str) -> RunFigures:
        """The run that an unprefixed line belongs to: a figure that it has already begins the next run."""
        run = self._current
        if run is None or phase in self._seen[id(run)] or "total" in self._seen[id(run)]:
            run = self._new()
            self._current = run
        self._seen[id(run)].add(phase)
        return run

    def _new(self) -> RunFigures:
        run = RunFigures()
        self._runs.append(run)
        self._seen[id(run)] = set()
        return run


def _set(run: RunFigures, phase: str, tokens: int | None, milliseconds: float | None, tps: float | None) -> None:
    setattr(run, f"{phase}_tokens", tokens)
    setattr(run, f"{phase}_ms", milliseconds)
    setattr(run, f"{phase}_tps", tps)


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _milliseconds(nanoseconds: object) -> float | None:
    value = number(_text(nanoseconds))
    return value / 1e6 if value is not None else None


def _duration_ms(text: str) -> float | None:
    """`1m2.5s` in milliseconds, None when it is none."""
    total, end = 0.0, 0
    for match in _DURATION.finditer(text):
        if match.start() != end:
            return None
        total += float(match["number"]) * _DURATION_MS[match["unit"]]
        end = match.end()
    return total if end and end == len(text) else None
