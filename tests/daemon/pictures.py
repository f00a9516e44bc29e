"""Snapshots of a guard made from a World, for the exporter and the status document."""

from __future__ import annotations

from slmguard.core.model import Rung
from slmguard.ledger import Ledger
from slmguard.options import Options
from slmguard.status import Snapshot
from tests.core.world import World


def snapshot_of(world: World, unit: str = "llama-server.service", degraded: tuple[str, ...] = ()) -> Snapshot:
    """What the daemon would show after the world's last tick."""
    ledger = Ledger()
    for decision in world.decisions:
        for event in decision.events:
            ledger.note_event(event)
        for record in decision.records:
            ledger.note_rung(record)
        ledger.ticks += 1
    return Snapshot(
        options=Options(unit=unit, core=world.settings),
        state=world.state,
        sample=world.sample(),
        decision=world.decisions[-1],
        ledger=ledger,
        source="cgroup",
        capabilities=frozenset({Rung.DROP_CACHES}),
        degraded=degraded,
        started_at_s=900.0,
        tick_seconds=0.001,
    )
