"""Three ways to restart the guarded service, and nothing else: systemd, a signal to its process, a configured command.

llama-server that is told to stop while a client is connected stops computing, keeps all its memory and does not end
until that client goes away (300 s seen). So every way that can kills what has not stopped in time.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slmguard.actions.base import UnitControlError
from slmguard.actions.subprocesses import Ended, run_program
from slmguard.core.errors import UserError

_log = logging.getLogger(__name__)

_UNIT_NAME = re.compile(r"[A-Za-z0-9_.:@\\][A-Za-z0-9_.:@\\-]*")
_SYSTEMCTL_TIMEOUT_S = 10.0
_POLL_S = 0.25
_AFTER_KILL_S = 15.0  # from SIGKILL to the new process: a board that swaps needs seconds to free a large one
_UNLOADED = {
    "not-found": "systemd has no unit of that name",
    "masked": "the unit is masked (systemctl unmask brings it back)",
    "bad-setting": "the unit file has a mistake (systemctl status names it)",
    "error": "the unit file cannot be read (systemctl status says why)",
}
_SHOWN = "LoadState,ActiveState,SubState,Result,MainPID,InvocationID"

Sleep = Callable[[float], bool]


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


class SystemdUnitControl:
    """Restarts one systemd unit with systemctl. `sleep` returns True when the daemon stops."""

    def __init__(
        self,
        unit: str,
        *,
        user: bool = False,
        systemctl: str = "systemctl",
        sleep: Sleep = _sleep,
        poll_s: float = _POLL_S,
    ) -> None:
        """Prepare for `unit`; `.service` is added to a bare name. Raises UserError for what is no unit name."""
        if not _UNIT_NAME.fullmatch(unit) or len(unit) > 255:
            raise UserError(f"[service] unit = {unit[:80]!r}: not a name of a systemd unit")
        self.unit = unit if "." in unit else unit + ".service"
        self._command = [systemctl, *(["--user"] if user else []), "--no-ask-password", "--no-pager"]
        self._sleep = sleep
        self._poll_s = poll_s

    def restart(self, timeout_s: float) -> None:
        """Restart the unit; what has not stopped after `timeout_s` seconds is killed.

        Raises UnitControlError with systemd's answer, TimeoutError when there is no new process 15 s after the kill.
        """
        before = self._show()
        self._order("restart", "--no-block")
        if self._await_new_life(before, timeout_s):
            return
        if self._show().get("InvocationID") == before.get("InvocationID"):
            _log.warning("%s did not stop within %g s: killing it", self.unit, timeout_s)
            self._kill()
        if not self._await_new_life(before, _AFTER_KILL_S):
            raise TimeoutError(
                f"{self.unit} was not started again within {timeout_s + _AFTER_KILL_S:g} s ({self._state()})"
            )

    def force_restart(self, timeout_s: float) -> None:
        """Kill the unit's processes at once and start it again. Raises like `restart`."""
        before = self._show()
        if before.get("ActiveState") not in {"inactive", "failed"}:
            self._kill()
        self._order("restart", "--no-block")
        limit_s = max(timeout_s, _AFTER_KILL_S)
        if not self._await_new_life(before, limit_s):
            raise TimeoutError(f"{self.unit} was not started again within {limit_s:g} s ({self._state()})")

    def _await_new_life(self, before: Mapping[str, str], limit_s: float) -> bool:
        """True once another invocation of the unit runs; False at the limit. Raises UnitControlError when it failed."""
        until_s = time.monotonic() + limit_s
        cleared = False
        while True:
            now = self._show()
            if _is_new_life(before, now):
                return True
            if now.get("ActiveState") == "failed" and now.get("Result") == "start-limit-hit" and not cleared:
                cleared = True
                _log.warning(
                    "%s has reached systemd's start limit: clearing it once (systemctl reset-failed)", self.unit
                )
                self._order("reset-failed")
                self._order("start", "--no-block")
            elif now.get("ActiveState") == "failed" and now.get("InvocationID") != before.get("InvocationID"):
                raise UnitControlError(f"{self.unit} was started and failed at once (Result={now.get('Result')})")
            elif cleared and now.get("Result") == "start-limit-hit":
                raise UnitControlError(f"{self.unit} cannot start: systemd's start limit is reached again")
            if time.monotonic() >= until_s:
                return False
            if self._sleep(self._poll_s):
                raise UnitControlError(f"the daemon is stopping; the restart of {self.unit} was ordered and goes on")

    def _show(self) -> dict[str, str]:
        """The unit's state. Raises UnitControlError when there is no such unit."""
        ended = self._call("show", f"--property={_SHOWN}")
        values = dict(line.partition("=")[::2] for line in ended.stdout.splitlines())
        if ended.code != 0 or not values.get("LoadState"):
            raise UnitControlError(f"systemctl show {self.unit}: {ended.complaint}")
        if values["LoadState"] != "loaded":
            raise UnitControlError(f"{self.unit}: {_UNLOADED.get(values['LoadState'], values['LoadState'])}")
        return values

    def _state(self) -> str:
        values = self._show()
        return f"{values.get('ActiveState')}/{values.get('SubState')}, Result={values.get('Result')}"

    def _order(self, verb: str, *options: str) -> None:
        ended = self._call(verb, *options)
        if ended.code != 0:
            raise UnitControlError(f"systemctl {verb} {self.unit}: {ended.complaint}")

    def _kill(self) -> None:
        """SIGKILL to all processes of the unit. That there are none any more is no failure: the restart goes on."""
        ended = self._call("kill", "--signal=SIGKILL")
        if ended.code != 0:
            _log.warning("systemctl kill %s: %s", self.unit, ended.complaint)

    def _call(self, verb: str, *options: str) -> Ended:
        return run_program([*self._command, verb, *options, "--", self.unit], _SYSTEMCTL_TIMEOUT_S)


