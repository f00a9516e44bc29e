"""Puts the gate together and runs it until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable
from pathlib import Path

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.core.model import Level
from slmguard.gate.agent_check import serve_agent
from slmguard.gate.connections import ConnectionTable
from slmguard.gate.daemon_link import DaemonLink
from slmguard.gate.hold import HoldControl
from slmguard.gate.local import LocalEndpoints
from slmguard.gate.policy import policy_for_level
from slmguard.gate.proxy import Proxy
from slmguard.gate.settings import NO_CONTROL, GateSettings, parse_address
from slmguard.gate.state import GateState
from slmguard.gate.upstream import Upstream

log = logging.getLogger("slmguard.gate")

_FIRST_PASSED_FD = 3
_BACKLOG = 256
_SWEEP_S = 1.0
_DRAIN_POLL_S = 0.05
_SHORTEST_KEY = 16


class Gate:
    """One running gate. `port` is the first port it listens on."""

    def __init__(self, settings: GateSettings, level: Level | None = None, key: str | None = None) -> None:
        self.settings = settings
        self.state = GateState(settings, None if level is None else policy_for_level(level, settings))
        self.upstream = Upstream(settings)
        self.hold = HoldControl(self.state, self.upstream)
        proxy = Proxy(self.state, self.upstream, LocalEndpoints(self.state, key))
        self.table = ConnectionTable(proxy.handle, settings)
        self.table.on_eviction = self._count_eviction
        self.table.on_bad_request = lambda: self.state.count_refusal("bad_request")
        self.port = 0
        self._fixed_level = level is not None
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self, sockets: list[socket.socket]) -> None:
        """Accept connections on the sockets and follow the daemon. Raises OSError, UserError."""
        loop = asyncio.get_running_loop()
        for listener in sockets:
            self._servers.append(await loop.create_server(self.table, sock=listener, backlog=_BACKLOG))
        address = sockets[0].getsockname()
        self.port = address[1] if isinstance(address, tuple) else 0
        if self.settings.agent_listen:
            host, port = parse_address(self.settings.agent_listen, "agent_listen")
            self._servers.append(await serve_agent(self.state, host, port))
        self._tasks.append(loop.create_task(self._sweep()))
        if not self._fixed_level and self.settings.control != NO_CONTROL:
            link = DaemonLink(self.settings.control, self.state, self.hold)
            self._tasks.append(loop.create_task(link.run()))

    async def stop(self) -> None:
        """Accept nothing new, let what runs finish within `stop_timeout_s`, then close everything."""
        for server in self._servers:
            server.close()
        self.table.pre_shutdown()
        until_s = asyncio.get_running_loop().time() + self.settings.stop_timeout_s
        while (  # noqa: ASYNC110  # the set is emptied by many tasks, at the end of the process only
            (self.state.active or self.state.admission.waiting) and asyncio.get_running_loop().time() < until_s
        ):
            await asyncio.sleep(_DRAIN_POLL_S)
        self.hold.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.table.shutdown(0.5)
        await self.upstream.close()

    def _count_eviction(self) -> None:
        self.state.counters.evicted_connections += 1

    async def _sweep(self) -> None:
        """End exchanges whose client does not read its answer, or whose server does not send one."""
        loop = asyncio.get_running_loop()
        settings = self.settings
        while True:
            await asyncio.sleep(_SWEEP_S)
            now_s = loop.time()
            for exchange in list(self.state.active):
                since_s = exchange.writing_since_s
                if since_s is not None and now_s - since_s > settings.send_timeout_s:
                    log.info("a client did not read its answer for %.0f s", settings.send_timeout_s)
                    exchange.abort()
                elif since_s is None and now_s - exchange.heard_at_s > settings.upstream_idle_timeout_s:
                    log.info("the server was silent for %.0f s", settings.upstream_idle_timeout_s)
                    exchange.give_up()


def listening_socket(host: str, port: int) -> socket.socket:
    """A bound socket; raises UserError that says why not."""
    try:
        family, kind, proto, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError as error:
        raise UserError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
    return listener


def passed_sockets() -> list[socket.socket]:
    """Sockets that systemd passed on (sd_listen_fds), none when it passed none to this process."""
    count = os.environ.get("LISTEN_FDS", "")
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or not count.isdigit():
        return []
    sockets = [socket.socket(fileno=fd) for fd in range(_FIRST_PASSED_FD, _FIRST_PASSED_FD + int(count))]
    for listener in sockets:
        listener.set_inheritable(False)
    return sockets


def read_key(settings: GateSettings) -> str | None:
    """The key of the control endpoints: `key_file`, else the systemd credential `gate-key`, else none."""
    directory = os.environ.get("CREDENTIALS_DIRECTORY")
    credential = Path(directory, "gate-key") if directory else None
    path = Path(settings.key_file) if settings.key_file else credential
    if path is None or (path is credential and not path.exists()):
        return None
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"key_file {path}: cannot be read: {error}") from error
    if len(key) < _SHORTEST_KEY:
        raise UserError(f"key_file {path}: the key must have at least {_SHORTEST_KEY} characters")
    return key


async def serve(settings: GateSettings, level: Level | None, announce: Callable[[str], None]) -> None:
    """Run until SIGTERM or SIGINT. Raises UserError."""
    gate = Gate(settings, level, read_key(settings))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signum in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signum, stop.set)
    _raise_file_limit()
    sockets = passed_sockets() or [listening_socket(*settings.listen_address)]
    try:
        await gate.start(sockets)
    except OSError as error:
        raise EnvironmentLacksError(f"cannot start: {error}") from error
    gc.collect()
    gc.freeze()  # what is here now stays for good; collections need not look at it again
    notifier = _notifier()
    watchdog = loop.create_task(_feed_watchdog(notifier))
    notifier(f"READY=1\nSTATUS=passing requests on to {settings.upstream}")
    announce(f"listening on port {gate.port}, passing on to {settings.upstream}")
    await stop.wait()
    notifier("STOPPING=1")
    watchdog.cancel()
    await gate.stop()


def _raise_file_limit() -> None:
    """A connection of a client and one to the server are two files; 1024 is a common soft limit."""
    _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _notifier() -> Callable[[str], None]:
    from sdnotify import SystemdNotifier

    notifier = SystemdNotifier()

    def notify(text: str) -> None:
        notifier.notify(text)

    return notify


async def _feed_watchdog(notify: Callable[[str], None]) -> None:
    """Twice per watchdog period; comes from the event loop, so a blocked loop is noticed."""
    period_us = os.environ.get("WATCHDOG_USEC", "")
    if not period_us.isdigit():
        return
    while True:
        notify("WATCHDOG=1")
        await asyncio.sleep(int(period_us) / 2e6)
