"""Everything that the long-lived daemon is told at its start, already validated.

These values cross the exec between the validating stage and the daemon as JSON, so they hold no secrets: keys are
named here and read from the credentials directory by the daemon itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slmguard.core.settings import Settings

DEFAULT_CONFIG = "/etc/slmguard/slmguard.toml"
DEFAULT_SOCKET = "/run/slmguard/control.sock"
DEFAULT_STATE = "/var/lib/slmguard"
DEFAULT_LISTEN = "127.0.0.1:10985"


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Which source to read, and how to find the service when it is not a unit with a cgroup."""

    source: str = "auto"
    budget_bytes: int | None = None
    budget_max_bytes: int | None = None
    pid: int | None = None
    pid_file: str | None = None
    match_argv: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ServerChoice:
    """The inference server and how to talk to it. `api_key_credential` names a file, it is not the key."""

    kind: str = "llama-server"
    url: str = "http://127.0.0.1:8080"
    api_key_credential: str | None = None
    timeout_s: float = 3.0
    probe_interval_s: float = 5.0
    trim_path: str = "/api/v1/context/trim"
    trim_body: dict[str, object] | None = None


@dataclass(frozen=True, slots=True)
class RestartMethod:
    """How the service is restarted, and how long each part may take."""

    method: str = "systemd"
    command: tuple[str, ...] = ()
    drain_s: float = 30.0
    stop_timeout_s: float = 30.0
    ready_timeout_s: float = 180.0


@dataclass(frozen=True, slots=True)
class Options:
    """The whole configuration."""

    unit: str = ""
    memory: MemoryOptions = field(default_factory=MemoryOptions)
    server: ServerChoice = field(default_factory=ServerChoice)
    restart: RestartMethod = field(default_factory=RestartMethod)
    metrics_listen: str | None = DEFAULT_LISTEN
    control_socket: str = DEFAULT_SOCKET
    state_directory: str = DEFAULT_STATE
    lock_memory: bool = True
    record_path: str | None = None
    core: Settings = field(default_factory=Settings)
