"""What every adapter holds to, whatever the server does. Subclassed once per adapter in test_*_contract files."""

from __future__ import annotations

import dataclasses
import time

import pytest

from slmguard.core.model import Outcome, Rung, ServerReading
from slmguard.servers.base import RungReply, ServerAdapter, ServerOptions, load
from tests.servers.fake_server import MISDEEDS, FakeServer, Reply, free_port, hang, running

KEY = "sk-very-secret"
SHORT_S = 0.2


def options(url: str, **changes: object) -> ServerOptions:
    plain = ServerOptions(url=url, timeout_s=10.0, api_key=KEY, max_body_bytes=1 << 20)
    return dataclasses.replace(plain, **changes)  # type: ignore[arg-type]


class AdapterContract:
    """Set `kind` and `good`, the routes of a well-behaved server of that kind."""

    kind: str
    rounds = 5  # a call may take at most this many time-outs

    @staticmethod
    def good() -> FakeServer:
        raise NotImplementedError

    def adapter(self, url: str, **changes: object) -> ServerAdapter:
        return load(self.kind, options(url, **changes))

    def test_reads_a_well_behaved_server(self) -> None:
        with running(self.good()) as server:
            adapter = self.adapter(server.url)
            reading = adapter.probe(7.0)
        assert (reading.asked_at_s, reading.reachable, reading.ready) == (7.0, True, True)
        assert adapter.describe()["kind"] == self.kind

    def test_knows_no_capabilities_before_the_server_was_reached(self) -> None:
        assert self.adapter(f"http://127.0.0.1:{free_port()}").capabilities() == frozenset()

    def test_sends_the_key_and_never_shows_it(self) -> None:
        with running(self.good()) as server:
            adapter = self.adapter(server.url)
            shown = [repr(adapter.probe(0.0)), repr(adapter.describe()), repr(adapter.degraded())]
            shown += [repr(adapter.trim(64)), repr(adapter.drop_caches())]
        assert any(f"Authorization: Bearer {KEY}" in head for head in server.heads)
        assert KEY not in "".join(shown)

    @pytest.mark.parametrize("misdeed", MISDEEDS)
    def test_makes_values_of_whatever_every_call_answers(self, misdeed: str) -> None:
        with running(FakeServer(otherwise=MISDEEDS[misdeed])) as server:
            self.check_all(self.adapter(server.url, timeout_s=SHORT_S))

    @pytest.mark.parametrize("misdeed", MISDEEDS)
    def test_makes_values_of_whatever_one_call_answers_on_a_server_else_good(self, misdeed: str) -> None:
        for route in self.good().routes:
            good = self.good()
            good.routes[route] = MISDEEDS[misdeed]
            with running(good) as server:
                self.check_all(self.adapter(server.url, timeout_s=SHORT_S))

    def test_says_that_nothing_listens(self) -> None:
        adapter = self.adapter(f"http://127.0.0.1:{free_port()}")
        reading = adapter.probe(0.0)
        assert not reading.reachable
        assert "connection refused" in reading.detail
        self.check_all(adapter)

    def test_tells_slow_from_absent(self) -> None:
        with running(FakeServer(otherwise=hang)) as server:
            reading = self.adapter(server.url, timeout_s=SHORT_S).probe(0.0)
        assert not reading.reachable
        assert "no answer within" in reading.detail

    @pytest.mark.parametrize("status", ["404", "501"])
    def test_trim_is_absent_where_the_server_does_not_know_it(self, status: str) -> None:
        with running(FakeServer(otherwise=MISDEEDS[status])) as server:
            assert self.adapter(server.url).trim(512).outcome is Outcome.ABSENT

    def test_trim_fills_in_the_configured_body(self) -> None:
        with running(FakeServer(otherwise=Reply(204))) as server:
            adapter = self.adapter(
                server.url, trim_path="/kv", trim_body={"n": "{keep_recent}", "why": ["keep {keep_recent}"], "x": True}
            )
            assert adapter.trim(512).outcome is Outcome.OK
        assert server.requests == ["POST /kv"]
        assert server.bodies == [b'{"n": 512, "why": ["keep 512"], "x": true}']

    def check_all(self, adapter: ServerAdapter) -> None:
        """Every call answers in time, with values fit to be shown on one line."""
        began = time.monotonic()
        reading = adapter.probe(1.0)
        replies = [adapter.trim(64), adapter.drop_caches()]
        # Against hanging only: far above what is right, for machines are noisy.
        assert time.monotonic() - began < SHORT_S * (2 + self.rounds) + 10
        assert isinstance(reading, ServerReading)
        assert reading.reachable or not reading.ready
        texts = [reading.detail, *adapter.degraded(), repr(dict(adapter.describe()))]
        for reply in replies:
            assert isinstance(reply, RungReply)
            assert reply.outcome in {Outcome.OK, Outcome.ABSENT, Outcome.FAILED, Outcome.TIMEOUT}
            assert reply.detail
            texts.append(reply.detail)
        for text in texts:
            assert text.isprintable()
            assert KEY not in text
        assert adapter.capabilities() <= {Rung.TRIM, Rung.DROP_CACHES}
