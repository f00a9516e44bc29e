"""llama-server's router mode: models as processes of their own, each asked with `?model=`.

Every call carries `autoload=false`: without it, asking about an unloaded model loads it. Unloading ends the model's
process; a request that runs longer than the model's stop-timeout (10 s) would get a 500, so busy models are left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from slmguard.core.model import Outcome, ServerReading
from slmguard.servers.base import RungReply
from slmguard.servers.http import Failure, HttpClient, Response, printable, rung_reply
from slmguard.servers.llama_server.answers import Counters, Slot, read_counters, read_models, read_slots
from slmguard.servers.llama_server.progress import Progress

Get = Callable[[str, float], "Response | Failure"]
_MAX_MODELS = 16  # loaded at one time; the router's own default is 4
_MAX_COUNTS = 256


def _loaded(get: Get, deadline_s: float) -> tuple[list[str], str]:
    """Names of the models whose process runs, and what went wrong ("" when nothing did)."""
    answer = get("/models", deadline_s)
    if isinstance(answer, Failure):
        return [], answer.reason
    models = read_models(answer.document())
    if answer.status != 200 or models is None:
        return [], f"/models answered {answer.status} without a list of models"
    return [model.name for model in models if model.status == "loaded"][:_MAX_MODELS], ""


def _query(path: str, model: str) -> str:
    return f"{path}?model={quote(model, safe='')}&autoload=false"


def _busy_slots(get: Get, model: str, deadline_s: float) -> tuple[list[Slot], int] | None:
    """The busy slots of one model and the number of all; None when it did not tell."""
    answer = get(_query("/slots", model), deadline_s)
    slots = read_slots(answer.document()) if isinstance(answer, Response) and answer.status == 200 else None
    return ([slot for slot in slots if slot.busy], len(slots)) if slots is not None else None


def _counters(get: Get, model: str, deadline_s: float) -> Counters | None:
    answer = get(_query("/metrics", model), deadline_s)
    return read_counters(answer.text()) if isinstance(answer, Response) and answer.status == 200 else None


def probe(get: Get, progress: dict[str, Progress], now_s: float, deadline_s: float) -> ServerReading:
    """Slots and tokens over all loaded models; `progress` keeps one count per model, also of those unloaded since."""
    names, trouble = _loaded(get, deadline_s)
    busy = total = 0
    troubles = [trouble] if trouble else []
    for name in names:
        counters = _counters(get, name, deadline_s)
        seen = _busy_slots(get, name, deadline_s) if counters is None or counters.busy_slots != 0 else ([], 1)
        if seen is None:
            troubles.append(f"model {printable(name, 60)} did not tell its slots")
            busy += counters.busy_slots or 0 if counters is not None else 0
        else:
            busy += len(seen[0])
            total += seen[1]
        if counters is not None or seen is not None:
            _count_of(name, progress).note(counters, seen[0] if seen is not None else None)
    known = [count.tokens or 0 for count in progress.values()]
    return ServerReading(
        now_s,
        reachable=True,
        ready=not trouble,
        progress_tokens=None if trouble else sum(known),
        busy_slots=None if troubles else busy,
        total_slots=total or None,
        detail="; ".join(troubles) or f"router with {len(names)} models loaded",
    )


def _count_of(name: str, progress: dict[str, Progress]) -> Progress:
    """The model's own count; one that is thrown away when the server names ever new models."""
    return progress.setdefault(name, Progress()) if len(progress) < _MAX_COUNTS else progress.get(name, Progress())


def unload_idle(get: Get, client: HttpClient, deadline_s: float, left_s: Callable[[float], float]) -> RungReply:
    """Unload every loaded model without a running request. The router answers at once and unloads afterwards."""
    names, trouble = _loaded(get, deadline_s)
    if trouble:
        return RungReply(Outcome.FAILED, trouble)
    unloaded: list[str] = []
    kept: list[str] = []
    for name in names:
        seen = _busy_slots(get, name, deadline_s)
        if seen is None or seen[0]:
            kept.append(printable(name, 60) + (" (busy)" if seen is not None else " (did not tell whether it is idle)"))
            continue
        reply = rung_reply(client.post("/models/unload", {"model": name}, left_s(deadline_s)), "")
        if reply.outcome is not Outcome.OK:
            return RungReply(reply.outcome, f"unloading {printable(name, 60)}: {reply.detail}")
        unloaded.append(printable(name, 60))
    parts = [f"unloaded {', '.join(unloaded)}"] if unloaded else ["no idle model to unload"]
    parts += [f"left alone {', '.join(kept)}"] if kept else []
    return RungReply(Outcome.OK, "; ".join(parts))
