"""Choosing the parts that the options name: source, host probe, server adapter, unit control, pressure trigger."""

from __future__ import annotations

import select
from collections.abc import Callable, Mapping
from pathlib import Path

from slmguard.actions.base import RungServer, UnitControl, UnitControlError
from slmguard.actions.unit_control import CommandUnitControl, SignalUnitControl, SystemdUnitControl
from slmguard.core.model import Outcome, ServerReading
from slmguard.options import Options
from slmguard.reactor import Reactor
from slmguard.servers import base as servers
from slmguard.servers.base import RungReply, ServerAdapter, ServerOptions
from slmguard.sources.auto import SourceWishes, choose
from slmguard.sources.base import MemorySource
from slmguard.sources.host import HostProbe
from slmguard.sources.pressure import PressureTrigger
from slmguard.sources.process_target import ProcessTarget
from slmguard.supervision import read_credential


def senses(options: Options, environment: Mapping[str, str]) -> tuple[MemorySource, HostProbe, ServerAdapter | None]:
    """The memory source, the host probe and the server adapter of `options`.

    Raises UserError when a credential is missing or the server kind is unknown.
    """
    return memory_source(options), HostProbe(), server_adapter(options, environment)


def memory_source(options: Options) -> MemorySource:
    """The source that `[memory] source` names; `auto` takes the unit's cgroup, else the process, else the board."""
    memory = options.memory
    wishes = SourceWishes(
        unit=options.unit,
        target=ProcessTarget(
            pid=memory.pid,
            pid_file=Path(memory.pid_file) if memory.pid_file else None,
            match_argv=memory.match_argv,
        ),
        budget_bytes=memory.budget_bytes,
        max_bytes=memory.budget_max_bytes,
    )
    return choose(memory.source, wishes).source


def server_adapter(options: Options, environment: Mapping[str, str]) -> ServerAdapter | None:
    """The adapter for `[server] kind`, None for `none`."""
    choice = options.server
    if choice.kind == "none":
        return None
    key = read_credential(choice.api_key_credential, environment) if choice.api_key_credential else None
    return servers.load(
        choice.kind,
        ServerOptions(
            url=choice.url,
            api_key=key,
            timeout_s=choice.timeout_s,
            trim_path=choice.trim_path,
            trim_body=choice.trim_body,
        ),
    )


def unit_control(options: Options, source: MemorySource, sleep: Callable[[float], bool]) -> UnitControl:
    """How the service is restarted. `sleep` returns True when the daemon stops."""
    method = options.restart
    if method.method == "none":
        return NoUnitControl()
    if method.method == "command":
        return CommandUnitControl(method.command)
    if method.method == "signal":
        return SignalUnitControl(
            lambda: getattr(source, "main_pid", None), start_timeout_s=method.ready_timeout_s, sleep=sleep
        )
    return SystemdUnitControl(options.unit, sleep=sleep)


class NoUnitControl:
    """`[restart] method = "none"`: restarts are refused with the reason."""

    def restart(self, timeout_s: float) -> None:  # noqa: ARG002 - the protocol's
        """Refuse."""
        raise UnitControlError('restarts are switched off ([restart] method = "none")')

    def force_restart(self, timeout_s: float) -> None:
        """Refuse."""
        self.restart(timeout_s)


class NoServer:
    """Stands in for a server that the guard does not talk to."""

    def probe(self, now_s: float) -> ServerReading:
        """Nothing is known, so nothing is waited for."""
        return ServerReading(now_s, reachable=True, ready=True, busy_slots=0)

    def trim(self, keep_recent: int) -> RungReply:  # noqa: ARG002 - the protocol's
        """There is nobody to ask."""
        return RungReply(Outcome.ABSENT, 'no server is configured ([server] kind = "none")')

    def drop_caches(self) -> RungReply:
        """There is nobody to ask."""
        return self.trim(0)


def rung_server(adapter: ServerAdapter | None) -> RungServer:
    """The server that actions talk to."""
    return adapter if adapter is not None else NoServer()


def pressure_trigger(reactor: Reactor, wake: Callable[[], None]) -> PressureTrigger:
    """A PSI trigger that calls `wake`, registered in the loop where the kernel has it."""
    trigger = PressureTrigger()
    fd = trigger.fileno()
    if fd is not None:
        reactor.add(fd, select.EPOLLPRI, lambda _events: wake())
    return trigger
