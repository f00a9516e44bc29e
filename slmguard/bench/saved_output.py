"""Saved output of an engine, whatever it printed, as runs, buffers and exit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import IO, Any

from slmguard.bench.buffers import BufferCollector
from slmguard.bench.exit_evidence import ExitCollector
from slmguard.bench.llama_bench import TableReader, is_record, run_from_record
from slmguard.bench.log_lines import cleaned, json_objects, messages, text_lines
from slmguard.bench.run_figures import RunFigures
from slmguard.bench.timings import RunCollector

# A document that spans lines (llama-bench -o json, a pretty-printed reply) is put together up to this size.
_LONGEST_DOCUMENT = 16 * 1024 * 1024
_DEEPEST = 6
# A figure's line has some 200 characters; longer ones are not searched as a whole, which takes quadratic time.
_LONGEST_LINE = 8192


class SavedOutput:
    """Reads output line by line; knows all formats at once, since outputs are mixed."""

    def __init__(self) -> None:
        self._timings = RunCollector()
        self._tables = TableReader()
        self._buffers = BufferCollector()
        self._exit = ExitCollector()
        self._pending: list[str] = []
        self._pending_size = 0
        self._depth = 0
        self._complete = True

    def read(self, stream: IO[bytes]) -> None:
        """Takes a whole file."""
        self.lines(text_lines(stream))

    def lines(self, lines: Iterable[str]) -> None:
        """Takes lines of text."""
        for line in lines:
            self._complete = line.endswith("\n")
            for part in cleaned(line):
                self._line(part)
        self._flush()

    def document(self) -> dict[str, Any]:
        """What was found; unknown values are None."""
        return {
            "runs": [run.document() for run in self.runs()],
            "buffers": self._buffers.document(),
            "exit": self._exit.document(),
        }

    def runs(self) -> list[RunFigures]:
        """The runs in the order of the output."""
        return self._timings.runs()

    def _line(self, line: str) -> None:
        found = list(_records(line))
        if self._depth and not (line[0] in "{[d" and any(_is_known(record) for record in found)):
            self._collect(line)
            self._plain(line)
            return
        if self._depth:
            # A brace that was no document's: what follows it is read for itself again.
            self._pending, self._pending_size, self._depth = [], 0, 0
        elif not found and _opens_document(line):
            self._collect(line)
        handled = [self._record(record) for record in found]
        if not any(handled):
            self._plain(line)

    def _plain(self, line: str) -> None:
        if len(line) > _LONGEST_LINE:
            # Generated text without a line break, perhaps with a figure glued to its end: the middle holds none.
            complete, self._complete = self._complete, False
            self._plain(line[: _LONGEST_LINE // 2])
            self._complete = complete
            line = line[-_LONGEST_LINE // 2 :]
        self._timings.line(line, complete=self._complete)
        for run in self._tables.line(line):
            self._timings.add(run)
        self._buffers.line(line)
        self._exit.line(line)

    def _record(self, record: dict[str, Any]) -> bool:
        """Takes a JSON record; False when it is none that this program knows."""
        if is_record(record):
            self._timings.add(run_from_record(record))
            return True
        timings = record.get("timings")
        if isinstance(timings, dict):
            self._timings.reply(timings)
            return True
        if "eval_duration" in record and "eval_count" in record:
            self._timings.ollama_reply(record)
            return True
        texts = list(messages(record))
        for text in texts:
            self._plain(text)
        return bool(texts)

    def _collect(self, line: str) -> None:
        """Puts a JSON document together that spans several lines; a list's objects are taken as each one ends."""
        if self._depth == 0 and line.strip() in {"[", "]"}:
            return
        self._pending.append(line)
        self._pending_size += len(line)
        self._depth += _depth_change(line)
        if self._depth <= 0 or self._pending_size > _LONGEST_DOCUMENT:
            self._flush()

    def _flush(self) -> None:
        text, self._pending, self._pending_size, self._depth = "\n".join(self._pending), [], 0, 0
        for record in _records(text):
            if _is_known(record):
                self._record(record)


def _is_known(record: dict[str, Any]) -> bool:
    """True for a benchmark's result or a reply with timings."""
    return is_record(record) or isinstance(record.get("timings"), dict) or "eval_duration" in record


def _opens_document(line: str) -> bool:
    return line.strip() in {"{", "[", "[{"} or (line.rstrip().endswith(("{", "[")) and line.lstrip()[0] in "{[")


def _depth_change(line: str) -> int:
    """Opened minus closed braces outside of strings."""
    change, quoted, escaped = 0, False, False
    for char in line:
        if escaped:
            escaped = False
        elif char == "\\":
            escaped = quoted
        elif char == '"':
            quoted = not quoted
        elif not quoted:
            change += (char in "{[") - (char in "}]")
    return change


def _records(text: str) -> Iterator[dict[str, Any]]:
    """The objects that matter in a text: whole ones, and replies nested in logs (`choices`, `response`)."""
    for record in json_objects(text):
        yield from _nested(record, _DEEPEST)


def _nested(record: dict[str, Any], depth: int) -> Iterator[dict[str, Any]]:
    if _is_known(record) or depth == 0:
        yield record
        return
    inner = [found for value in record.values() for found in _inner(value, depth - 1)]
    if any(map(_is_known, inner)):
        yield from inner
    else:
        yield record


def _inner(value: object, depth: int) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield from _nested(value, depth)
    elif isinstance(value, list) and depth > 0:
        for entry in value[:1000]:
            yield from _inner(entry, depth - 1)
