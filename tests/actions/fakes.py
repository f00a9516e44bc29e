"""A clock that moves only when somebody sleeps, and a gate, a unit and a server that follow a script on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from slmguard.actions.base import ActionContext
from slmguard.core.model import Level, Outcome, Rung, RungRequest, ServerReading
from slmguard.servers.base import RungReply


@dataclass
class World:
    """Everything that an action touches. `log` is what happened, in order."""

    now_s: float = 100.0
    log: list[str] = field(default_factory=list)
    stops_at_s: float = float("inf")  # when the daemon is told to stop
    connected: bool = True
    busy_until_s: float = 0.0  # requests run till then, unless cut off
    gate_tells: bool = True
    cut_helps: bool = True
    ready_after_s: float = 3.0  # from the start of the new process
    restart_takes_s: float = 1.0
    raises: dict[str, Exception] = field(default_factory=dict)
    held: bool = False
    cut_now: bool = False
    restarted_at_s: float | None = None
    reply: RungReply = field(default_factory=lambda: RungReply(Outcome.OK, "done"))

    def clock(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> bool:
        assert seconds > 0, "a wait of nothing spins"
        self.now_s = min(self.now_s + seconds, max(self.now_s, self.stops_at_s))
        return self.now_s >= self.stops_at_s

    def happen(self, what: str) -> None:
        self.log.append(what)
        if what in self.raises:
            raise self.raises[what]

    def running(self) -> int:
        return 2 if self.now_s < self.busy_until_s and not (self.cut_now and self.cut_helps) else 0


class Gate:
    def __init__(self, world: World) -> None:
        self.world = world

    def connected(self) -> bool:
        return self.world.connected

    def hold(self, deadline_s: float) -> None:
        assert deadline_s > 0
        self.world.held = True
        self.world.happen("hold")

    def in_flight(self) -> int | None:
        if "in_flight" in self.world.raises:
            raise self.world.raises["in_flight"]
        return self.world.running() if self.world.gate_tells else None

    def cut(self) -> None:
        self.world.cut_now = self.world.connected
        self.world.happen("cut")

    def release(self) -> None:
        self.world.held = False
        self.world.happen("release")


class Unit:
    def __init__(self, world: World) -> None:
        self.world = world

    def restart(self, timeout_s: float) -> None:
        self._restart("restart", timeout_s)

    def force_restart(self, timeout_s: float) -> None:
        self._restart("force_restart", timeout_s)

    def _restart(self, what: str, timeout_s: float) -> None:
        assert timeout_s > 0
        self.world.happen(what)
        self.world.now_s += self.world.restart_takes_s
        self.world.restarted_at_s = self.world.now_s


class Server:
    def __init__(self, world: World) -> None:
        self.world = world

    def probe(self, now_s: float) -> ServerReading:
        if "probe" in self.world.raises:
            raise self.world.raises["probe"]
        since = self.world.restarted_at_s
        ready = since is None or self.world.now_s >= since + self.world.ready_after_s
        detail = "" if ready else "Loading model"
        return ServerReading(now_s, reachable=True, ready=ready, busy_slots=self.world.running(), detail=detail)

    def trim(self, keep_recent: int) -> RungReply:
        self.world.happen(f"trim {keep_recent}")
        return self.world.reply

    def drop_caches(self) -> RungReply:
        self.world.happen("drop_caches")
        return self.world.reply


def context(
    world: World, *, drain_s: float = 30.0, stop_timeout_s: float = 30.0, ready_timeout_s: float = 180.0
) -> ActionContext:
    return ActionContext(
        server=Server(world),
        unit=Unit(world),
        gate=Gate(world),
        clock=world.clock,
        sleep=world.sleep,
        drain_s=drain_s,
        stop_timeout_s=stop_timeout_s,
        ready_timeout_s=ready_timeout_s,
    )


def request(rung: Rung, *, deadline_s: float = 400.0, dry_run: bool = False) -> RungRequest:
    return RungRequest(7, rung, Level.HIGH, 1 << 30, 100.0, deadline_s, "above 92 %", dry_run)
