"""A whole log, file or pipe, of any size: lines in, OOM events out, with bounded memory."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Protocol

from slmguard.core.errors import UserError
from slmguard.kernel_log.event import Notice, OomEvent
from slmguard.kernel_log.framing import frame
from slmguard.kernel_log.parser import HINTS, OomParser

LONGEST_LINE_BYTES = 64 * 1024
HINT_BYTES = tuple(hint.encode() for hint in HINTS)
JOURNAL_FILE_MAGIC = b"LPKSHHRH"
GZIP_MAGIC, XZ_MAGIC, ZSTD_MAGIC, BZIP2_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd", b"BZh"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
OTHER_JOURNAL_FORMS = (b'"MESSAGE"', b"MESSAGE=")


@dataclass(slots=True)
class Tally:
    """Notices of one kind: the first of them and how many there were."""

    first: Notice
    count: int = 1

    def document(self) -> dict[str, object]:
        """The entry as it stands under `warnings` in the JSON output."""
        first = self.first
        return {"kind": first.kind, "text": first.text, "count": self.count, "time": first.time, "line": first.line}


class LogScan:
    """One pass over a log. Iterate over `events()`; afterwards `tallies` holds what else was found.

    Raises UserError for a file that is no text log or whose first bytes cannot be read.
    """

    def __init__(self, stream: IO[bytes], name: str, form: str = "auto") -> None:
        self._form = form
        try:
            self._stream = _unpacked(stream, name)
        except OSError as error:
            raise UserError(f"cannot read {name!r}: {error.strerror or error}") from error
        self._parser = OomParser()
        self.tallies: dict[str, Tally] = {}
        self.lines = 0

    def events(self) -> Iterator[OomEvent]:
        """The OOM events in the order of their kill lines.

        A log that breaks off (a damaged archive, a failing disk) yields what was read and a tally `unreadable`.
        """
        try:
            for line in self._raw_lines():
                yield from self._take(line)
                if self.lines & 0xFFF == 0:
                    self._collect_notices()
        except (OSError, EOFError, zlib.error) as error:
            self._tally(Notice("unreadable", f"reading ended at line {self.lines}: {error}", line=self.lines))
        yield from self._parser.finish()
        self._collect_notices()

    def _raw_lines(self) -> Iterator[bytes]:
        """Lines, each at most 64 KiB; what a longer line has beyond that is skipped and said."""
        while line := self._stream.readline(LONGEST_LINE_BYTES):
            self.lines += 1
            yield line
            if len(line) < LONGEST_LINE_BYTES or line.endswith(b"\n"):
                continue
            self._tally(Notice("long_line", f"line {self.lines} is longer than 64 KiB and was cut", line=self.lines))
            while rest := self._stream.readline(LONGEST_LINE_BYTES):
                if rest.endswith(b"\n"):
                    break

    def _take(self, line: bytes) -> list[OomEvent]:
        if not _is_of_interest(line):
            return self._parser.skip(1) if len(line) > 1 else []
        if line.lstrip().startswith(OTHER_JOURNAL_FORMS):
            text = "this output of journalctl does not say on one line who wrote a message: use -o short or -o json"
            self._tally(Notice("unsupported_form", text, line=self.lines))
            return []
        record = frame(line.decode("utf-8", "replace"), number=self.lines, form=self._form)
        return self._parser.feed(record) if record is not None else []

    def _collect_notices(self) -> None:
        for notice in self._parser.take_notices():
            self._tally(notice)

    def _tally(self, notice: Notice) -> None:
        # A cut record names its victim, so each is of interest; of the others the first says it all.
        key = notice.text if notice.kind == "cut_record" and len(self.tallies) < 100 else notice.kind
        known = self.tallies.get(key)
        if known is None:
            self.tallies[key] = Tally(notice)
        else:
            known.count += 1


def _unpacked(stream: IO[bytes], name: str) -> _Lines:
    """The stream, decompressed when it begins like a gzip, xz or bzip2 file, as UTF-8 when it is UTF-16."""
    buffered = stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(_Raw(stream))
    start = buffered.peek(8)[:8]
    if start.startswith(JOURNAL_FILE_MAGIC):
        raise UserError(f"{name} is a binary journal: read it with journalctl -k --file {name} | slmguard oom")
    if start.startswith(ZSTD_MAGIC):
        raise UserError(f"{name} is compressed with zstd: read it with zstdcat {name} | slmguard oom")
    if start.startswith(GZIP_MAGIC):
        import gzip

        return gzip.GzipFile(fileobj=buffered)
    if start.startswith(XZ_MAGIC):
        return _XzLines(buffered)
    if start.startswith(BZIP2_MAGIC):
        import bz2

        return bz2.BZ2File(buffered)
    return _Utf16Lines(buffered) if start.startswith(UTF_16_MARKS) else buffered


def _is_of_interest(line: bytes) -> bool:
    """As parser.is_of_interest, before the line is decoded."""
    for hint in HINT_BYTES:
        if hint in line:
            return True
    return line.startswith(b",")


class _Lines(Protocol):
    """Whatever gives lines of bytes."""

    def readline(self, size: int, /) -> bytes: ...


class _Raw(io.RawIOBase):
    """Any readable as the raw stream that BufferedReader wants."""

    def __init__(self, source: IO[bytes]) -> None:
        super().__init__()
        self._source = source

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(buffer)  # type: ignore[arg-type]
        data = self._source.read(len(view))
        view[: len(data)] = data
        return len(data)


class _XzLines:
    """An xz file whose damage shows as OSError, as with the other archives."""

    def __init__(self, source: io.BufferedReader) -> None:
        import lzma

        self._file = lzma.LZMAFile(source)  # noqa: SIM115 (closed with its source)
        self._damage = lzma.LZMAError

    def readline(self, size: int, /) -> bytes:
        try:
            return self._file.readline(size)
        except self._damage as error:
            raise OSError(str(error)) from error


class _Utf16Lines:
    """A UTF-16 log (a redirect in PowerShell) as lines of UTF-8."""

    def __init__(self, source: io.BufferedReader) -> None:
        self._text = io.TextIOWrapper(source, "utf-16", errors="replace")

    def readline(self, size: int, /) -> bytes:
        return self._text.readline(size).encode("utf-8", "replace")
