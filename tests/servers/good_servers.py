"""Well-behaved servers, scripted from what real ones answered (llama.cpp b11669, single and as a router)."""

from __future__ import annotations

from tests.servers.fake_server import FakeServer, Reply, document, error


def slot(number: int, *, busy: bool = False, processed: int = 0, decoded: int = 0, task: int = 0) -> dict[str, object]:
    return {
        "id": number,
        "n_ctx": 2048,
        "is_processing": busy,
        "id_task": task,
        "n_prompt_tokens": processed + decoded,
        "n_prompt_tokens_processed": processed,
        "next_token": [{"has_next_token": busy, "n_remain": -1, "n_decoded": decoded}],
    }


def metrics(prompt: int = 0, predicted: int = 0, decodes: int = 0, busy: int = 0, deferred: int = 0) -> Reply:
    lines = [
        "# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed",
        "# TYPE llamacpp:prompt_tokens_total counter",
        f"llamacpp:prompt_tokens_total {prompt}",
        f"llamacpp:tokens_predicted_total {predicted}",
        f"llamacpp:n_decode_total {decodes}",
        f"llamacpp:requests_processing {busy}",
        f"llamacpp:requests_deferred {deferred}",
        "llamacpp:prompt_tokens_seconds nan",
    ]
    return Reply(200, "\n".join(lines).encode(), "text/plain")


def _lacks(what: str, flag: str) -> Reply:
    return error(501, f"This server does not support {what}. Start it with `{flag}`", "not_supported_error")


NO_SLOTS = _lacks("slots endpoint", "--slots")
NO_METRICS = _lacks("metrics endpoint", "--metrics")
NO_ACTION = _lacks("slots action", "--slot-save-path")
NO_KEY = error(401, "Invalid API Key", "authentication_error")
PROPS: dict[str, object] = {
    "default_generation_settings": {"n_ctx": 2048},
    "total_slots": 2,
    "model_path": "/models/small.gguf",
    "model_ftype": "Q4_1",
    "endpoint_metrics": True,
    "build_info": "b11669-Debian",
    "is_sleeping": False,
}


def llama_server() -> FakeServer:
    return FakeServer(
        {
            "GET /health": document({"status": "ok"}),
            "GET /props": document(PROPS),
            "GET /metrics": metrics(prompt=100, predicted=50, decodes=60, busy=1),
            "GET /slots": document([slot(0), slot(1, busy=True, processed=30, decoded=7)]),
            "POST /slots/0?action=none": error(400, "Invalid action", "invalid_request_error"),
            "POST /slots/0?action=erase": document({"id_slot": 0, "n_erased": 80}),
            "POST /slots/1?action=erase": document({"id_slot": 1, "n_erased": 37}),
        }
    )


def llama_router() -> FakeServer:
    models = [
        {"id": name, "status": {"value": value}}
        for name, value in (("a b", "loaded"), ("c", "loaded"), ("d", "unloaded"))
    ]
    return FakeServer(
        {
            "GET /health": document({"status": "ok"}),
            "GET /props": document({"role": "router", "max_instances": 4, "build_info": "b11669-Debian"}),
            "GET /models": document({"data": models, "object": "list"}),
            "GET /metrics?model=a%20b&autoload=false": metrics(prompt=10, predicted=5, decodes=6),
            "GET /metrics?model=c&autoload=false": metrics(prompt=20, predicted=2, decodes=5, busy=1),
            "GET /slots?model=a%20b&autoload=false": document([slot(0)]),
            "GET /slots?model=c&autoload=false": document([slot(0, busy=True, processed=20, decoded=3)]),
            "POST /models/unload": document({"success": True}),
        }
    )


def openai() -> FakeServer:
    return FakeServer({"GET /v1/models": document({"object": "list", "data": [{"id": "qwen", "object": "model"}]})})
