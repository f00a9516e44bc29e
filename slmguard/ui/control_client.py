"""Asks the daemon for its status over the control socket (docs/reference/control-socket.md)."""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path
from typing import Any

from slmguard.core.errors import EnvironmentLacksError, UserError
from slmguard.ui.words import clean

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

DEFAULT_CONFIG = Path("/etc/slmguard/slmguard.toml")
DEFAULT_SOCKET = Path("/run/slmguard/control.sock")
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 1 << 20
REQUEST = b'{"cmd": "status"}\n'


def socket_path(socket_argument: str | None, config_argument: str | None) -> Path:
    """The socket to ask: `--socket`, else what the configuration says, else the default.

    Raises UserError when a configuration that was named cannot be read. The default one may be missing or broken:
    status must work while somebody edits it.
    """
    if socket_argument is not None:
        return Path(socket_argument)
    config = Path(config_argument) if config_argument is not None else DEFAULT_CONFIG
    try:
        data = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        if config_argument is None:
            return DEFAULT_SOCKET
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"{config}: cannot be read: {reason}") from None
    control = data.get("control")
    path = control.get("socket") if isinstance(control, dict) else None
    return Path(path) if isinstance(path, str) else DEFAULT_SOCKET


def fetch_status(path: Path, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """The status document of the daemon that listens on `path`.

    Raises EnvironmentLacksError, with one line that says what to do, when there is no daemon, no permission, no answer
    within `timeout_s`, or an answer that is no status document.
    """
    try:
        answer = _ask(path, timeout_s)
    except (FileNotFoundError, ConnectionRefusedError):
        raise EnvironmentLacksError(
            f"the daemon is not running: nothing answers on {path}; start it with: systemctl start slmguard"
        ) from None
    except PermissionError:
        raise EnvironmentLacksError(f"{path}: no permission to ask the daemon; use sudo, or join its group") from None
    except TimeoutError:
        raise EnvironmentLacksError(
            f"{path}: the daemon did not answer within {timeout_s:g} s; see: {_JOURNAL}"
        ) from None
    except OSError as error:
        raise EnvironmentLacksError(f"{path}: {error.strerror or error}; see: {_JOURNAL}") from None
    return _document(answer, path)


_JOURNAL = "journalctl -u slmguard"


def _ask(path: Path, timeout_s: float) -> bytes:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        connection.connect(str(path))
        connection.sendall(REQUEST)
        received = bytearray()
        while b"\n" not in received and len(received) <= MAX_ANSWER_BYTES:
            block = connection.recv(1 << 16)
            if not block:
                break
            received += block
    return bytes(received.partition(b"\n")[0])


def _document(answer: bytes, path: Path) -> dict[str, Any]:
    try:
        document = json.loads(answer)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or "level" not in document:
        told = document.get("error") if isinstance(document, dict) else None
        raise EnvironmentLacksError(
            f"{path}: {'the daemon answered: ' + clean(told) if told else 'what answers there is no slmguard'}; "
            "is it another version? see slmguard --version"
        )
    return document
