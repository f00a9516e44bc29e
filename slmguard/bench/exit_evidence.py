"""How the engine ended, when the saved output says so."""

from __future__ import annotations

import re
from typing import Any

_SIGNALS = {"4": "SIGILL", "6": "SIGABRT", "7": "SIGBUS", "9": "SIGKILL", "11": "SIGSEGV", "15": "SIGTERM"}
# A shell's words for a signal: alone on the line, or between its own prefix and the command. Prose is none.
_SHELL = r"^(?:\S+: line \d+:\s+\d+ |\[\d+\][+-]?\s+(?:\d+ )?|\S+: )?{word}(?: \(core dumped\))?(?:\s*$|\s{{2,}}\S)"
_WORDS = (
    (re.compile(_SHELL.format(word="Killed")), "SIGKILL"),
    (re.compile(_SHELL.format(word="Segmentation fault")), "SIGSEGV"),
    (re.compile(_SHELL.format(word="Aborted") + r"|^terminate called |\bGGML_ASSERT\("), "SIGABRT"),
    (re.compile(_SHELL.format(word="Illegal instruction")), "SIGILL"),
    (re.compile(_SHELL.format(word="Bus error")), "SIGBUS"),
    (re.compile(_SHELL.format(word="Terminated")), "SIGTERM"),
)
_CODE = re.compile(
    r"(?:exit(?:ed)?(?: with)?(?: non-zero)?(?: exit)?[ _-](?:code|status)|code=exited, status)"
    r"\s*[:= ]\s*(?P<code>\d{1,3})\b",
    re.IGNORECASE,
)
_SIGNAL = re.compile(
    r"(?:terminated by signal|killed by signal|code=(?:killed|dumped), status=)\s*(?P<number>\d{1,2})", re.IGNORECASE
)
_OOM = re.compile(
    r"\boom-kill\b|\bOut of memory: Kill|std::bad_alloc|\b(?:failed|unable) to allocate\b|\bCannot allocate memory\b"
    r"|\berror\b.*\bout of memory\b",
    re.IGNORECASE,
)
_LOAD_FAILED = re.compile(
    r"(?:failed to load model|error loading model|unable to load model|exiting due to model loading error)",
    re.IGNORECASE,
)
_USAGE = re.compile(r"^error: (?:invalid argument|unknown argument|.* requires an argument)", re.IGNORECASE)


class ExitCollector:
    """Collects evidence; `document()` is None when the output does not tell how the engine ended."""

    def __init__(self) -> None:
        self._code: int | None = None
        self._signal: str | None = None
        self._reason: str | None = None

    def line(self, line: str) -> None:
        """Takes what one line says about the end."""
        if code := _CODE.search(line):
            self._code = int(code["code"])
            if self._code > 128:
                self._signal = _SIGNALS.get(str(self._code - 128), self._signal)
        if signal := _SIGNAL.search(line):
            self._signal = _SIGNALS.get(signal["number"], f"signal {signal['number']}")
        for pattern, name in _WORDS:
            if pattern.search(line):
                self._signal = name
        if _OOM.search(line):
            self._reason = "out_of_memory"
        elif _LOAD_FAILED.search(line):
            self._reason = self._reason or "model_load_failed"
        elif _USAGE.search(line):
            self._reason = "usage"

    def document(self) -> dict[str, Any] | None:
        """Exit code, signal and reason, as far as they are known."""
        if self._code is None and self._signal is None and self._reason is None:
            return None
        return {"code": self._code, "signal": self._signal, "reason": self._reason}
