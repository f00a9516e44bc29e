"""The conductor: starts server, guard, gate and load, lets them play for the given time, and ends them all."""

from __future__ import annotations

import contextlib
import importlib.util
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, Protocol

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.demo import summary
from slmguard.demo.guard import METRICS_PORT, Guard, free_port, gate_available, start_gate
from slmguard.demo.load import Load, LoadSettings
from slmguard.demo.memory import read_memory
from slmguard.demo.settings import LEVEL_RATIOS, WIND_DOWN_S, DemoSettings
from slmguard.demo.story import Story
from slmguard.demo.supervisor import Supervisor
from slmguard.demo.watch import Watch
from slmguard.ui import words

START_TIMEOUT_S = 90.0
FRAME_S = 0.25
# Room that a budget must leave between the loaded, idle server and the 85 % line for there to be anything to see.
LEAST_ROOM_BYTES = 24 << 20


class View(Protocol):
    """Shows a run. `update` is called four times a second."""

    def start(self, story: Story) -> None:
        """The run begins."""
        ...

    def update(self) -> None:
        """Show what is new."""
        ...

    def stop(self) -> None:
        """The run is over; leave the terminal as it was."""
        ...


def run_demo(settings: DemoSettings, view: View) -> tuple[dict[str, Any], Story]:
    """One whole run; returns its summary and its story. Ctrl-C ends it early, with a summary.

    Raises EnvironmentLacksError or UserError when something cannot be started; nothing is left running in any case.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise EnvironmentLacksError("the demo's llama.cpp server is not installed: pip install 'slmguard[demo]'")
    story = Story(settings, time.monotonic)
    interrupted, unfinished = False, 0
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="slmguard-demo-")))
        view.start(story)
        stack.callback(view.stop)
        try:
            load = _set_up(story, folder, stack, view)
            load.start()
            _play(story, view)
        except KeyboardInterrupt:
            interrupted = True
            story.tell("interrupted; ending everything")
        else:
            story.tell("time is up; ending everything")
            view.update()
            unfinished = load.stop(3.0)
    return summary.document(story, interrupted, unfinished), story


def _set_up(story: Story, folder: Path, stack: contextlib.ExitStack, view: View) -> Load:
    """Everything but the load's start; what was started is ended by `stack`, in reverse order."""
    settings = story.settings
    port = free_port(settings.port)
    if settings.port and port != settings.port:
        raise EnvironmentLacksError(f"--port {settings.port}: taken by something else; leave it out for any free port")
    url = f"http://127.0.0.1:{port}"
    pid_file = folder / "server.pid"
    command = [sys.executable, "-m", "slmguard.demo.server", "--model", str(settings.model), "--port", str(port)]
    slots = folder / "slots"
    slots.mkdir()
    command += ["--slots-dir", f"{slots}/"]
    supervisor = Supervisor(command, pid_file, folder / "server.log", on_exit=story.note_exit)
    stack.callback(supervisor.stop)
    supervisor.start()
    story.tell(f"starting llama.cpp with {settings.model.name} at {url}")
    _wait_for_server(url, supervisor, view)
    _check_room(settings, supervisor)
    watch = Watch(story, supervisor)
    stack.callback(watch.stop)
    watch.start()
    if settings.guard:
        url = _start_guard(story, folder, stack, url, pid_file)
    else:
        story.tell("no guard: nothing will be done about the memory")
    load = Load(LoadSettings(url, settings.seed, settings.clients), on_request=story.note_request)
    stack.callback(load.stop, 0.0)
    story.tell(f"{settings.clients} clients begin their conversations")
    return load


def _start_guard(story: Story, folder: Path, stack: contextlib.ExitStack, url: str, pid_file: Path) -> str:
    """Start the daemon and, where there is one, the gate; returns the address for the clients."""
    metrics_port = free_port(METRICS_PORT)
    guard = Guard(story.settings, folder, url, pid_file, metrics_port)
    stack.callback(guard.stop)
    guard.wait_ready()
    guard.follow(story.note_picture, lambda words_: story.tell(f"the guard has ended: {words_}"))
    story.metrics_url = f"http://127.0.0.1:{metrics_port}/metrics"
    story.tell(f"the guard is up; its metrics are at {story.metrics_url}")
    if story.settings.gate and gate_available():
        gate_port = free_port()
        gate = start_gate(folder, gate_port, url, guard.control)
        stack.callback(gate.stop)
        url = f"http://127.0.0.1:{gate_port}"
        story.gated = True
        story.tell(f"the gate stands in front of the server, at {url}")
    return url


def _wait_for_server(url: str, supervisor: Supervisor, view: View) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not _healthy(url):
        if supervisor.gave_up or time.monotonic() > deadline_s:
            raise EnvironmentLacksError(f"the llama.cpp server does not start: {words.clean(supervisor.last_words())}")
        view.update()
        time.sleep(0.1)


def _healthy(url: str) -> bool:
    try:
        # No proxy from the environment: the server is on this machine.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url + "/health", timeout=1.0) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _check_room(settings: DemoSettings, supervisor: Supervisor) -> None:
    """Raise UserError when the budget leaves the idle server no room to grow."""
    memory = read_memory(supervisor.pid or 0)
    if memory is None:
        return
    idle = memory.unreclaimable_bytes + memory.file_bytes
    least = int((idle + LEAST_ROOM_BYTES) / LEVEL_RATIOS[0])
    if settings.budget_bytes < least:
        raise UserError(
            f"--budget {words.short_size(settings.budget_bytes)}: the idle server already holds "
            f"{words.short_size(idle)}; give it at least {-(-least >> 20)}M"
        )


def _play(story: Story, view: View) -> None:
    while story.elapsed_s() < story.settings.seconds - WIND_DOWN_S:
        view.update()
        time.sleep(FRAME_S)
