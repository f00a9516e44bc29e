"""A service in a few numbers, to drive the core without files, clocks or threads."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from slmguard.core import policy
from slmguard.core.events import EventKind, GuardEvent
from slmguard.core.model import (
    HostReading,
    Level,
    MemoryEvents,
    MemoryReading,
    Outcome,
    Rung,
    RungRequest,
    RungResult,
    Sample,
    ServerReading,
)
from slmguard.core.policy import Decision, State
from slmguard.core.settings import Settings

MIB = 1 << 20
GIB = 1 << 30


@dataclass
class World:
    """Time, memory and server of one guarded service; `tick` lets the guard look once."""

    settings: Settings = field(default_factory=Settings)
    now_s: float = 1000.0
    anon_mib: float = 100.0
    weights_mib: float = 100.0
    high_mib: float | None = 400.0
    instance: str = "life-1"
    high_events: int = 0
    oom_kill: int = 0
    refault_pages: int = 0
    psi_full_us: int | None = None
    ready: bool = True
    reachable: bool = True
    busy_slots: int | None = 0
    progress_tokens: int | None = 0
    host_available_mib: float = 2048.0
    gate: bool = False
    visible: bool = True
    state: State = field(default_factory=State)
    decisions: list[Decision] = field(default_factory=list)
    events: list[GuardEvent] = field(default_factory=list)
    requests: list[RungRequest] = field(default_factory=list)

    def sample(self) -> Sample:
        """What the guard would read now."""
        memory = MemoryReading(
            source="cgroup",
            instance=self.instance,
            current_bytes=int((self.anon_mib + self.weights_mib) * MIB),
            anon_bytes=int(self.anon_mib * MIB),
            file_mapped_bytes=int(self.weights_mib * MIB),
            high_bytes=None if self.high_mib is None else int(self.high_mib * MIB),
            events=MemoryEvents(high=self.high_events, oom_kill=self.oom_kill),
            refault_pages=self.refault_pages,
            psi_full_us=self.psi_full_us,
        )
        server = ServerReading(
            asked_at_s=self.now_s,
            reachable=self.reachable,
            ready=self.ready,
            progress_tokens=self.progress_tokens,
            busy_slots=self.busy_slots,
        )
        host = HostReading(total_bytes=4 * GIB, available_bytes=int(self.host_available_mib * MIB))
        return Sample(
            now_s=self.now_s,
            wall_s=self.now_s + 1e9,
            memory=memory if self.visible else None,
            host=host,
            server=server,
            gate_connected=self.gate,
        )

    def tick(self, seconds: float = 1.0) -> Decision:
        """Let `seconds` pass, then look once."""
        self.now_s += seconds
        self.state, decision = policy.step(self.settings, self.state, self.sample())
        self.decisions.append(decision)
        self.events.extend(decision.events)
        if decision.request is not None:
            self.requests.append(decision.request)
        return decision

    def run(self, seconds: float, step_s: float = 1.0) -> list[Decision]:
        """Look every `step_s` for `seconds`."""
        return [self.tick(step_s) for _ in range(round(seconds / step_s))]

    def answer(self, outcome: Outcome = Outcome.OK, seconds: float = 0.1, detail: str = "") -> None:
        """Answer the rung that is running."""
        request = self.state.ladder.running
        assert request is not None, "no rung is running"
        result = RungResult(request.request_id, request.rung, outcome, self.now_s, seconds, detail)
        self.state = policy.finished(self.state, result)

    def answer_if_asked(self, outcomes: dict[Rung, Outcome]) -> None:
        """Answer a running rung with what `outcomes` says of it."""
        request = self.state.ladder.running
        if request is not None and request.rung in outcomes:
            self.answer(outcomes[request.rung])

    def restart(self, anon_mib: float = 100.0) -> None:
        """The service starts anew with an empty cache."""
        number = int(self.instance.rsplit("-", 1)[1]) + 1
        self.instance = f"life-{number}"
        self.anon_mib = anon_mib
        self.high_events = self.oom_kill = self.refault_pages = 0
        self.progress_tokens = 0

    def told(self, kind: EventKind) -> list[GuardEvent]:
        """All events of one kind so far."""
        return [event for event in self.events if event.kind is kind]

    def rungs(self) -> list[Rung]:
        """The rungs asked for so far, in order."""
        return [request.rung for request in self.requests]

    @property
    def level(self) -> Level:
        """The level in force."""
        return self.state.level.level

    def with_settings(self, **changes: object) -> World:
        """The same world under other settings."""
        self.settings = replace(self.settings, **changes)  # type: ignore[arg-type]
        return self
