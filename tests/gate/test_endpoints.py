"""Paths are understood the way the most forgiving server would."""

from __future__ import annotations

import pytest

from slmguard.gate.endpoints import Dialect, Kind, classify

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize(
    ("target", "dialect"),
    [
        ("/v1/chat/completions", Dialect.OPENAI_CHAT),
        ("/chat/completions", Dialect.OPENAI_CHAT),
        ("/api/v1/chat/completions?x=1", Dialect.OPENAI_CHAT),
        ("/upstream/qwen/v1/chat/completions", Dialect.OPENAI_CHAT),
        ("/v1/completions", Dialect.OPENAI_COMPLETION),
        ("/completion", Dialect.LLAMA),
        ("/completions", Dialect.LLAMA),
        ("/infill", Dialect.LLAMA),
        ("/v1/responses", Dialect.OPENAI_RESPONSES),
        ("/v1/messages", Dialect.ANTHROPIC),
        ("/api/chat", Dialect.OLLAMA_CHAT),
        ("/api/generate", Dialect.OLLAMA_GENERATE),
        ("/api/v1/generate", Dialect.KOBOLD),
        ("/api/extra/generate/stream", Dialect.KOBOLD),
    ],
)
def test_generation_paths_have_a_dialect(target: str, dialect: Dialect) -> None:
    endpoint = classify("POST", target)
    assert (endpoint.kind, endpoint.dialect) == (Kind.GENERATE, dialect)
    assert classify("OPTIONS", target).kind is Kind.OTHER
    assert classify("GET", target).kind is Kind.OTHER


@pytest.mark.parametrize(
    "target",
    [
        "/v1/chat/completions/",
        "//v1//chat///completions",
        "/v1/%63hat/completions",
        "/v1/chat%2Fcompletions",
        "/V1/Chat/Completions",
        "/v1/chat/completions#x",
        "/v1/chat/completions;x=1",
        "/v1/chat/completions%3Fx",
        "/v1/./chat/completions",
        "/v1/x/../chat/completions",
    ],
)
def test_another_spelling_is_no_way_around(target: str) -> None:
    assert classify("POST", target).kind is Kind.GENERATE


@pytest.mark.parametrize("target", ["/health", "/v1/health", "/metrics", "/slots", "/slots/0", "/api/ps", "/health?x"])
def test_health_and_metrics_are_probes(target: str) -> None:
    assert classify("GET", target).kind is Kind.PROBE


@pytest.mark.parametrize("target", ["/v1/embeddings", "/embedding", "/api/embed", "/v1/rerank"])
def test_embeddings_compute_but_generate_nothing(target: str) -> None:
    assert classify("POST", target).kind is Kind.COMPUTE


@pytest.mark.parametrize(
    "target", ["/v1/models", "/tokenize", "/slots/0?action=erase", "/v1/messages/count_tokens", "/", "*", ""]
)
def test_everything_else_is_other(target: str) -> None:
    assert classify("POST", target).kind is Kind.OTHER


def test_only_what_does_no_harm_twice_may_be_sent_again() -> None:
    assert classify("POST", CHAT).repeatable
    assert classify("POST", "/v1/embeddings").repeatable
    assert classify("POST", "/tokenize").repeatable
    assert classify("GET", "/v1/models").repeatable
    assert not classify("POST", "/models/unload").repeatable
    assert not classify("PATCH", "/x").repeatable
