"""What the gate can be told: the `[gate]` table of slmguard.toml, with defaults fit for a small board."""

from __future__ import annotations

import dataclasses
import difflib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from slmguard.core.errors import UserError

DEFAULT_CONFIG_PATH = Path("/etc/slmguard/slmguard.toml")
NO_CONTROL = "none"
MIB = 1024 * 1024
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class GateSettings:
    """Validated settings. Sizes in bytes, times in seconds, 0 means "off" where a field says so."""

    listen: str = "127.0.0.1:8080"
    upstream: str = "http://127.0.0.1:8081"
    control: str = "/run/slmguard/control.sock"
    health_path: str = "/health"
    agent_listen: str = ""  # HAProxy agent-check, "HOST:PORT", empty: off
    key_file: str = ""  # key for the control endpoints; empty: only loopback peers may use them

    clamp_max_tokens: int = 256  # cap while clamped, when the daemon names none
    clamp_choices: int = 1  # answers per request (`n`) while clamped
    keep_recent_tokens: int = 512  # window while trimmed, when the daemon names none; 0: off
    max_context_tokens: int = 0  # window that is always in force; 0: off
    retry_after_s: int = 10

    max_inflight: int = 4  # requests that compute, at the server at the same time
    max_queue: int = 64  # requests waiting for one of those places
    queue_timeout_s: float = 120.0
    max_held: int = 256  # requests waiting out a planned restart
    # The daemon may take 30 s to drain, 30 s to stop and 180 s to load the model again.
    hold_max_s: float = 300.0
    upstream_retry_s: float = 10.0

    # 8 MiB holds a chat with several photographs; four such bodies may wait at the same time.
    max_body_bytes: int = 8 * MIB
    max_buffered_bytes: int = 32 * MIB
    max_connections: int = 512
    header_timeout_s: float = 10.0
    body_timeout_s: float = 30.0
    keepalive_timeout_s: float = 75.0
    send_timeout_s: float = 60.0
    connect_timeout_s: float = 5.0
    # A long prompt on a Raspberry Pi can take many minutes before the first byte comes.
    upstream_idle_timeout_s: float = 1800.0
    stop_timeout_s: float = 20.0

    @classmethod
    def from_mapping(cls, table: Mapping[str, Any], where: str = "[gate]") -> GateSettings:
        """Settings from a plain table; raises UserError that names the key and what it may hold."""
        fields = {field.name: field for field in dataclasses.fields(cls)}
        for key in table:
            if key not in fields:
                near = difflib.get_close_matches(key, fields, n=1)
                hint = f"; did you mean `{near[0]}`?" if near else f"; known keys: {', '.join(sorted(fields))}"
                raise UserError(f"{where}: unknown key `{key}`{hint}")
        values = {key: _checked(key, value, fields[key].default, where) for key, value in table.items()}
        settings = cls(**values)
        settings._check(where)
        return settings

    def replaced(self, **changes: Any) -> GateSettings:
        """A copy with the changes that are not None, checked again; raises UserError."""
        given = {key: value for key, value in changes.items() if value is not None}
        return GateSettings.from_mapping({**dataclasses.asdict(self), **given}, "command line")

    @property
    def listen_address(self) -> tuple[str, int]:
        """Host and port to listen on."""
        return parse_address(self.listen, "listen")

    def _check(self, where: str) -> None:
        parse_address(self.listen, f"{where} listen")
        if self.agent_listen:
            parse_address(self.agent_listen, f"{where} agent_listen")
        _check_upstream(self.upstream, where)
        if _port_of(self.upstream) == self.listen_address[1] and _same_host(self):
            raise UserError(f"{where}: `upstream` {self.upstream} is where the gate itself listens")
        if not self.health_path.startswith("/"):
            raise UserError(f"{where}: `health_path` must begin with /, not `{self.health_path}`")
        if self.max_buffered_bytes < self.max_body_bytes:
            raise UserError(f"{where}: `max_buffered_bytes` must be at least `max_body_bytes`")


# Smallest sensible values; everything that is not named here may be 0 or more.
_AT_LEAST: dict[str, float] = {
    "clamp_max_tokens": 1,
    "clamp_choices": 1,
    "retry_after_s": 1,
    "max_inflight": 1,
    "max_body_bytes": 1024,
    "max_connections": 8,
    "header_timeout_s": 0.1,
    "body_timeout_s": 0.1,
    "keepalive_timeout_s": 1,
    "send_timeout_s": 0.1,
    "connect_timeout_s": 0.1,
    "upstream_idle_timeout_s": 1,
    "queue_timeout_s": 0.1,
    "hold_max_s": 1,
}
_AT_MOST: dict[str, float] = {"max_connections": 65536, "max_queue": 65536, "max_held": 65536}


def _checked(key: str, value: Any, default: Any, where: str) -> Any:
    if isinstance(default, str):
        if not isinstance(value, str):
            raise UserError(f"{where}: `{key}` must be a text in quotes, not {value!r}")
        return value
    kinds = (int,) if isinstance(default, int) else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds):
        raise UserError(f"{where}: `{key}` must be a number, not {value!r}")
    low, high = _AT_LEAST.get(key, 0), _AT_MOST.get(key, 2**40)
    if not low <= value <= high:
        raise UserError(f"{where}: `{key}` must lie between {low:g} and {high:g}, not {value}")
    return type(default)(value)


def parse_address(text: str, where: str) -> tuple[str, int]:
    """`HOST:PORT`, `[IPv6]:PORT`; raises UserError."""
    host, colon, port = text.rpartition(":")
    host = host.strip("[]")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UserError(f"{where}: `{text}` is no HOST:PORT, for example 127.0.0.1:8080")
    return host, int(port)


def _check_upstream(url: str, where: str) -> None:
    try:
        parts = urlsplit(url)
        good = parts.scheme == "http" and parts.hostname and (parts.port or 80) > 0
    except ValueError:
        good = False
    if not good or parts.path not in ("", "/") or parts.query or parts.fragment or "@" in parts.netloc:
        raise UserError(f"{where}: `upstream` must look like http://127.0.0.1:8081, not `{url}`")


def _port_of(url: str) -> int:
    return urlsplit(url).port or 80


def _same_host(settings: GateSettings) -> bool:
    """Whether the upstream is a name for the machine, or the address, that the gate listens on."""
    host = urlsplit(settings.upstream).hostname
    return host in _LOOPBACK_NAMES or host == settings.listen_address[0]


def load_settings(path: Path | None) -> GateSettings:
    """Settings of a file's `[gate]` table; without a path the default file if it is there, else the defaults.

    Raises UserError when the file cannot be read, is no TOML, or holds a bad value.
    """
    chosen = path or DEFAULT_CONFIG_PATH
    try:
        text = chosen.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        if path is None:
            return GateSettings()
        raise UserError(f"{chosen}: no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{chosen}: cannot be read: {error}") from error
    document = _parse_toml(text, chosen)
    table = document.get("gate", {})
    if not isinstance(table, dict):
        raise UserError(f"{chosen}: `gate` must be a table: [gate]")
    for section, key, own_key in (("control", "socket", "control"), ("server", "url", "upstream")):
        # What the daemon's tables say of the same thing holds here, too.
        told = document.get(section)
        if isinstance(told, dict) and isinstance(told.get(key), str):
            table = {own_key: told[key], **table}
    return GateSettings.from_mapping(table, f"{chosen} [gate]")


def _parse_toml(text: str, path: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path}: not valid TOML: {error}") from error
