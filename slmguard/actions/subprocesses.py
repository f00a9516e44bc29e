"""Programs run with a time limit and a bounded answer, as argument lists, never through a shell."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass

from slmguard.actions.base import UnitControlError

_KEPT_BYTES = 16384
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Ended:
    """How a program ended: its exit code (negative: the signal) and the last 16 KiB of what it wrote."""

    code: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """Its last line on stderr (else on stdout) as one harmless line, or its exit code when it said nothing."""
        lines = [line for line in (self.stderr or self.stdout).splitlines() if line.strip()]
        said = "".join(char if char.isprintable() else "?" for char in lines[-1].strip()[:200]) if lines else ""
        return said or f"exit code {self.code}"


def run_program(argv: Sequence[str], timeout_s: float) -> Ended:
    """Run `argv` to its end.

    Raises TimeoutError after `timeout_s` seconds, when the program and its process group have been killed, and
    UnitControlError when it cannot be started. What it leaves running in the background is not waited for.
    """
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env={**os.environ, "LC_ALL": "C"},
        )
    except OSError as error:
        raise UnitControlError(f"cannot run {argv[0]}: {error.strerror}") from None
    except ValueError as error:
        raise UnitControlError(f"cannot run {argv[0]!r}: {error}") from None
    with process:
        try:
            out, err = _collect(process, time.monotonic() + timeout_s)
        except TimeoutError:
            raise TimeoutError(f"{' '.join(argv)}: not done after {timeout_s:g} s") from None
        finally:
            _end(process)
    return Ended(process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _collect(process: subprocess.Popen[bytes], deadline_s: float) -> tuple[bytes, bytes]:
    """The ends of both outputs, read until the program is gone. Raises TimeoutError."""
    kept = {"out": b"", "err": b""}
    with selectors.DefaultSelector() as selector:
        for stream, name in ((process.stdout, "out"), (process.stderr, "err")):
            if stream is not None:
                os.set_blocking(stream.fileno(), False)
                selector.register(stream, selectors.EVENT_READ, name)
        while True:
            gone = process.poll() is not None
            ready = selector.select(0 if gone else _POLL_S) if selector.get_map() else []
            if not selector.get_map() and not gone:
                time.sleep(_POLL_S)
            for key, _ in ready:
                part = os.read(key.fd, 65536)
                kept[key.data] = (kept[key.data] + part)[-_KEPT_BYTES:]
                if not part:
                    selector.unregister(key.fileobj)
            if gone and not ready:
                return kept["out"], kept["err"]
            if time.monotonic() >= deadline_s:
                raise TimeoutError


def _end(process: subprocess.Popen[bytes]) -> None:
    """Make sure that it is gone and reaped; its group is killed only when it still runs itself."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
