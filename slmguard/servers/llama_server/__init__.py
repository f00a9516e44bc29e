"""llama.cpp's server: one model, or the router that starts one such server per model.

What it is like (measured on b11669 and on the build in xllamacpp 2026.10):
* /health answers 200 while inference hangs; it tells only that the process accepts connections and has loaded.
* /slots wakes a sleeping server (1.4 s, the whole model is loaded again) and restarts its idle timer; /health, /props
  and /metrics do neither. So /props is asked first where it tells of sleep, and /slots only while something runs.
* An erase waits for the running request of its slot (17 s seen), and slot ids wrap around: only idle slots that /slots
  named are erased, each with a time-out. On a dense model it frees nothing; on SWA and hybrid models the checkpoints.
* Builds before mid-2026 answer /slots and /metrics between batches only: no answer in time is said in `detail`, and is
  no proof of a stall.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from slmguard.core.model import Outcome, Rung, ServerReading
from slmguard.servers.base import RungReply, ServerOptions
from slmguard.servers.http import Failure, HttpClient, Response, printable, rung_reply, trim
from slmguard.servers.llama_server import router
from slmguard.servers.llama_server.answers import Counters, Slot, error_message, read_counters, read_slots
from slmguard.servers.llama_server.progress import Progress

_T = TypeVar("_T")
_MISSING_FLAG = {
    "/slots": "started with --no-slots: busy slots and the progress of running requests are not seen",
    "/metrics": (
        "started without --metrics: token counters are not seen, "
        "and asking for /slots instead keeps a server with --sleep-idle-seconds awake"
    ),
    "erase": "started without --slot-save-path: idle slots cannot be erased",
}
_ERASE_ROUNDS = 4  # a whole drop_caches takes at most this many time-outs


class Adapter:
    """One llama-server (see slmguard.servers.base.ServerAdapter)."""

    kind = "llama-server"

    def __init__(self, options: ServerOptions, clock: Callable[[], float] = time.monotonic) -> None:
        self._options = options
        self._clock = clock
        self._client = HttpClient(options.url, options.api_key, options.timeout_s, options.max_body_bytes)
        self._progress = Progress()
        self._model_progress: dict[str, Progress] = {}  # of a router, by model
        self._forget_life()

    def _forget_life(self) -> None:
        """Whatever was learnt of the server may be different after it was started again."""
        self._props: Mapping[str, object] | None = None
        self._lacks: dict[str, str] = {}  # what this life does not have, and the sentence for it
        self._can_erase = False
        self._trims = False

    # -- seeing ---------------------------------------------------------------------------------------------------

    def probe(self, now_s: float) -> ServerReading:
        """One round of at most four calls, all within `timeout_s` together."""
        deadline_s = self._clock() + self._options.timeout_s
        health = self._get("/health", deadline_s)
        if isinstance(health, Failure):
            if not health.timed_out:
                self._forget_life()  # refused or reset: what comes next is another life
            return ServerReading(now_s, reachable=False, ready=False, detail=health.reason)
        detail = _health_trouble(health)
        if detail:
            return ServerReading(now_s, reachable=True, ready=False, detail=detail)
        self._learn(deadline_s)
        if self._is_router:
            return router.probe(self._get, self._model_progress, now_s, deadline_s)
        if self._sleeping(deadline_s):
            return ServerReading(
                now_s, True, True, self._progress.tokens, 0, self._total_slots, 0, "asleep after idling"
            )
        return self._read_work(now_s, deadline_s)

    def _read_work(self, now_s: float, deadline_s: float) -> ServerReading:
        troubles: list[str] = []
        counters = self._read("/metrics", deadline_s, troubles, lambda answer: read_counters(answer.text()))
        slots: tuple[Slot, ...] | None = None
        if counters is None or counters.busy_slots != 0:
            slots = self._read("/slots", deadline_s, troubles, lambda answer: read_slots(answer.document()))
        busy = tuple(slot for slot in slots if slot.busy) if slots is not None else None
        if counters is not None or busy is not None:
            unseen = busy is None and "/slots" not in self._lacks and counters is not None and counters.busy_slots != 0
            if self._progress.note(counters, None if unseen else busy or ()):
                self._forget_life()
        return ServerReading(
            now_s,
            reachable=True,
            ready=True,
            progress_tokens=self._progress.tokens if counters is not None or busy is not None else None,
            busy_slots=_busy_count(counters, busy),
            total_slots=len(slots) if slots is not None else self._total_slots,
            queued_requests=counters.deferred_requests if counters is not None else None,
            detail="; ".join(troubles),
        )

    def _read(
        self, path: str, deadline_s: float, troubles: list[str], parse: Callable[[Response], _T | None]
    ) -> _T | None:
        """What `parse` makes of `path`; None when the server lacks it (remembered) or it failed (said in troubles)."""
        if path in self._lacks:
            return None
        answer = self._get(path, deadline_s)
        if isinstance(answer, Failure):
            troubles.append(
                f"{answer.reason} (some builds answer only between batches)" if answer.timed_out else answer.reason
            )
            return None
        if answer.status in {401, 403}:
            self._lacks[path] = f"{path} needs an API key (answered {answer.status}): set [server] api_key"
            return None
        if answer.status in {404, 501}:
            self._lacks[path] = _MISSING_FLAG[path]
            return None
        value = parse(answer) if answer.status == 200 else None
        if value is None:
            troubles.append(f"{path} answered {answer.status} with {_nature(answer)}")
        return value

    def _learn(self, deadline_s: float) -> None:
        """Once in a server's life: /props, and which calls it has."""
        if self._props is not None or "/props" in self._lacks:
            return
        answer = self._get("/props", deadline_s)
        if isinstance(answer, Failure):
            return
        document = answer.document()
        if answer.status == 200 and isinstance(document, dict):
            self._props = document
        elif answer.status in {401, 403}:
            self._lacks["/props"] = f"/props needs an API key (answered {answer.status}): set [server] api_key"
        elif answer.status in {404, 501}:
            self._lacks["/props"] = "the server has no /props: its build and model are not known"
        else:
            return
        self._learn_calls(deadline_s)

    def _learn_calls(self, deadline_s: float) -> None:
        """Which rungs there are, asked without doing anything: an action that no build has, GET where POST belongs."""
        if not self._is_router:
            answer = self._client.post("/slots/0?action=none", {}, self._left_s(deadline_s))
            if isinstance(answer, Response):
                self._can_erase = answer.status == 400
                if answer.status == 501:
                    self._lacks["erase"] = _MISSING_FLAG["erase"]
        trim_path = self._get(self._options.trim_path, deadline_s)
        self._trims = isinstance(trim_path, Response) and trim_path.status in {200, 204, 405}

    def _sleeping(self, deadline_s: float) -> bool:
        """True when the server says that it sleeps; not asked of builds that do not tell."""
        if self._props is None or "is_sleeping" not in self._props:
            return False
        answer = self._get("/props", deadline_s)
        document = answer.document() if isinstance(answer, Response) and answer.status == 200 else None
        return isinstance(document, dict) and document.get("is_sleeping") is True

    @property
    def _is_router(self) -> bool:
        return self._props is not None and self._props.get("role") == "router"

    @property
    def _total_slots(self) -> int | None:
        total = self._props.get("total_slots") if self._props is not None else None
        return total if isinstance(total, int) else None

    def capabilities(self) -> frozenset[Rung]:
        """The rungs that this very server has shown to have."""
        rungs = set()
        if self._is_router or self._can_erase:
            rungs.add(Rung.DROP_CACHES)
        if self._trims:
            rungs.add(Rung.TRIM)
        return frozenset(rungs)

    def degraded(self) -> tuple[str, ...]:
        """What this server was started without, one sentence each."""
        return tuple(self._lacks.values())

    def describe(self) -> Mapping[str, object]:
        """Build, model and sizes as /props gave them."""
        props = self._props or {}
        settings = props.get("default_generation_settings")
        told = {
            "kind": self.kind,
            "url": self._client.shown_url,
            "mode": "router" if self._is_router else "single",
            "build": props.get("build_info"),
            "model": props.get("model_path"),
            "model_type": props.get("model_ftype"),
            "slots": props.get("total_slots"),
            "context_tokens": settings.get("n_ctx") if isinstance(settings, Mapping) else None,
            "metrics": props.get("endpoint_metrics"),
            "max_models": props.get("max_instances"),
        }
        plain = {name: value for name, value in told.items() if isinstance(value, (str, int))}
        return {name: printable(value) if isinstance(value, str) else value for name, value in plain.items()}

    # -- doing ----------------------------------------------------------------------------------------------------

    def trim(self, keep_recent: int) -> RungReply:
        """llama-server itself has no such call; a proxy in front may."""
        reply = trim(self._client, self._options, keep_recent)
        self._trims = reply.outcome is Outcome.OK or (self._trims and reply.outcome is not Outcome.ABSENT)
        return reply

    def drop_caches(self) -> RungReply:
        """Erase the idle slots; of a router, unload the idle models. Running requests are left alone."""
        deadline_s = self._clock() + _ERASE_ROUNDS * self._options.timeout_s
        self._learn(deadline_s)
        if self._is_router:
            return router.unload_idle(self._get, self._client, deadline_s, self._left_s)
        if self._sleeping(deadline_s):
            return RungReply(
                Outcome.OK, "asleep: it has given its memory back but for the prompt cache, kept until it wakes"
            )
        answer = self._get("/slots", deadline_s)
        slots = read_slots(answer.document()) if isinstance(answer, Response) and answer.status == 200 else None
        if slots is None:
            reply = rung_reply(answer, "")
            if reply.outcome is Outcome.ABSENT:
                return RungReply(Outcome.ABSENT, _MISSING_FLAG["/slots"])
            return (
                reply
                if reply.outcome is not Outcome.OK
                else RungReply(Outcome.FAILED, "/slots answered no list of slots")
            )
        return self._erase(slots, deadline_s)

    def _erase(self, slots: tuple[Slot, ...], deadline_s: float) -> RungReply:
        idle = [slot for slot in slots if not slot.busy]
        tokens = 0
        done = 0
        for slot in idle:
            answer = self._client.post(f"/slots/{slot.slot_id}?action=erase", {}, self._left_s(deadline_s))
            reply = rung_reply(answer, "")
            if reply.outcome is Outcome.ABSENT:
                self._can_erase = False
                self._lacks["erase"] = _MISSING_FLAG["erase"]
                return RungReply(Outcome.ABSENT, _MISSING_FLAG["erase"])
            if reply.outcome is not Outcome.OK:
                return RungReply(reply.outcome, f"{done} of {len(idle)} idle slots erased, then: {reply.detail}")
            done += 1
            document = answer.document() if isinstance(answer, Response) else None
            erased = document.get("n_erased") if isinstance(document, dict) else None
            tokens += erased if isinstance(erased, int) else 0
        busy = len(slots) - len(idle)
        return RungReply(Outcome.OK, f"{done} idle slots erased ({tokens} tokens), {busy} busy left alone")

    # -- calling --------------------------------------------------------------------------------------------------

    def _left_s(self, deadline_s: float) -> float:
        """Time for one call: the usual, or what is left of the round. Never 0: the call itself says that it is late."""
        return max(0.001, min(self._options.timeout_s, deadline_s - self._clock()))

    def _get(self, path: str, deadline_s: float) -> Response | Failure:
        return self._client.get(path, self._left_s(deadline_s))


def _health_trouble(health: Response) -> str:
    """Why the server is not ready, "" when it is."""
    document = health.document()
    if health.status == 200:
        return "" if isinstance(document, dict) and "status" in document else f"/health answered {_nature(health)}"
    message = printable(error_message(document), 100)
    if health.status == 503:
        return message or "still loading (answered 503)"
    if health.status in {401, 403}:
        return f"/health needs an API key (answered {health.status}): set [server] api_key"
    return f"/health answered {health.status}{': ' + message if message else ''}"


def _busy_count(counters: Counters | None, busy: tuple[Slot, ...] | None) -> int | None:
    if busy is not None:
        return len(busy)
    return counters.busy_slots if counters is not None else None


def _nature(answer: Response) -> str:
    """What a body that does not help looks like, in a few words."""
    if answer.cut:
        return f"a body of more than {len(answer.body)} bytes"
    return f"no usable body ({printable(answer.text(), 60)!r})" if answer.body else "an empty body"
