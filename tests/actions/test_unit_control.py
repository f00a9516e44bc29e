"""Restarting for real: systemctl (a script that plays it), signals to real processes, commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slmguard.actions.base import UnitControlError
from slmguard.actions.subprocesses import run_program
from slmguard.actions.unit_control import CommandUnitControl, SignalUnitControl, SystemdUnitControl, start_ticks
from slmguard.core.errors import UserError

# -- systemd ----------------------------------------------------------------------------------------------------------

FAKE = """
import json, pathlib, sys
folder = pathlib.Path(__file__).parent
words = [word for word in sys.argv[1:] if word not in ("--no-ask-password", "--no-pager", "--")]
verb, unit = words[0], words[-1]
if verb == "show":
    state = json.loads((folder / "state.json").read_text())
    then = state.pop("then", None)
    if then:
        left = then.pop(0)
        (folder / "state.json").write_text(json.dumps({**state, **left, "then": then}))
    else:
        (folder / "state.json").write_text(json.dumps(state))
    print("\\n".join(f"{name}={value}" for name, value in state.items() if name[0].isupper()))
    sys.exit()
with (folder / "log").open("a") as log:
    print(" ".join(words), file=log)
answers = json.loads((folder / "answers.json").read_text())
answer = answers.get(verb, {})
state = json.loads((folder / "state.json").read_text())
(folder / "state.json").write_text(json.dumps({**state, **answer.get("state", {})}))
sys.stderr.write(answer.get("says", ""))
sys.exit(answer.get("code", 0))
"""
OLD = {"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success", "MainPID": "41"}
OLD["InvocationID"] = "aaaa"
NEW = {**OLD, "MainPID": "42", "InvocationID": "bbbb"}
FAILED = {**NEW, "ActiveState": "failed", "SubState": "failed", "MainPID": "0"}


class Systemd:
    """The script, its state and its answers."""

    def __init__(self, folder: Path) -> None:
        import json

        self.dumps = json.dumps
        self.folder = folder
        self.path = folder / "systemctl"
        self.path.write_text(f"#!{sys.executable}\n{textwrap.dedent(FAKE)}")
        self.path.chmod(0o755)
        self.state(OLD)
        self.answers({})

    def state(self, state: dict[str, str]) -> None:
        (self.folder / "state.json").write_text(self.dumps(state))

    def answers(self, answers: dict[str, object]) -> None:
        (self.folder / "answers.json").write_text(self.dumps(answers))

    def log(self) -> list[str]:
        path = self.folder / "log"
        return path.read_text().splitlines() if path.exists() else []

    def control(self, *, stops: bool = False) -> SystemdUnitControl:
        return SystemdUnitControl("llama-server", systemctl=str(self.path), sleep=lambda _: stops, poll_s=0.01)


@pytest.fixture
def systemd(tmp_path: Path) -> Systemd:
    return Systemd(tmp_path)


def test_a_restart_is_done_when_another_invocation_runs(systemd: Systemd) -> None:
    systemd.answers({"restart": {"state": {"then": [OLD, NEW]}}})
    systemd.control().restart(60)
    assert systemd.log() == ["restart --no-block llama-server.service"]


def test_what_does_not_stop_in_time_is_killed(systemd: Systemd) -> None:
    systemd.answers({"kill": {"state": NEW}})
    systemd.control().restart(0)
    assert systemd.log() == ["restart --no-block llama-server.service", "kill --signal=SIGKILL llama-server.service"]


def test_a_forced_restart_kills_first(systemd: Systemd) -> None:
    systemd.answers({"restart": {"state": NEW}})
    systemd.control().force_restart(60)
    assert systemd.log() == ["kill --signal=SIGKILL llama-server.service", "restart --no-block llama-server.service"]


def test_a_forced_restart_of_a_dead_unit_only_starts_it(systemd: Systemd) -> None:
    systemd.state({**OLD, "ActiveState": "failed", "MainPID": "0"})
    systemd.answers({"restart": {"state": NEW}})
    systemd.control().force_restart(60)
    assert systemd.log() == ["restart --no-block llama-server.service"]


def test_a_unit_that_fails_at_once_is_told(systemd: Systemd) -> None:
    systemd.answers({"restart": {"state": {**FAILED, "Result": "exit-code"}}})
    with pytest.raises(UnitControlError, match=r"failed at once \(Result=exit-code\)"):
        systemd.control().restart(60)


def test_waiting_for_the_automatic_restart_is_not_running(systemd: Systemd) -> None:
    waiting = {**NEW, "ActiveState": "activating", "SubState": "auto-restart", "MainPID": "0"}
    systemd.answers({"restart": {"state": {"then": [waiting, waiting, {**NEW, "InvocationID": "cccc"}]}}})
    systemd.control().restart(60)
    assert systemd.log() == ["restart --no-block llama-server.service"]
    assert '"InvocationID": "cccc"' in (systemd.folder / "state.json").read_text(), "it came back before the new life"


def test_the_start_limit_is_cleared_once_and_said(systemd: Systemd, caplog: pytest.LogCaptureFixture) -> None:
    hit = {**FAILED, "InvocationID": "aaaa", "Result": "start-limit-hit"}
    systemd.answers({"restart": {"state": hit}, "start": {"state": NEW}})
    systemd.control().restart(60)
    assert [line.split()[0] for line in systemd.log()] == ["restart", "reset-failed", "start"]
    assert "start limit" in caplog.text


def test_a_start_limit_that_is_hit_again_is_an_error(systemd: Systemd) -> None:
    hit = {**FAILED, "InvocationID": "aaaa", "Result": "start-limit-hit"}
    systemd.answers({"restart": {"state": hit}})
    with pytest.raises(UnitControlError, match="start limit is reached again"):
        systemd.control().restart(60)
    assert [line.split()[0] for line in systemd.log()] == ["restart", "reset-failed", "start"]


@pytest.mark.parametrize(
    ("load_state", "says"), [("not-found", "no unit of that name"), ("masked", "masked"), ("bad-setting", "mistake")]
)
def test_a_unit_that_cannot_be_restarted_is_told_before_anything_is_done(
    systemd: Systemd, load_state: str, says: str
) -> None:
    systemd.state({**OLD, "LoadState": load_state})
    with pytest.raises(UnitControlError, match=says):
        systemd.control().restart(60)
    assert systemd.log() == []


def test_a_missing_permission_is_one_line(systemd: Systemd) -> None:
    systemd.answers({"restart": {"code": 1, "says": "Failed to restart x: Access denied\n"}})
    with pytest.raises(UnitControlError, match=r"^systemctl restart llama-server\.service: Failed .*: Access denied$"):
        systemd.control().restart(60)


def test_a_stopping_daemon_does_not_wait(systemd: Systemd) -> None:
    with pytest.raises(UnitControlError, match="the daemon is stopping"):
        systemd.control(stops=True).restart(60)


def test_no_systemctl_is_one_line() -> None:
    with pytest.raises(UnitControlError, match="cannot run /nonexistent/systemctl: No such file"):
        SystemdUnitControl("x", systemctl="/nonexistent/systemctl").restart(1)


@pytest.mark.parametrize("name", ["", "-H evil", "a b", "--all", "x\n", "a/b", "*"])
def test_what_is_no_unit_name_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="not a name of a systemd unit"):
        SystemdUnitControl(name)


def test_a_kill_that_comes_too_late_does_not_spoil_the_restart(systemd: Systemd) -> None:
    systemd.answers({"kill": {"code": 1, "says": "Failed to kill unit: No main process to kill\n", "state": NEW}})
    systemd.control().restart(0)
    assert systemd.log() == ["restart --no-block llama-server.service", "kill --signal=SIGKILL llama-server.service"]


# -- signals ----------------------------------------------------------------------------------------------------------

LOOP = "import signal, sys, time\n{}\nprint('up', flush=True)\nwhile True: time.sleep(60)"
STUBBORN = LOOP.format("signal.signal(signal.SIGTERM, signal.SIG_IGN)")
POLITE = LOOP.format("")


class Supervisor:
    """Starts a process, and another when asked for its pid after it ended."""

    def __init__(self, code: str, *, again: bool = True) -> None:
        self.code = code
        self.again = again
        self.children: list[subprocess.Popen[bytes]] = []
        self.start()

    def start(self) -> None:
        child = subprocess.Popen([sys.executable, "-c", self.code], stdout=subprocess.PIPE)
        assert child.stdout is not None
        assert child.stdout.readline() == b"up\n"
        self.children.append(child)

    def pid(self) -> int | None:
        if self.children[-1].poll() is not None:
            if not self.again:
                return None
            self.start()
        return self.children[-1].pid

    def end(self) -> None:
        for child in self.children:
            child.kill()
            child.wait(10)
            assert child.stdout is not None
            child.stdout.close()


@pytest.fixture
def supervised() -> Iterator[Callable[..., Supervisor]]:
    made: list[Supervisor] = []

    def make(code: str, **options: bool) -> Supervisor:
        made.append(Supervisor(code, **options))
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.end()


def test_a_polite_process_gets_sigterm_and_its_successor_is_awaited(supervised: Callable[..., Supervisor]) -> None:
    service = supervised(POLITE)
    SignalUnitControl(service.pid).restart(60)
    assert [child.poll() for child in service.children] == [-signal.SIGTERM, None]


def test_a_stubborn_process_is_killed(supervised: Callable[..., Supervisor]) -> None:
    service = supervised(STUBBORN)
    SignalUnitControl(service.pid).restart(0.2)
    assert [child.poll() for child in service.children] == [-signal.SIGKILL, None]


def test_a_forced_restart_kills_at_once(supervised: Callable[..., Supervisor]) -> None:
    service = supervised(POLITE)
    SignalUnitControl(service.pid).force_restart(60)
    assert [child.poll() for child in service.children] == [-signal.SIGKILL, None]


def test_a_process_that_nobody_starts_again_is_told(supervised: Callable[..., Supervisor]) -> None:
    service = supervised(POLITE, again=False)
    with pytest.raises(UnitControlError, match="who supervises it"):
        SignalUnitControl(service.pid, start_timeout_s=0.2).restart(60)


def test_a_recycled_pid_is_never_hit(supervised: Callable[..., Supervisor], tmp_path: Path) -> None:
    bystander = supervised(POLITE)
    pid = bystander.pid()
    assert pid is not None
    entry = tmp_path / str(pid)
    entry.mkdir()
    looks = iter([111, *[222] * 9])

    class Recycled(type(tmp_path)):  # type: ignore[misc]
        """Each look at the process finds it started later: the number was given away."""

        def __truediv__(self, name: str) -> Path:
            (entry / "stat").write_text(f"{pid} (llama (x) y) S {'0 ' * 18}{next(looks)} 0")
            return Path(self, name)

    SignalUnitControl(lambda: pid, proc=Recycled(tmp_path)).restart(60)  # the pid's new owner is the new process
    assert bystander.children[0].poll() is None


@pytest.mark.parametrize("pid", [0, 1, -1, os.getpid()])
def test_init_and_the_guard_itself_are_refused(pid: int) -> None:
    with pytest.raises(UnitControlError, match="refusing to signal"):
        SignalUnitControl(lambda: pid).restart(1)


def test_no_process_is_told() -> None:
    with pytest.raises(UnitControlError, match="no process to restart"):
        SignalUnitControl(lambda: None).restart(1)


def test_a_stopping_daemon_does_not_wait_for_the_process(supervised: Callable[..., Supervisor]) -> None:
    service = supervised(STUBBORN)
    with pytest.raises(UnitControlError, match="the daemon is stopping"):
        SignalUnitControl(service.pid, sleep=lambda _: True).restart(60)
    assert service.children[0].poll() is None


def test_a_zombie_and_a_gone_process_have_no_start_time() -> None:
    child = subprocess.Popen([sys.executable, "-c", ""])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert start_ticks(child.pid, Path("/proc")) is None
    child.wait()
    assert start_ticks(child.pid, Path("/proc")) is None
    assert start_ticks(os.getpid(), Path("/proc")) is not None


# -- commands ---------------------------------------------------------------------------------------------------------


def test_a_command_is_run_without_a_shell(tmp_path: Path) -> None:
    mark = tmp_path / "a; b $(c)"
    CommandUnitControl(["touch", str(mark)]).restart(30)
    assert mark.exists()


def test_a_forced_restart_may_have_its_own_command(tmp_path: Path) -> None:
    CommandUnitControl(["false"], ["touch", str(tmp_path / "forced")]).force_restart(30)
    assert (tmp_path / "forced").exists()


def test_a_command_that_fails_is_told_in_its_own_words() -> None:
    with pytest.raises(UnitControlError, match=r"boom\?\[31m$"):
        CommandUnitControl([sys.executable, "-c", "import sys; sys.exit('first\\nboom\\x1b[31m')"]).restart(30)


def test_a_command_that_hangs_is_ended_with_its_children() -> None:
    with pytest.raises(TimeoutError, match=r"not done after 0\.2 s"):
        CommandUnitControl(["sh", "-c", "sleep 60 & sleep 60"], start_timeout_s=0.1).restart(0.1)


def test_a_command_that_floods_its_output_is_not_kept_in_memory() -> None:
    ended = run_program([sys.executable, "-c", "import sys; sys.stdout.write('x' * 10_000_000 + 'end')"], 60)
    assert len(ended.stdout) == 16384
    assert ended.stdout.endswith("end")


def test_what_a_command_leaves_in_the_background_is_not_waited_for() -> None:
    ended = run_program(["sh", "-c", "sleep 3 & echo started"], 60)
    assert (ended.code, ended.stdout) == (0, "started\n")


@pytest.mark.parametrize("argv", [[], [""], ["a\0b"]])
def test_what_is_no_command_is_refused(argv: list[str]) -> None:
    with pytest.raises(UserError, match="restart_command"):
        CommandUnitControl(argv)