def _is_new_life(before: Mapping[str, str], now: Mapping[str, str]) -> bool:
    """Another invocation that runs or is on its way up; one that waits for its automatic restart does not count."""
    if now.get("ActiveState") not in {"active", "activating", "reloading"} or now.get("SubState") == "auto-restart":
        return False
    another = now.get("InvocationID", "") not in {"", before.get("InvocationID", "")}
    return another and (now.get("MainPID") in {None, "0"} or now.get("MainPID") != before.get("MainPID"))


class SignalUnitControl:
    """Ends one process by signal and waits for the next, which its supervisor starts: for hosts without systemd.

    `find_pid` names the service's process as of now, None while there is none. The process is known by its pid and
    start time and signalled through a pidfd, so that a pid given to another process meanwhile is never hit.
    """

    def __init__(
        self,
        find_pid: Callable[[], int | None],
        *,
        start_timeout_s: float = 30.0,
        sleep: Sleep = _sleep,
        poll_s: float = 0.1,
        proc: Path = Path("/proc"),
    ) -> None:
        self._find_pid = find_pid
        self._start_timeout_s = start_timeout_s
        self._sleep = sleep
        self._poll_s = poll_s
        self._proc = proc

    def restart(self, timeout_s: float) -> None:
        """SIGTERM, SIGKILL after `timeout_s` seconds, then wait for a new process.

        Raises UnitControlError when there is no process, it may not be signalled or no new one comes up in
        `start_timeout_s` seconds; TimeoutError when it outlives SIGKILL by 15 s.
        """
        self._end(signal.SIGTERM, timeout_s)

    def force_restart(self, timeout_s: float) -> None:  # noqa: ARG002 - the protocol's; nothing is waited for here
        """SIGKILL at once. Raises like `restart`."""
        self._end(signal.SIGKILL, 0.0)

    def _end(self, first: signal.Signals, timeout_s: float) -> None:
        pid = self._find_pid()
        if pid is None:
            raise UnitControlError("the service has no process to restart")
        if pid <= 1 or pid == os.getpid():
            raise UnitControlError(f"refusing to signal process {pid}")
        started = start_ticks(pid, self._proc)
        if started is None:
            raise UnitControlError(f"process {pid} is gone already")
        _send(pid, started, first, self._proc)
        if first is not signal.SIGKILL and not self._wait(lambda: self._gone(pid, started), timeout_s):
            _log.warning("process %d did not stop within %g s: killing it", pid, timeout_s)
            _send(pid, started, signal.SIGKILL, self._proc)
        if not self._wait(lambda: self._gone(pid, started), _AFTER_KILL_S):
            raise TimeoutError(f"process {pid} is still there {_AFTER_KILL_S:g} s after SIGKILL")
        if not self._wait(lambda: self._is_another(pid, started), self._start_timeout_s):
            raise UnitControlError(
                f"process {pid} ended, but none took its place in {self._start_timeout_s:g} s: who supervises it?"
            )

    def _wait(self, done: Callable[[], bool], limit_s: float) -> bool:
        until_s = time.monotonic() + limit_s
        while not done():
            if time.monotonic() >= until_s:
                return False
            if self._sleep(self._poll_s):
                raise UnitControlError("the daemon is stopping; the service was told to end")
        return True

    def _gone(self, pid: int, started: int) -> bool:
        return start_ticks(pid, self._proc) != started

    def _is_another(self, pid: int, started: int) -> bool:
        now = self._find_pid()
        ticks = start_ticks(now, self._proc) if now is not None else None
        return ticks is not None and (now, ticks) != (pid, started)


