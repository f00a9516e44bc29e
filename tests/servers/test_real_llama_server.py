"""The adapter against a real llama.cpp server: what the scripted ones were written from still holds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from slmguard.core.model import Outcome, Rung, ServerReading
from slmguard.servers.base import RungReply, ServerAdapter, ServerOptions, load
from tests.servers.real_server import RealServer, lacking, start_server

pytestmark = [pytest.mark.server, pytest.mark.skipif(bool(lacking()), reason=lacking())]

LIMIT_S = 240.0
PROMPT = "The quick brown fox jumps over the lazy dog again and again. "


def guard(server: RealServer, api_key: str | None = None) -> ServerAdapter:
    return load("llama-server", ServerOptions(server.url, api_key, timeout_s=20.0))


class Request:
    """A completion that runs in the background."""

    def __init__(self, server: RealServer, prompt: str, tokens: int) -> None:
        self.answer: dict[str, object] = {}
        self._thread = threading.Thread(
            target=lambda: self.answer.update(server.complete(prompt, tokens, timeout_s=LIMIT_S)), daemon=True
        )
        self._thread.start()

    def running(self) -> bool:
        self._thread.join(0.05)  # the pace of the probes
        return self._thread.is_alive()

    def finish(self) -> dict[str, object]:
        self._thread.join(LIMIT_S)
        assert not self._thread.is_alive()
        return self.answer


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealServer]:
    """Small batches, so that a long prompt is seen to move."""
    with start_server(
        n_ctx=2048,
        n_parallel=2,
        n_batch=64,
        endpoint_metrics=True,
        endpoint_slots=True,
        slot_save_path=f"{tmp_path_factory.mktemp('slots')}/",
    ) as started:
        yield started


def test_says_what_it_is(server: RealServer) -> None:
    adapter = guard(server)
    reading = adapter.probe(5.0)
    told = adapter.describe()
    assert (reading.reachable, reading.ready, reading.total_slots, reading.detail) == (True, True, 2, "")
    assert adapter.capabilities() == {Rung.DROP_CACHES}
    assert adapter.degraded() == ()
    assert str(told["model"]).endswith(".gguf")
    assert told["context_tokens"] == 1024


def test_progress_moves_while_a_prompt_is_read_and_while_an_answer_is_written(server: RealServer) -> None:
    adapter = guard(server)
    before = adapter.probe(0.0).progress_tokens or 0
    request = Request(server, PROMPT * 50, 40)
    readings: list[ServerReading] = []
    while request.running():
        readings.append(adapter.probe(0.0))
    answer = request.finish()
    after = adapter.probe(0.0)
    timings = answer["timings"]
    assert isinstance(timings, dict)
    prompt_tokens = timings["prompt_n"]
    seen = [(reading.progress_tokens or 0) - before for reading in readings if reading.busy_slots == 1]
    assert seen == sorted(seen)
    assert len({tokens for tokens in seen if 0 < tokens < prompt_tokens}) >= 2, seen
    assert len({tokens for tokens in seen if prompt_tokens < tokens}) >= 2, seen
    assert after.busy_slots == 0
    # Exact but for a request that ended between two calls of one probe, which is then counted twice.
    assert prompt_tokens + 40 <= (after.progress_tokens or 0) - before <= 2 * (prompt_tokens + 40)


def test_erases_idle_slots_and_leaves_the_busy_one(server: RealServer) -> None:
    adapter = guard(server)
    server.complete(PROMPT, 2)
    request = Request(server, PROMPT * 50, 200)
    while request.running() and adapter.probe(0.0).busy_slots != 1:
        pass
    reply = adapter.drop_caches()
    assert reply.outcome is Outcome.OK
    assert reply.detail.startswith("1 idle slots erased (")
    assert reply.detail.endswith("1 busy left alone")
    assert request.finish()["tokens_predicted"] == 200


def test_has_no_trim_call(server: RealServer) -> None:
    assert guard(server).trim(512) == RungReply(Outcome.ABSENT, "the server has no such call (answered 404)")


def test_a_server_without_flags_says_which_are_missing() -> None:
    with start_server(n_ctx=512, endpoint_metrics=False, endpoint_slots=False) as bare:
        adapter = guard(bare)
        reading = adapter.probe(0.0)
        reply = adapter.drop_caches()
    assert (reading.ready, reading.progress_tokens, reading.busy_slots) == (True, None, None)
    assert {flag for flag in ("--metrics", "--no-slots", "--slot-save-path") if flag in str(adapter.degraded())} == {
        "--metrics",
        "--no-slots",
        "--slot-save-path",
    }
    assert reply.outcome is Outcome.ABSENT


def test_a_key_is_needed_and_enough(tmp_path: Path) -> None:
    with start_server(
        n_ctx=512, endpoint_metrics=True, endpoint_slots=True, slot_save_path=f"{tmp_path}/", api_keys=["k1"]
    ) as locked:
        without = guard(locked)
        refused = without.probe(0.0)
        with_key = guard(locked, api_key="k1")
        reading = with_key.probe(0.0)
        listed = load("openai", ServerOptions(locked.url, timeout_s=20.0)).probe(0.0)
        known = load("openai", ServerOptions(locked.url + "/v1", timeout_s=20.0, api_key="k1")).probe(0.0)
    assert (refused.ready, refused.busy_slots) == (True, None)
    assert all("needs an API key" in sentence for sentence in without.degraded())
    assert (reading.busy_slots, reading.progress_tokens, with_key.degraded()) == (0, 0, ())
    assert (listed.reachable, listed.ready, known.ready) == (True, False, True)


def test_a_server_that_idles_falls_asleep_under_our_eyes_and_is_not_woken() -> None:
    with start_server(n_ctx=512, endpoint_metrics=True, endpoint_slots=True, sleep_idle_seconds=2) as sleepy:
        adapter = guard(sleepy)
        limit = threading.Event()
        timer = threading.Timer(LIMIT_S, limit.set)
        timer.start()
        try:
            while adapter.probe(0.0).detail != "asleep after idling":
                assert not limit.wait(0.2), "it never fell asleep: the probes keep it awake"
        finally:
            timer.cancel()
        reply = adapter.drop_caches()
        after = adapter.probe(0.0)
    assert reply.outcome is Outcome.OK
    assert after.detail == "asleep after idling"


def test_a_killed_server_is_gone_at_once() -> None:
    with start_server(n_ctx=512, endpoint_slots=True) as doomed:
        adapter = guard(doomed)
        assert adapter.probe(0.0).ready
        doomed.process.kill()
        doomed.process.wait(30)
        reading = adapter.probe(1.0)
    assert (reading.reachable, "connection refused" in reading.detail) == (False, True)
