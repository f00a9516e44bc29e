"""Metrics: promtool is content, everything is there from the first scrape, and the server cannot be leaned on."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from slmguard.core.errors import UserError
from slmguard.core.model import Outcome, Rung
from slmguard.exporter import GuardCollector, Health, MetricsServer, TickClock, landing_page
from slmguard.reactor import Reactor
from slmguard.status import Snapshot, document
from tests.core.world import World
from tests.daemon.pictures import snapshot_of


class Rig:
    def __init__(self, snapshot: Snapshot | None) -> None:
        self.snapshot = snapshot
        self.now_s = 0.0
        self.reactor = Reactor()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        ticks = TickClock()
        ticks.observe(0.002)
        collector = GuardCollector(lambda: self.snapshot, ticks, Health())
        self.server = MetricsServer(
            f"127.0.0.1:{self.port}", self.reactor, lambda: self.now_s, lambda: self.snapshot, collector
        )
        self._stop = False
        self._thread = threading.Thread(target=self._loop)
        self._thread.start()

    def _loop(self) -> None:
        while not self._stop:
            self.reactor.wait(0.5)
            self.server.sweep()

    def talk(self, data: bytes) -> bytes:
        with socket.create_connection(("127.0.0.1", self.port), timeout=5) as peer:
            peer.sendall(data)
            received = b""
            while chunk := peer.recv(65536):
                received += chunk
            return received

    def get(self, path: str) -> tuple[str, str]:
        head, _, body = self.talk(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()).partition(b"\r\n\r\n")
        return head.decode(), body.decode()

    def close(self) -> None:
        self._stop = True
        self.reactor.wake()
        self._thread.join(5)
        self.server.close()
        self.reactor.close()


def busy_world() -> World:
    world = World(anon_mib=275)
    for _ in range(30):
        world.tick()
        world.answer_if_asked(dict.fromkeys(Rung, Outcome.OK))
    return world


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig(snapshot_of(busy_world()))
    yield rig
    rig.close()


def test_promtool_finds_nothing_to_complain_about(rig: Rig) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None, "promtool is missing: apt-get install prometheus"
    _head, body = rig.get("/metrics")
    done = subprocess.run([promtool, "check", "metrics"], input=body, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_every_series_exists_from_the_first_scrape_and_counters_start_at_zero() -> None:
    world = World()
    world.tick()
    rig = Rig(snapshot_of(world))
    try:
        families = {family.name: family for family in text_string_to_metric_families(rig.get("/metrics")[1])}
    finally:
        rig.close()
    runs = families["slmguard_rung_runs"].samples
    assert len(runs) == len(Rung) * len(Outcome)
    assert all(sample.value == 0 for sample in runs)
    assert [sample.value for sample in families["slmguard_oom_kills"].samples] == [0]
    levels = {sample.labels["level"]: sample.value for sample in families["slmguard_level"].samples}
    assert levels == {"normal": 1, "elevated": 0, "high": 0, "critical": 0}


def test_labels_are_bounded(rig: Rig) -> None:
    for family in text_string_to_metric_families(rig.get("/metrics")[1]):
        for sample in family.samples:
            assert set(sample.labels) <= {"unit", "level", "rung", "outcome", "version", "source", "le"}, sample


def test_the_figures_are_those_of_the_status_document(rig: Rig) -> None:
    metrics = {family.name: family for family in text_string_to_metric_families(rig.get("/metrics")[1])}
    status = json.loads(rig.get("/status")[1])
    assert rig.snapshot is not None
    assert status == json.loads(json.dumps(document(rig.snapshot)))
    assert metrics["slmguard_memory_demand_bytes"].samples[0].value == status["memory"]["demand_bytes"]
    assert metrics["slmguard_figure_ratio"].samples[0].value == pytest.approx(status["ratio"], abs=1e-4)


def test_a_hostile_unit_name_breaks_neither_metrics_nor_page() -> None:
    world = World()
    world.tick()
    name = 'x"} 1\n<script>alert(1)</script>\\'
    rig = Rig(snapshot_of(world, unit=name, degraded=("<b>",)))
    try:
        families = list(text_string_to_metric_families(rig.get("/metrics")[1]))
        page = rig.get("/")[1]
    finally:
        rig.close()
    assert {sample.labels["unit"] for family in families for sample in family.samples if "unit" in sample.labels} == {
        name
    }
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_before_the_first_look_there_is_a_page_and_no_lie() -> None:
    rig = Rig(None)
    try:
        head, body = rig.get("/metrics")
        assert "200 OK" in head
        assert "slmguard_memory_demand_bytes" not in body
        assert "404" in rig.get("/status")[0]
    finally:
        rig.close()
    assert "starting" in landing_page({})


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /../etc/passwd HTTP/1.1\r\n\r\n", b"404"),
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/9.9 extra\r\n\r\n", b"400"),
        (b"\x00\xff\xfe\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000, b"431"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200"),
    ],
)
def test_odd_requests_get_short_answers(rig: Rig, request_bytes: bytes, status: bytes) -> None:
    answer = rig.talk(request_bytes)
    assert status in answer.split(b"\r\n", 1)[0]
    if request_bytes.startswith(b"HEAD"):
        assert answer.endswith(b"\r\n\r\n")


def test_fifty_idle_sockets_do_not_keep_a_scrape_out_for_long(rig: Rig) -> None:
    idle = [socket.create_connection(("127.0.0.1", rig.port), timeout=5) for _ in range(50)]
    try:
        assert idle[49].recv(1) == b"", "those beyond the bound are hung up on at once"
        rig.now_s = 6.0
        rig.reactor.wake()
        assert idle[0].recv(1) == b"", "the others after their time"
        assert "200 OK" in rig.get("/metrics")[0]
        assert threading.active_count() < 10
    finally:
        for peer in idle:
            peer.close()


def test_a_taken_address_is_said_in_one_line(rig: Rig) -> None:
    with pytest.raises(UserError, match=rf"listen = 127.0.0.1:{rig.port}: Address already in use"):
        MetricsServer(
            f"127.0.0.1:{rig.port}",
            rig.reactor,
            lambda: 0.0,
            lambda: None,
            GuardCollector(lambda: None, TickClock(), Health()),
        )
