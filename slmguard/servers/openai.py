"""Any server that speaks OpenAI's API: alive or not by `/v1/models`, and nothing more.

There is no token counter in that API, so a stall can only be seen from outside (memory and throttling), and no call
that gives memory back but the generic trim, where a server or a proxy has it.
"""

from __future__ import annotations

from collections.abc import Mapping

from slmguard.core.model import Outcome, Rung, ServerReading
from slmguard.servers.base import RungReply, ServerOptions
from slmguard.servers.http import Failure, HttpClient, Response, printable, trim

_NO_PROGRESS = "the server has no token counter: a stall is judged by memory and throttling alone"


class Adapter:
    """One OpenAI-compatible server (see slmguard.servers.base.ServerAdapter)."""

    kind = "openai"

    def __init__(self, options: ServerOptions) -> None:
        self._options = options
        self._client = HttpClient(options.url, options.api_key, options.timeout_s, options.max_body_bytes)
        self._models: tuple[str, ...] = ()
        self._trims = False
        self._reached = False
        self._key_trouble = ""

    def probe(self, now_s: float) -> ServerReading:
        """One call to /v1/models."""
        answer = self._client.get("/v1/models")
        if isinstance(answer, Failure):
            if not answer.timed_out:
                self._reached = False
            return ServerReading(now_s, reachable=False, ready=False, detail=answer.reason)
        self._key_trouble = ""
        if answer.status in {401, 403}:
            self._key_trouble = f"/v1/models needs an API key (answered {answer.status}): set [server] api_key"
            return ServerReading(now_s, reachable=True, ready=False, detail=self._key_trouble)
        models = _model_names(answer)
        if models is None:
            return ServerReading(now_s, reachable=True, ready=False, detail=_trouble(answer))
        self._models = models
        if not self._reached:
            self._reached = True
            look = self._client.get(self._options.trim_path)
            self._trims = isinstance(look, Response) and look.status in {200, 204, 405}
        return ServerReading(now_s, reachable=True, ready=True)

    def capabilities(self) -> frozenset[Rung]:
        """Trim, when the server has shown to have it."""
        return frozenset({Rung.TRIM}) if self._trims else frozenset()

    def degraded(self) -> tuple[str, ...]:
        """What cannot be seen on such a server."""
        return (_NO_PROGRESS, self._key_trouble) if self._key_trouble else (_NO_PROGRESS,)

    def trim(self, keep_recent: int) -> RungReply:
        """The generic call."""
        reply = trim(self._client, self._options, keep_recent)
        self._trims = reply.outcome is Outcome.OK or (self._trims and reply.outcome is not Outcome.ABSENT)
        return reply

    def drop_caches(self) -> RungReply:
        """Not part of OpenAI's API."""
        return RungReply(Outcome.ABSENT, "an OpenAI-compatible server has no call that gives caches back")

    def describe(self) -> Mapping[str, object]:
        """The models that it lists."""
        return {"kind": self.kind, "url": self._client.shown_url, "models": list(self._models)}


def _model_names(answer: Response) -> tuple[str, ...] | None:
    """The first models of the list, None when the answer is none."""
    document = answer.document() if answer.status == 200 else None
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        return None
    names = (entry.get("id") for entry in entries[:16] if isinstance(entry, dict))
    return tuple(printable(name) for name in names if isinstance(name, str))


def _trouble(answer: Response) -> str:
    if answer.cut:
        return f"/v1/models answered more than {len(answer.body)} bytes"
    said = printable(answer.text(), 80)
    return f"/v1/models answered {answer.status} without a list of models{': ' + said if said else ''}"
