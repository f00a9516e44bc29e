"""What a server adapter offers, and how adapters are found.

One file per server in this package, with a class `Adapter`; the file's name with `-` for `_` is the `kind` in the
configuration. Every call has a time-out, reads a bounded body, and answers in values: a server that is down, slow or
talks nonsense is data, never an exception.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from slmguard.core.errors import UserError
from slmguard.core.model import Outcome, Rung, ServerReading


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Where the server is and how to talk to it. `api_key` is a secret: never logged, never shown."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 3.0
    trim_path: str = "/api/v1/context/trim"
    trim_body: Mapping[str, object] | None = None  # None: {"keep_recent": N}; "{keep_recent}" in values is replaced
    max_body_bytes: int = 1 << 20


@dataclass(frozen=True, slots=True)
class RungReply:
    """What the server answered to a rung; `detail` is a sentence for people."""

    outcome: Outcome
    detail: str = ""


class ServerAdapter(Protocol):
    """One inference server."""

    kind: str

    def probe(self, now_s: float) -> ServerReading:
        """Health and progress in one bounded round of calls; `now_s` becomes `asked_at_s`."""
        ...

    def capabilities(self) -> frozenset[Rung]:
        """The rungs that this very server has shown to have; empty until it was reached once."""
        ...

    def degraded(self) -> tuple[str, ...]:
        """What cannot be seen or done on this server, in words (e.g. started without --metrics)."""
        ...

    def trim(self, keep_recent: int) -> RungReply:
        """Ask the server to keep only the newest `keep_recent` tokens; ABSENT when it has no such call (404, 501)."""
        ...

    def drop_caches(self) -> RungReply:
        """Give back what the server can give back without touching a running request; ABSENT when it can't."""
        ...

    def describe(self) -> Mapping[str, object]:
        """Build, model and start settings as far as the server tells, for reports; no prompts, no keys."""
        ...


def kinds() -> list[str]:
    """The kinds of server that there is an adapter for."""
    import slmguard.servers

    names = (module.name for module in pkgutil.iter_modules(slmguard.servers.__path__))
    return sorted(name.replace("_", "-") for name in names if name not in {"base", "http"})


def load(kind: str, options: ServerOptions) -> ServerAdapter:
    """The adapter for `kind`.

    Raises UserError for an unknown kind, naming the known ones.
    """
    if kind not in kinds():
        raise UserError(f"[server] kind = {kind!r}: no such adapter; known are {', '.join(kinds())}")
    module = importlib.import_module("slmguard.servers." + kind.replace("-", "_"))
    adapter: ServerAdapter = module.Adapter(options)
    return adapter
