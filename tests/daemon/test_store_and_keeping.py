"""What survives a restart of the guard, and what happens when it can't."""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.core import policy
from slmguard.core.baseline import BaselineState
from slmguard.core.events import EventKind, GuardEvent
from slmguard.core.ladder import LadderState, RungRecord
from slmguard.core.model import Level, Outcome, Rung, RungRequest, RungResult
from slmguard.keeping import Keeper
from slmguard.ledger import Ledger
from slmguard.store import Store
from slmguard.worker import Worker
from tests.core.world import World


class Desk:
    """A keeper with a clock of its own and a boot id that a test can change."""

    def __init__(self, directory: Path, now_s: float = 1000.0, boot_id: str = "boot-1") -> None:
        self.now_s = now_s
        self.told: list[str] = []
        boot = Path(tempfile.mkdtemp()) / "boot_id"
        boot.write_text(boot_id + "\n", encoding="ascii")
        self.worker = Worker("test", lambda: None)
        self.keeper = Keeper(directory, "x.service", self.worker, lambda: self.now_s, self.told.append, boot)

    def close(self) -> None:
        assert self.worker.stop(5)


def record(freed: int = 10) -> RungRecord:
    request = RungRequest(1, Rung.TRIM, Level.HIGH, 100, 1.0, 2.0, "because")
    return RungRecord(request, RungResult(1, Rung.TRIM, Outcome.OK, 2.0, 1.0), 100, 100 - freed, 5.0)


def test_counters_and_history_survive(tmp_path: Path) -> None:
    first = Desk(tmp_path / "state")
    first.keeper.ledger.note_rung(record())
    first.keeper.ledger.note_event(GuardEvent(EventKind.OOM_KILL, 1.0, "killed", count=3))
    first.keeper.save_now(policy.State())
    first.close()
    second = Desk(tmp_path / "state")
    ledger = second.keeper.ledger
    second.close()
    assert ledger.oom_kills == 3
    assert ledger.rung_runs == {"trim/ok": 1}
    assert ledger.rung_freed_bytes == {"trim": 10}
    assert ledger.rungs[0]["reason"] == "because"


def test_the_same_life_is_taken_up_again_with_baseline_and_restarts(tmp_path: Path) -> None:
    sample = World(now_s=1000.0, oom_kill=4).sample()
    first = Desk(tmp_path / "state")
    state = policy.State(
        instance="life-1",
        baseline=BaselineState(baseline_bytes=77),
        ladder=LadderState(restarts_s=(500.0,)),
        oom_kills_seen=4,
    )
    first.keeper.save_now(state)
    first.close()
    second = Desk(tmp_path / "state", now_s=1001.0)
    resumed = second.keeper.resume(sample)
    second.close()
    assert (resumed.instance, resumed.baseline.baseline_bytes, resumed.oom_kills_seen) == ("life-1", 77, 4)
    assert resumed.ladder.restarts_s == (500.0,)


def test_kills_while_the_guard_was_down_are_counted_once(tmp_path: Path) -> None:
    first = Desk(tmp_path / "state")
    first.keeper.save_now(policy.State(instance="life-1", oom_kills_seen=4))
    first.close()
    world = World(oom_kill=6)
    second = Desk(tmp_path / "state")
    world.state = second.keeper.resume(world.sample())
    world.tick()
    world.tick()
    second.close()
    assert [event.count for event in world.told(EventKind.OOM_KILL)] == [2]


def test_after_a_reboot_neither_monotonic_times_nor_lives_are_believed(tmp_path: Path) -> None:
    first = Desk(tmp_path / "state")
    first.keeper.save_now(policy.State(instance="life-1", ladder=LadderState(restarts_s=(900.0,)), oom_kills_seen=9))
    first.close()
    second = Desk(tmp_path / "state", boot_id="boot-2")
    resumed = second.keeper.resume(World().sample())
    second.close()
    assert resumed.ladder.restarts_s == ()
    assert resumed.instance is None


def test_a_damaged_file_is_set_aside_and_said(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "state.json").write_bytes(b'{"units": {"x.serv')
    desk = Desk(state)
    desk.close()
    assert desk.keeper.ledger.oom_kills == 0
    assert "damaged" in desk.told[0]
    assert (state / "state.damaged").read_bytes() == b'{"units": {"x.serv'


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["ledger", "rungs", "rung_runs", "oom_kills", "level_changes"]), inner)
        ),
        max_leaves=10,
    )
)
def test_any_json_in_the_file_gives_a_ledger(data: object) -> None:
    ledger = Ledger.from_json(data)
    assert ledger.oom_kills >= 0
    assert Ledger.from_json(json.loads(json.dumps(ledger.to_json()))).to_json() == ledger.to_json()


def test_a_directory_that_cannot_be_written_is_said_once_and_the_guard_goes_on(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a directory", encoding="ascii")
    desk = Desk(blocked / "state")
    desk.keeper.save_now(policy.State())
    desk.keeper.save_now(policy.State())
    desk.close()
    assert desk.keeper.write_failures == 2
    assert desk.keeper.problem is not None
    assert "counters will not survive" in desk.keeper.problem
    assert len([line for line in desk.told if "cannot be written" in line]) == 1


def test_a_full_disk_leaves_the_old_file_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path)
    assert store.save({"units": {}}) is None

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    complaint = store.save({"units": {"x": 1}})
    assert complaint is not None
    assert "No space left" in complaint
    assert store.load() == ({"units": {}}, None)
    assert [path.name for path in tmp_path.iterdir()] == ["state.json"]


def test_another_units_state_is_kept(tmp_path: Path) -> None:
    Store(tmp_path).save({"version": 1, "units": {"other.service": {"ledger": {"oom_kills": 2}}}})
    desk = Desk(tmp_path)
    desk.keeper.save_now(policy.State())
    desk.close()
    data, _ = Store(tmp_path).load()
    assert data["units"]["other.service"] == {"ledger": {"oom_kills": 2}}
    assert "x.service" in data["units"]


def test_saving_happens_in_the_worker_and_only_after_a_change(tmp_path: Path) -> None:
    desk = Desk(tmp_path / "state")
    state = replace(policy.State(), instance="life-1")
    desk.keeper.keep(state)
    assert desk.worker.stop(5)
    desk.worker.collect()
    assert (tmp_path / "state" / "state.json").exists()
    assert not desk.keeper.ledger.changed
