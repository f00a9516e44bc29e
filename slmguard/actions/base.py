"""What a rung's action offers, what it may use, and the runner that all of them go through.

One file per rung in this package, named like the rung, with a class `Action`. Actions run in the daemon's one worker
thread, never in the decision loop. The runner gives every action its dry run, its deadline and its result.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from slmguard.core.model import Outcome, Rung, RungRequest, RungResult, ServerReading


class RungServer(Protocol):
    """The part of a server adapter that actions use (see slmguard.servers.base)."""

    def probe(self, now_s: float) -> ServerReading:
        """Health and progress."""
        ...

    def trim(self, keep_recent: int) -> Reply:
        """Ask for the newest `keep_recent` tokens only."""
        ...

    def drop_caches(self) -> Reply:
        """Give back what can be given back."""
        ...


class Reply(Protocol):
    """An outcome with a sentence."""

    @property
    def outcome(self) -> Outcome:
        """How it went."""
        ...

    @property
    def detail(self) -> str:
        """The sentence."""
        ...


class UnitControl(Protocol):
    """Restarts the guarded service, and nothing else."""

    def restart(self, timeout_s: float) -> None:
        """Stop and start it. Returns once it has been started again.

        Raises UnitControlError with one line when it did not work, TimeoutError when it took too long.
        """
        ...

    def force_restart(self, timeout_s: float) -> None:
        """The same without waiting for a clean stop (SIGKILL at once)."""
        ...


class UnitControlError(Exception):
    """The service could not be restarted; the message says what was tried and what was answered."""


class GateLink(Protocol):
    """The daemon's hold on the gate, if one is connected."""

    def connected(self) -> bool:
        """True when a gate is subscribed."""
        ...

    def hold(self, deadline_s: float) -> None:
        """New requests wait, for at most `deadline_s` seconds."""
        ...

    def in_flight(self) -> int | None:
        """Requests now running upstream, None when no gate tells."""
        ...

    def cut(self) -> None:
        """Close the upstream sockets of what is still in flight."""
        ...

    def release(self) -> None:
        """Let the held requests go through."""
        ...


@dataclass(frozen=True, slots=True)
class ActionContext:
    """Everything an action may touch. `clock` is monotonic; `sleep` returns early, True, when the daemon stops."""

    server: RungServer
    unit: UnitControl
    gate: GateLink
    clock: Callable[[], float]
    sleep: Callable[[float], bool]
    keep_recent_tokens: int = 512
    drain_s: float = 30.0
    stop_timeout_s: float = 30.0
    ready_timeout_s: float = 180.0


class Action(Protocol):
    """One rung."""

    rung: Rung

    def run(self, request: RungRequest, context: ActionContext) -> tuple[Outcome, str]:
        """Do it; returns the outcome and a sentence. May raise anything: the runner turns it into FAILED."""
        ...


def load(rung: Rung) -> Action:
    """The action of `rung`."""
    module = importlib.import_module(f"slmguard.actions.{rung.value}")
    action: Action = module.Action()
    return action


def run_rung(action: Action, request: RungRequest, context: ActionContext) -> RungResult:
    """Run one rung with dry run, timing and every failure turned into a result. Never raises."""
    started_s = context.clock()
    if request.dry_run:
        return RungResult(
            request.request_id, request.rung, Outcome.DRY_RUN, started_s, 0.0, "dry run: nothing was done"
        )
    if started_s >= request.deadline_s:
        return RungResult(
            request.request_id,
            request.rung,
            Outcome.TIMEOUT,
            started_s,
            0.0,
            "its deadline passed before it could start",
        )
    try:
        outcome, detail = action.run(request, context)
    except TimeoutError as error:
        outcome, detail = Outcome.TIMEOUT, str(error) or "timed out"
    except UnitControlError as error:
        outcome, detail = Outcome.FAILED, str(error)
    except Exception as error:  # noqa: BLE001 - whatever an edge throws, the guard goes on and the record says it
        outcome, detail = Outcome.FAILED, f"{type(error).__name__}: {error}"
    finished_s = context.clock()
    return RungResult(request.request_id, request.rung, outcome, finished_s, finished_s - started_s, detail)
