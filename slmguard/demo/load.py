"""The demo's load: a few clients that hold conversations with a server on this machine, bounded in count and time."""

from __future__ import annotations

import ipaddress
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from slmguard.core.errors import UserError
from slmguard.demo.prompts import SYSTEM, Conversation, conversations

if TYPE_CHECKING:
    import requests

Verdict = Literal["served", "refused", "failed"]
CONNECT_TIMEOUT_S = 3.0
MAX_BODY_BYTES = 1 << 20
MAX_RETRY_AFTER_S = 15.0
AFTER_FAILURE_S = 1.0
# A refused request is sent again after Retry-After, as the clients of the common libraries do.
TRIES = 3


@dataclass(frozen=True, slots=True)
class LoadSettings:
    """How much load. One conversation comes to some 450 tokens with its answers, 10 MiB in the cache.

    `pace_s` is the least time between the starts of two conversations of all clients together: it keeps a fast
    machine from filling the budget in seconds. A slow machine is slower than that by itself.
    """

    url: str
    seed: int = 1
    clients: int = 4
    pace_s: float = 2.5
    max_tokens: int = 24
    request_timeout_s: float = 60.0
    max_requests: int = 2000


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its client saw it. `at_s` is when it ended, on the load's clock."""

    at_s: float
    verdict: Verdict
    seconds: float
    prompt_tokens: int = 0
    completion_tokens: int = 0
    detail: str = ""


def require_loopback(url: str) -> str:
    """`url`, when it leads to this machine.

    Raises UserError otherwise: a load is never sent to anybody else's server.
    """
    host = urlsplit(url).hostname or ""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    if not local:
        raise UserError(f"{url}: the load goes to this machine only; use an address like http://127.0.0.1:8080")
    return url


class Load:
    """The clients. `start` and `stop` are called from one thread; `requests` may be read at any time."""

    def __init__(
        self,
        settings: LoadSettings,
        clock: Callable[[], float] = time.monotonic,
        on_request: Callable[[Request], None] = lambda _: None,
    ) -> None:
        require_loopback(settings.url)
        self._settings = settings
        self._clock = clock
        self._on_request = on_request
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._next_start_s = 0.0
        self._tickets = itertools.count()
        self._conversations = conversations(settings.seed)
        self._in_flight = 0
        self.requests: list[Request] = []
        self._threads = [
            threading.Thread(target=self._client, name=f"client-{number}", daemon=True)
            for number in range(settings.clients)
        ]

    def start(self) -> None:
        """Let the clients begin."""
        for thread in self._threads:
            thread.start()

    def stop(self, wait_s: float = 5.0) -> int:
        """Begin nothing new, wait up to `wait_s` for what is in flight; returns how many requests are left."""
        self._stopping.set()
        deadline_s = time.monotonic() + wait_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline_s - time.monotonic()))
        return self.in_flight

    @property
    def in_flight(self) -> int:
        """Requests that wait for their answer now."""
        with self._lock:
            return self._in_flight

    def counts(self) -> Counter[str]:
        """How many requests were served, refused and failed."""
        return Counter(request.verdict for request in list(self.requests))

    def _client(self) -> None:
        import requests

        with requests.Session() as session:
            session.trust_env = False  # a proxy from the environment would carry the load off this machine
            while not self._stopping.is_set():
                conversation = self._next_conversation()
                if conversation is None:
                    return
                pause_s = self._hold(session, conversation)
                self._stopping.wait(pause_s)

    def _next_conversation(self) -> Conversation | None:
        """The next conversation when it is its time; None when the load is over."""
        with self._lock:
            now_s = self._clock()
            start_s = max(now_s, self._next_start_s)
            self._next_start_s = start_s + self._settings.pace_s
            conversation = next(self._conversations)
        return None if self._stopping.wait(start_s - now_s) else conversation

    def _hold(self, session: requests.Session, conversation: Conversation) -> float:
        """One conversation, given up when a question stays without answer; returns the pause after it in seconds."""
        messages: list[dict[str, str]] = [{"role": "system", "content": SYSTEM}]
        for question, think_s in zip(conversation.questions, conversation.think_s, strict=True):
            messages.append({"role": "user", "content": question})
            answer = self._insist(session, messages)
            if answer is None:
                return AFTER_FAILURE_S
            messages.append({"role": "assistant", "content": answer})
            self._stopping.wait(think_s)
        return 0.0

    def _insist(self, session: requests.Session, messages: list[dict[str, str]]) -> str | None:
        """The answer, asked for again after a refusal; None when there is none, or when the load is over."""
        for _ in range(TRIES):
            if self._stopping.is_set() or next(self._tickets) >= self._settings.max_requests:
                return None
            request, answer, retry_after_s = self._ask(session, messages)
            if self._stopping.is_set() and request.verdict != "served":
                return None  # the demo is ending and takes the server away: nobody's failure
            self.requests.append(request)
            self._on_request(request)
            if request.verdict != "refused":
                return answer if request.verdict == "served" else None
            self._stopping.wait(retry_after_s)
        return None

    def _ask(self, session: requests.Session, messages: list[dict[str, str]]) -> tuple[Request, str, float]:
        """One request; returns its record, the answer, and how long to wait after a refusal."""
        import requests

        started_s = self._clock()
        with self._lock:
            self._in_flight += 1
        try:
            response = session.post(
                self._settings.url + "/v1/chat/completions",
                json={"messages": messages, "max_tokens": self._settings.max_tokens, "seed": self._settings.seed},
                timeout=(CONNECT_TIMEOUT_S, self._settings.request_timeout_s),
            )
            return self._judge(response, started_s)
        except requests.RequestException as error:
            return self._record("failed", started_s, detail=type(error).__name__), "", 0.0
        finally:
            with self._lock:
                self._in_flight -= 1

    def _judge(self, response: requests.Response, started_s: float) -> tuple[Request, str, float]:
        if response.status_code in {429, 503}:
            pause_s = _retry_after_s(response.headers.get("Retry-After", ""))
            return self._record("refused", started_s, detail=f"HTTP {response.status_code}"), "", pause_s
        if response.status_code != 200:
            return self._record("failed", started_s, detail=f"HTTP {response.status_code}"), "", 0.0
        try:
            body: dict[str, Any] = response.json()
            answer, usage = str(body["choices"][0]["message"]["content"]), body["usage"]
            tokens = int(usage["prompt_tokens"]), int(usage["completion_tokens"])
        except (ValueError, LookupError, TypeError):
            return self._record("failed", started_s, detail="an answer that is no chat completion"), "", 0.0
        return self._record("served", started_s, tokens), answer, 0.0

    def _record(
        self, verdict: Verdict, started_s: float, tokens: tuple[int, int] = (0, 0), detail: str = ""
    ) -> Request:
        now_s = self._clock()
        return Request(now_s, verdict, now_s - started_s, *tokens, detail)


def _retry_after_s(header: str) -> float:
    """Seconds to wait; the header's date form and nonsense count as one second."""
    return min(float(header), MAX_RETRY_AFTER_S) if header.isdecimal() and len(header) < 6 else 1.0
