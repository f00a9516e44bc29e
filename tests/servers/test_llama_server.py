"""What the llama-server adapter makes of a server's figures, flags and faults."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slmguard.core.model import Outcome, Rung
from slmguard.servers.base import ServerOptions
from slmguard.servers.llama_server import Adapter
from slmguard.servers.llama_server.answers import Counters, Slot, read_counters, read_models, read_slots
from slmguard.servers.llama_server.progress import Progress
from tests.servers import fake_server
from tests.servers.fake_server import FakeServer, Reply, document, error, running
from tests.servers.good_servers import (
    NO_ACTION,
    NO_KEY,
    NO_METRICS,
    NO_SLOTS,
    PROPS,
    llama_router,
    llama_server,
    metrics,
)


def adapter(server: FakeServer, timeout_s: float = 10.0) -> Adapter:
    return Adapter(ServerOptions(server.url, timeout_s=timeout_s))


def test_sums_the_counters_and_what_runs_now() -> None:
    with running(llama_server()) as server:
        reading = adapter(server).probe(0.0)
    assert (reading.progress_tokens, reading.busy_slots, reading.total_slots) == (100 + 50 + 7, 1, 2)


def test_an_idle_server_is_not_asked_for_its_slots_so_that_it_may_fall_asleep() -> None:
    good = llama_server()
    good.routes["GET /metrics"] = metrics(busy=0)
    with running(good) as server:
        reading = adapter(server).probe(0.0)
    assert (reading.busy_slots, reading.total_slots) == (0, 2)
    assert "GET /slots" not in server.requests


def test_a_sleeping_server_is_neither_woken_nor_called_broken() -> None:
    good = llama_server()
    good.routes["GET /props"] = document({**PROPS, "is_sleeping": True})
    with running(good) as server:
        guard = adapter(server)
        reading = guard.probe(0.0)
        reply = guard.drop_caches()
    assert (reading.ready, reading.busy_slots, reading.detail) == (True, 0, "asleep after idling")
    assert reply.outcome is Outcome.OK
    assert not [request for request in server.requests if "/slots?" in request or request.endswith("/slots")]


def test_a_loading_server_is_reachable_and_not_ready() -> None:
    with running(FakeServer(otherwise=error(503, "Loading model"))) as server:
        reading = adapter(server).probe(0.0)
    assert (reading.reachable, reading.ready, reading.detail) == (True, False, "Loading model")


def test_what_it_was_started_without_is_said_once_and_not_asked_again() -> None:
    good = llama_server()
    good.routes |= {"GET /slots": NO_SLOTS, "GET /metrics": NO_METRICS, "POST /slots/0?action=none": NO_ACTION}
    with running(good) as server:
        guard = adapter(server)
        guard.probe(0.0)
        reading = guard.probe(1.0)
        reply = guard.drop_caches()
    assert (reading.ready, reading.progress_tokens, reading.busy_slots) == (True, None, None)
    for flag in ("--no-slots", "--metrics", "--slot-save-path"):
        assert any(flag in sentence for sentence in guard.degraded())
    assert server.requests.count("GET /metrics") == 1
    assert (reply.outcome, guard.capabilities()) == (Outcome.ABSENT, frozenset())


def test_a_missing_key_is_said() -> None:
    good = llama_server()
    good.routes |= {route: NO_KEY for route in good.routes if route != "GET /health"}
    with running(good) as server:
        guard = adapter(server)
        reading = guard.probe(0.0)
    assert reading.ready
    assert all("needs an API key" in sentence for sentence in guard.degraded())
    assert len(guard.degraded()) == 3


def test_slots_not_answered_in_time_are_said_and_no_zero() -> None:
    good = llama_server()
    good.routes["GET /slots"] = fake_server.hang
    good.routes["GET /metrics"] = NO_METRICS
    with running(good) as server:
        reading = adapter(server, timeout_s=0.5).probe(0.0)
    assert (reading.reachable, reading.ready) == (True, True)
    assert (reading.progress_tokens, reading.busy_slots) == (None, None)
    assert "only between batches" in reading.detail


def test_erases_only_idle_slots_that_the_server_named() -> None:
    with running(llama_server()) as server:
        guard = adapter(server)
        guard.probe(0.0)
        assert guard.capabilities() == {Rung.DROP_CACHES}
        reply = guard.drop_caches()
    assert (reply.outcome, reply.detail) == (Outcome.OK, "1 idle slots erased (80 tokens), 1 busy left alone")
    assert [request for request in server.requests if "erase" in request] == ["POST /slots/0?action=erase"]


def test_an_erase_that_is_not_answered_ends_the_rung_in_time() -> None:
    good = llama_server()
    good.routes["POST /slots/0?action=erase"] = fake_server.hang
    with running(good) as server:
        reply = adapter(server, timeout_s=0.5).drop_caches()
    assert reply.outcome is Outcome.TIMEOUT
    assert reply.detail.startswith("0 of 1 idle slots erased")


def test_capabilities_are_found_without_doing_anything() -> None:
    with running(llama_server()) as server:
        adapter(server).probe(0.0)
    assert [request for request in server.requests if request.startswith("POST")] == ["POST /slots/0?action=none"]


def test_a_restarted_server_is_learnt_anew() -> None:
    good = llama_server()
    good.routes["POST /slots/0?action=none"] = NO_ACTION
    with running(good) as server:
        guard = adapter(server)
        first = guard.probe(0.0)
        good.routes["POST /slots/0?action=none"] = error(400, "Invalid action")
        good.routes["GET /metrics"] = metrics(prompt=3, decodes=1, busy=0)
        second = guard.probe(1.0)  # the counters fell: another life
        guard.probe(2.0)
    assert guard.capabilities() == {Rung.DROP_CACHES}
    assert guard.degraded() == ()
    assert (first.progress_tokens, second.progress_tokens) == (157, 160)


def test_a_router_sums_its_loaded_models_and_loads_none() -> None:
    with running(llama_router()) as server:
        reading = adapter(server).probe(0.0)
    assert (reading.ready, reading.progress_tokens, reading.busy_slots) == (True, 15 + 22 + 3, 1)
    asked = [request for request in server.requests if "model=" in request]
    assert asked
    assert all("autoload=false" in request and "model=d" not in request for request in asked)


def test_a_router_unloads_idle_models_and_leaves_busy_ones() -> None:
    with running(llama_router()) as server:
        guard = adapter(server)
        guard.probe(0.0)
        reply = guard.drop_caches()
    assert guard.capabilities() == {Rung.DROP_CACHES}
    assert (reply.outcome, reply.detail) == (Outcome.OK, "unloaded a b; left alone c (busy)")
    assert [body for body in server.bodies if b"model" in body] == [b'{"model": "a b"}']


def test_describe_tells_build_and_model_and_no_template() -> None:
    with running(llama_server()) as server:
        guard = adapter(server)
        guard.probe(0.0)
    told = guard.describe()
    assert (told["build"], told["model"], told["context_tokens"]) == ("b11669-Debian", "/models/small.gguf", 2048)


def test_older_field_names_are_understood() -> None:
    slots = read_slots([{"id": 3, "state": 1, "id_task": 9, "next_token": {"n_decoded": 5}}])
    assert slots == (Slot(3, 9, busy=True, decoded_tokens=5),)


# -- progress ---------------------------------------------------------------------------------------------------------


def counters(prompt: int = 0, predicted: int = 0, decodes: int = 0) -> Counters:
    return Counters(prompt, predicted, decodes)


def busy(processed: int, decoded: int, task: int = 0) -> list[Slot]:
    return [Slot(0, task, busy=True, prompt_tokens_processed=processed, decoded_tokens=decoded)]


def test_a_whole_request_is_counted_once_as_it_goes() -> None:
    progress = Progress()
    seen = []
    for values, slots in [
        (counters(), busy(0, 0)),
        (counters(decodes=1), busy(256, 0)),
        (counters(decodes=2), busy(512, 0)),
        (counters(prompt=600, decodes=4), busy(600, 1)),
        (counters(prompt=600, decodes=13), busy(600, 10)),
        (counters(prompt=600, predicted=20, decodes=23), []),
    ]:
        progress.note(values, slots)
        seen.append(progress.tokens)
    assert seen == [0, 256, 512, 601, 610, 620]


def test_an_overcount_does_not_hide_later_progress() -> None:
    progress = Progress()
    progress.note(counters(prompt=100, predicted=50, decodes=60), busy(100, 50))  # ended between the two calls
    before = progress.tokens
    progress.note(counters(prompt=100, predicted=50, decodes=61), busy(0, 0, task=1))
    assert progress.tokens == (before or 0) + 1


def test_slots_that_come_and_go_do_not_make_a_stalled_server_look_alive() -> None:
    progress = Progress()
    progress.note(counters(decodes=5), busy(300, 0))
    before = progress.tokens
    for _ in range(5):
        progress.note(counters(decodes=5), None)
        progress.note(counters(decodes=5), busy(300, 0))
        progress.note(None, busy(300, 0))
        progress.note(None, busy(300, 0))
    assert progress.tokens == (before or 0) + 300  # once, when first looked at alone


rounds = st.lists(
    st.tuples(
        st.none() | st.builds(Counters, *[st.integers(0, 1000)] * 3),
        st.none()
        | st.lists(
            st.builds(Slot, st.integers(0, 3), st.integers(0, 3), st.just(True), *[st.integers(0, 1000)] * 3),
            max_size=3,
        ),
    )
)


@given(rounds)
def test_progress_never_falls(given_rounds: list[tuple[Counters | None, list[Slot] | None]]) -> None:
    progress = Progress()
    last = 0
    for values, slots in given_rounds:
        progress.note(values, slots)
        assert progress.tokens is not None
        assert progress.tokens >= last
        last = progress.tokens


@given(st.integers(1, 50), st.integers(1, 50))
def test_every_batch_moves_the_count(first: int, more: int) -> None:
    progress = Progress()
    progress.note(counters(decodes=first), [])
    before = progress.tokens or 0
    progress.note(counters(decodes=first + more), [])
    assert (progress.tokens or 0) > before


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["id", "state", "is_processing", "next_token", "n_decoded", "data", "status", "value"]),
            inner,
            max_size=6,
        )
    ),
    max_leaves=20,
)


@given(anything)
def test_no_document_breaks_the_readers(value: object) -> None:
    for each in (value, [value], {"data": value}, {"data": [value]}):
        slots = read_slots(each)
        assert slots is None or all(dataclasses.is_dataclass(item) for item in slots)
        models = read_models(each)
        assert models is None or all(model.name is not None for model in models)


@given(st.text(max_size=300), st.sampled_from(["", "nan", "inf", "-1", "1e400", "1e3", "x"]))
def test_no_text_breaks_the_counters(text: str, figure: str) -> None:
    full = f"{text}\nllamacpp:prompt_tokens_total {figure}\nllamacpp:tokens_predicted_total 5"
    read = read_counters(full)
    assert read is None or read.prompt_tokens in {0, 1000} or "prompt_tokens_total" in text


def test_a_body_over_the_limit_is_named() -> None:
    good = llama_server()
    good.routes["GET /metrics"] = Reply(200, b"x" * 2000, "text/plain")
    with running(good) as server:
        guard = Adapter(ServerOptions(server.url, timeout_s=10.0, max_body_bytes=1000))
        assert "more than 1000 bytes" in guard.probe(0.0).detail


@pytest.mark.parametrize("status", [400, 500])
def test_a_failed_trim_says_what_the_server_said(status: int) -> None:
    good = llama_server()
    good.routes["POST /api/v1/context/trim"] = Reply(status, b"no\x1b[31m way" + b"." * 1000)
    with running(good) as server:
        reply = adapter(server).trim(5)
    assert reply.outcome is Outcome.FAILED
    assert f"answered {status}: no\\x1b[31m way" in reply.detail
    assert len(reply.detail) < 260
