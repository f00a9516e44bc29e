"""The long-lived guard: puts the parts together and turns the loop. It holds no policy (that is core.policy)."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from slmguard import composition, journal, memory_lock
from slmguard.actions.base import ActionContext, load, run_rung
from slmguard.control import ControlServer
from slmguard.core import policy
from slmguard.core.events import EventKind, GuardEvent
from slmguard.core.ladder import RungRecord
from slmguard.core.model import Level, Outcome, Rung, RungRequest, RungResult, Sample
from slmguard.exporter import GuardCollector, Health, MetricsServer, TickClock
from slmguard.gate_hub import GateHub
from slmguard.keeping import Keeper
from slmguard.options import Options
from slmguard.reactor import Reactor
from slmguard.recording import Recorder
from slmguard.reload import Reloader
from slmguard.sensing import Senses
from slmguard.status import Snapshot, document
from slmguard.supervision import Supervisor
from slmguard.worker import Job, Worker

LOUD = {
    EventKind.OOM_KILL: journal.ERROR,
    EventKind.STALL_SUSPECTED: journal.ERROR,
    EventKind.BASELINE_OVER: journal.ERROR,
    EventKind.BUDGET_SPENT: journal.ERROR,
    EventKind.UNEXPECTED_RESTART: journal.WARNING,
    EventKind.LEVEL_CHANGED: journal.NOTICE,
    EventKind.RUNG_STARTED: journal.NOTICE,
    EventKind.RUNG_FINISHED: journal.NOTICE,
}
STOP_PATIENCE_S = 8.0
LATE_S = 1.0
STATUS_INTERVAL_S = 5.0


class Guard:
    """One guarded unit. Raises UserError from its constructor when something it must have cannot be had."""

    def __init__(self, options: Options, config_path: str, environment: Mapping[str, str]) -> None:
        self._options = options
        self._environment = environment
        self._clock = time.monotonic
        self._journal = journal.Journal.from_environment(environment)
        self._reactor = Reactor()
        self._supervisor = Supervisor(environment)
        self._stopping = threading.Event()
        self._acting = Worker("rungs", self._reactor.wake)
        self._chores = Worker("chores", self._reactor.wake)
        self._hub = GateHub(self._clock, self._reactor.wake, options.unit)
        self._actions = {rung: load(rung) for rung in Rung}
        self._keeper = Keeper(Path(options.state_directory), options.unit, self._chores, self._clock, self._tell)
        self._recorder = Recorder(options.record_path, self._tell)
        self._reloader = Reloader(config_path, self._chores, self._tell, self._take_over)
        self._lock_problem: str | None = None
        self._senses = self._build_senses(options)
        self._unit_control = composition.unit_control(options, self._senses.source, self._stopping.wait)
        self._state = policy.State()
        self._snapshot: Snapshot | None = None
        self._started_at_s = self._clock()
        self._tick_clock = TickClock()
        self._next_tick_s = self._started_at_s
        self._told_status = ""
        self._told_at_s = 0.0
        self._hup = False
        self._pressure = composition.pressure_trigger(self._reactor, self._look_now)
        self._control = ControlServer(
            Path(options.control_socket), self._reactor, self._clock, self._hub, self._status_document
        )
        self._metrics = self._build_metrics()

    # -- life ------------------------------------------------------------------------------------------------------

    def run(self) -> int:
        """Guard until told to stop; returns the exit code."""
        self._catch_signals()
        self._senses.source.refresh()
        first = self._senses.sample()
        self._state = self._keeper.resume(first)
        self._tick(self._clock())
        if self._options.lock_memory:
            self._lock_problem = memory_lock.lock()
        self._supervisor.ready()
        self._tell_start()
        while not self._stopping.is_set():
            self._reactor.wait(self._next_tick_s - self._clock())
            self._acting.collect()
            self._chores.collect()
            self._control.push()
            if self._metrics is not None:
                self._metrics.sweep()
            if self._hup:
                self._hup = False
                self._supervisor.reloading()
                self._reloader.start()
            now_s = self._clock()
            if now_s >= self._next_tick_s:
                self._tick(now_s)
        self._shut_down()
        return 0

    def _catch_signals(self) -> None:
        def stop(_signal: int, _frame: object) -> None:
            self._stopping.set()
            self._reactor.wake()

        def reload(_signal: int, _frame: object) -> None:
            self._hup = True
            self._reactor.wake()

        signal.signal(signal.SIGTERM, stop)
        signal.signal(signal.SIGINT, stop)
        signal.signal(signal.SIGHUP, reload)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)

    def _shut_down(self) -> None:
        """Let a running rung see the stop, keep what it did, and leave nothing held."""
        self._supervisor.stopping()
        self._acting.stop(STOP_PATIENCE_S)
        self._acting.collect()
        self._hub.release()
        self._control.push()
        unfinished = self._state.ladder.settling_request or self._state.ladder.running
        if unfinished is not None and self._snapshot is not None:
            result = self._state.ladder.settling or RungResult(
                unfinished.request_id, unfinished.rung, Outcome.TIMEOUT, self._clock(), 0.0, "the guard was stopped"
            )
            record = RungRecord(unfinished, result, unfinished.figure_bytes, None, time.time())
            self._keeper.ledger.note_rung(record)
        self._chores.stop(STOP_PATIENCE_S)
        self._keeper.save_now(self._state)
        self._control.close()
        if self._metrics is not None:
            self._metrics.close()
        self._recorder.close()
        self._senses.source.close()
        self._journal.log(journal.INFO, "stopped")

    # -- one step --------------------------------------------------------------------------------------------------

    def _tick(self, planned_s: float) -> None:
        began_s = self._clock()
        sample = self._senses.sample()
        life = self._state.instance
        self._state, decision = policy.step(self._options.core, self._state, sample)
        if life is not None and self._state.instance != life:
            self._senses.forget_server()
        self._recorder.sample(sample)
        for record in decision.records:
            self._keeper.ledger.note_rung(record)
        for event in decision.events:
            self._note(event)
        if decision.request is not None:
            self._hand_out(decision.request)
        self._hub.set_state(decision.gate)
        self._control.push()
        ledger = self._keeper.ledger
        ledger.ticks += 1
        if began_s - planned_s > LATE_S:
            ledger.late_ticks += 1
        took_s = self._clock() - began_s
        self._tick_clock.observe(took_s)
        self._snapshot = Snapshot(
            options=self._options,
            state=self._state,
            sample=sample,
            decision=decision,
            ledger=ledger,
            source=self._senses.source.name,
            capabilities=self._senses.capabilities(),
            degraded=self._degraded(sample),
            started_at_s=self._started_at_s,
            tick_seconds=took_s,
        )
        self._keeper.keep(self._state)
        self._senses.ask_around(eager=decision.level > Level.NORMAL or self._state.stall.since_s is not None)
        self._next_tick_s = self._clock() + decision.interval_s
        self._tell_systemd(sample.now_s)
        self._supervisor.alive()

    def _hand_out(self, request: RungRequest) -> None:
        """Give a rung to the worker, unless a fresh look says that it is not needed any more."""
        fresh = self._senses.sample()
        if not policy.still_warranted(self._options.core, self._state, request, fresh):
            self._finish(
                RungResult(request.request_id, request.rung, Outcome.SKIPPED, self._clock(), 0.0, "recovered by itself")
            )
            return
        context = ActionContext(
            server=composition.rung_server(self._senses.server),
            unit=self._unit_control,
            gate=self._hub,
            clock=self._clock,
            sleep=self._stopping.wait,
            keep_recent_tokens=self._options.core.ladder.keep_recent_tokens,
            drain_s=self._options.restart.drain_s,
            stop_timeout_s=self._options.restart.stop_timeout_s,
            ready_timeout_s=self._options.restart.ready_timeout_s,
        )
        action = self._actions[request.rung]
        job = Job(request.rung.value, lambda: run_rung(action, request, context), self._finish, self._lost)
        if not self._acting.submit(job):
            self._finish(
                RungResult(
                    request.request_id,
                    request.rung,
                    Outcome.FAILED,
                    self._clock(),
                    0.0,
                    "the worker hangs in an older job",
                )
            )

    def _finish(self, result: RungResult) -> None:
        self._recorder.result(result)
        self._state = policy.finished(self._state, result)
        self._look_now()

    def _lost(self, error: BaseException) -> None:
        request = self._state.ladder.running
        if request is not None:
            detail = f"{type(error).__name__}: {error}"
            self._finish(RungResult(request.request_id, request.rung, Outcome.FAILED, self._clock(), 0.0, detail))

    def _look_now(self) -> None:
        """Take the next look as soon as the pace allows."""
        self._next_tick_s = min(self._next_tick_s, self._clock() + self._options.core.cadence.min_s / 2)

    # -- telling ---------------------------------------------------------------------------------------------------

    def _tell(self, text: str) -> None:
        self._journal.log(journal.WARNING, text)

    def _note(self, event: GuardEvent) -> None:
        self._keeper.ledger.note_event(event)
        self._journal.log(LOUD.get(event.kind, journal.INFO), f"{self._options.unit}: {event.text}")

    def _tell_start(self) -> None:
        core, unit = self._options.core, self._options.unit
        mode = "watching (dry run)" if core.dry_run else "guarding"
        levels = core.levels
        self._journal.log(
            journal.NOTICE,
            f"{mode} {unit}: source {self._senses.source.name}, levels at {levels.elevated_ratio:.0%}, "
            f"{levels.high_ratio:.0%}, {levels.critical_ratio:.0%} of the limit by {core.figure}",
        )
        if self._snapshot is not None:
            for sentence in self._snapshot.degraded:
                self._journal.log(journal.WARNING, f"degraded: {sentence}")

    def _degraded(self, sample: Sample) -> tuple[str, ...]:
        own = [
            self._lock_problem,
            self._keeper.problem,
            self._recorder.problem,
            self._reloader.problem,
            self._pressure.problem,
        ]
        memory = sample.memory
        if memory is not None and memory.high_bytes and memory.max_bytes and memory.high_bytes > memory.max_bytes:
            own.append(
                "MemoryHigh is above MemoryMax: the service is killed before it is ever throttled; lower MemoryHigh"
            )
        if memory is not None and memory.high_bytes is None and memory.max_bytes is None:
            own.append(
                "the service has neither MemoryHigh nor MemoryMax: only the board's headroom is guarded;"
                f" set one with: systemctl set-property {self._options.unit} MemoryHigh=…"
            )
        return (*sample.degraded, *(problem for problem in own if problem))

    def _tell_systemd(self, now_s: float) -> None:
        snapshot = self._snapshot
        if snapshot is None:
            return
        figures = snapshot.decision.figures
        amount = "cannot be seen"
        if figures is not None:
            limit = f"/{figures.limit_bytes >> 20}" if figures.limit_bytes else ""
            amount = f"{self._options.core.figure} {figures.chosen_bytes >> 20}{limit} MiB"
        text = f"level={snapshot.decision.level.word} {self._options.unit} {amount}"
        if text != self._told_status and (
            now_s - self._told_at_s >= STATUS_INTERVAL_S or "level" not in self._told_status
        ):
            self._told_status, self._told_at_s = text, now_s
            self._supervisor.status(text)

    def _status_document(self) -> dict[str, object]:
        return document(self._snapshot) if self._snapshot is not None else {"error": "starting"}

    # -- building --------------------------------------------------------------------------------------------------

    def _build_senses(self, options: Options) -> Senses:
        source, host, server = composition.senses(options, self._environment)
        return Senses(
            source,
            host,
            server,
            self._chores,
            self._clock,
            options.server.probe_interval_s,
            self._hub.connected,
            self._tell,
        )

    def _build_metrics(self) -> MetricsServer | None:
        if self._options.metrics_listen is None:
            return None
        health = Health()
        health.worker_dropped = lambda: self._acting.dropped + self._chores.dropped
        health.journal_dropped = lambda: self._journal.dropped
        health.state_write_failures = lambda: self._keeper.write_failures
        collector = GuardCollector(lambda: self._snapshot, self._tick_clock, health)
        return MetricsServer(
            self._options.metrics_listen, self._reactor, self._clock, lambda: self._snapshot, collector
        )

    def _take_over(self, options: Options | None) -> None:
        """A reload has been validated (or refused: None); put it in force without losing what is known."""
        if options is not None:
            old = self._options
            fixed = replace(
                options,
                metrics_listen=old.metrics_listen,
                control_socket=old.control_socket,
                state_directory=old.state_directory,
                lock_memory=old.lock_memory,
                record_path=old.record_path,
            )
            if fixed != options:
                self._tell("[metrics], [control], [state] and record changes take effect at the next start of slmguard")
            if (fixed.unit, fixed.memory, fixed.server) != (old.unit, old.memory, old.server):
                self._senses.source.close()
                self._senses = self._build_senses(fixed)
                self._unit_control = composition.unit_control(fixed, self._senses.source, self._stopping.wait)
            elif fixed.restart != old.restart:
                self._unit_control = composition.unit_control(fixed, self._senses.source, self._stopping.wait)
            self._options = fixed
            self._journal.log(journal.NOTICE, "configuration reloaded")
        self._supervisor.ready()
        self._look_now()


def main(settings_fd: int, config_path: str) -> int:
    """Run the guard with the settings that the validating stage left in `settings_fd`."""
    from slmguard.handover import receive

    guard = Guard(receive(settings_fd), config_path, dict(os.environ))
    return guard.run()
