"""Talking to systemd: readiness, status line, reload, watchdog, credentials."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

import sdnotify

from slmguard.core.errors import UserError

MAX_CREDENTIAL_BYTES = 64 * 1024


class Supervisor:
    """The service manager, if there is one (NOTIFY_SOCKET); without it every call does nothing."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._notifier = sdnotify.SystemdNotifier()
        self._present = "NOTIFY_SOCKET" in environment
        self._watchdog_s = _watchdog_s(environment)

    @property
    def watchdog_s(self) -> float | None:
        """The time within which systemd wants a sign of life, None when it doesn't."""
        return self._watchdog_s

    def ready(self) -> None:
        """Say that the guard guards."""
        self._send("READY=1")

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(f"STATUS={text}")

    def reloading(self) -> None:
        """Say that a reload begins; MONOTONIC_USEC is what newer managers (253) insist on."""
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self) -> None:
        """Say that the guard is going."""
        self._send("STOPPING=1")

    def alive(self) -> None:
        """Feed the watchdog. Call it only after a completed decision."""
        self._send("WATCHDOG=1")

    def _send(self, text: str) -> None:
        # sdnotify encodes latin-1 and drops what does not fit; keep to ASCII.
        if self._present:
            self._notifier.notify(text.encode("ascii", "replace").decode("ascii"))


def _watchdog_s(environment: Mapping[str, str]) -> float | None:
    try:
        microseconds = int(environment.get("WATCHDOG_USEC", "0"))
        pid = int(environment.get("WATCHDOG_PID", str(os.getpid())))
    except ValueError:
        return None
    return microseconds / 1e6 if microseconds > 0 and pid == os.getpid() else None


def read_credential(name: str, environment: Mapping[str, str]) -> str:
    """The secret that systemd passed as credential `name` (LoadCredential=).

    Raises UserError when there is none, saying how to pass it.
    """
    directory = environment.get("CREDENTIALS_DIRECTORY")
    if not directory:
        raise UserError(
            f"credential {name!r}: systemd passed no credentials;"
            f" add LoadCredential={name}:/etc/slmguard/credentials/{name} to the unit"
        )
    try:
        with (Path(directory) / name).open("rb") as file:
            data = file.read(MAX_CREDENTIAL_BYTES)
    except OSError as error:
        raise UserError(f"credential {name!r}: {error.strerror} in {directory}") from None
    return data.decode("utf-8", "replace").strip()