def start_ticks(pid: int, proc: Path) -> int | None:
    """When the process was started, in clock ticks since boot (/proc/PID/stat, field 22); None for none or a zombie."""
    try:
        stat = (proc / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rfind(b")") + 1 :].split()  # the name, field 2, may hold anything
    if len(fields) < 20 or fields[0] in {b"Z", b"X"}:
        return None
    return int(fields[19])


def _send(pid: int, started: int, number: signal.Signals, proc: Path) -> None:
    """Signal the process that was started at `started`; one that is gone is fine. Raises UnitControlError."""
    descriptor = -1
    try:
        descriptor = os.pidfd_open(pid)  # names this very process whatever becomes of the number
        if start_ticks(pid, proc) == started:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    except OSError as error:
        raise UnitControlError(f"cannot send {number.name} to process {pid}: {error.strerror}") from None
    finally:
        if descriptor >= 0:
            os.close(descriptor)


class CommandUnitControl:
    """Restarts the service with a configured argument list: for other supervisors, such as docker or runit."""

    def __init__(self, argv: Sequence[str], force_argv: Sequence[str] = (), *, start_timeout_s: float = 30.0) -> None:
        """`force_argv` is used for a forced restart, `argv` when it is empty. Raises UserError for an empty command."""
        if not argv or not all(isinstance(word, str) and word and "\0" not in word for word in (*argv, *force_argv)):
            raise UserError(
                '[service] restart_command: write a list of words, for example ["docker", "restart", "llm"]'
            )
        self._argv = list(argv)
        self._force_argv = list(force_argv) or self._argv
        self._start_timeout_s = start_timeout_s

    def restart(self, timeout_s: float) -> None:
        """Run the command; it may take `timeout_s` seconds for stopping and `start_timeout_s` for starting.

        Raises UnitControlError when it fails, TimeoutError when it takes longer (it is killed then).
        """
        self._run(self._argv, timeout_s)

    def force_restart(self, timeout_s: float) -> None:
        """Run the command for a forced restart. Raises like `restart`."""
        self._run(self._force_argv, timeout_s)

    def _run(self, argv: list[str], timeout_s: float) -> None:
        ended = run_program(argv, timeout_s + self._start_timeout_s)
        if ended.code != 0:
            raise UnitControlError(f"{' '.join(argv)}: {ended.complaint}")
