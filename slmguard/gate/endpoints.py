"""Which request paths make the server compute, and in which dialect they speak."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from urllib.parse import unquote


class Dialect(enum.Enum):
    """Whose API a path belongs to: decides the fields that are clamped and the shape of a refusal."""

    OPENAI_CHAT = "openai_chat"
    OPENAI_COMPLETION = "openai_completion"
    OPENAI_RESPONSES = "openai_responses"
    ANTHROPIC = "anthropic"
    LLAMA = "llama"
    OLLAMA_CHAT = "ollama_chat"
    OLLAMA_GENERATE = "ollama_generate"
    KOBOLD = "kobold"
    OTHER = "other"


class Kind(enum.Enum):
    """What a request asks of the server."""

    GENERATE = "generate"  # clamped, trimmed, refused, queued, held
    COMPUTE = "compute"  # embeddings and the like: refused, queued, held
    PROBE = "probe"  # health and metrics: always passed on at once
    OTHER = "other"  # everything else: passed on, held during a planned restart


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path's meaning; `repeatable`: asking twice does no harm, even when the server has seen the first one."""

    kind: Kind
    dialect: Dialect
    repeatable: bool = True


# Looked up by the end of the path, because llama-server has --api-prefix, llama-swap has /upstream/MODEL/…
# and OpenAI-like servers disagree about /v1. The longest ending wins.
_GENERATE: dict[str, Dialect] = {
    "/chat/completions": Dialect.OPENAI_CHAT,
    "/v1/completions": Dialect.OPENAI_COMPLETION,
    "/responses": Dialect.OPENAI_RESPONSES,
    "/messages": Dialect.ANTHROPIC,
    "/completion": Dialect.LLAMA,
    "/completions": Dialect.LLAMA,
    "/infill": Dialect.LLAMA,
    "/api/chat": Dialect.OLLAMA_CHAT,
    "/api/generate": Dialect.OLLAMA_GENERATE,
    "/api/v1/generate": Dialect.KOBOLD,
    "/api/latest/generate": Dialect.KOBOLD,
    "/api/extra/generate/stream": Dialect.KOBOLD,
    "/rkllm_chat": Dialect.OPENAI_CHAT,
}
_COMPUTE = (
    "/embeddings",
    "/embedding",
    "/api/embed",
    "/api/embeddings",
    "/rerank",
    "/reranking",
    "/audio/transcriptions",
    "/audio/speech",
    "/images/generations",
)
_PROBE = re.compile(
    r"(?:/v1)?/(?:health|healthz|readyz|livez|ready|metrics|slots)(?:/.*)?|/api/version|/api/ps|/api/extra/perf"
)
_BY_LENGTH = sorted(_GENERATE, key=len, reverse=True)
_PURE_POST = ("/tokenize", "/detokenize", "/apply-template", "/count_tokens", "/input_tokens", "/api/show")
_IDEMPOTENT_METHODS = ("GET", "HEAD", "OPTIONS", "PUT", "DELETE")
_OTHER = Endpoint(Kind.OTHER, Dialect.OTHER)
_OTHER_ONCE = Endpoint(Kind.OTHER, Dialect.OTHER, repeatable=False)


def classify(method: str, target: str) -> Endpoint:
    """The meaning of a request target as sent.

    Only POST computes. The path is compared the way the most forgiving server would read it: percent-decoded,
    without query and fragment, repeated and trailing slashes and letter case ignored. Refusing a spelling that
    the server would have answered with 404 harms nobody; passing one that it accepts would be a way around.
    """
    path = _canonical_path(target)
    if method == "POST":
        for ending in _BY_LENGTH:
            if path.endswith(ending):
                return Endpoint(Kind.GENERATE, _GENERATE[ending])
        if path.endswith(_COMPUTE):
            return Endpoint(Kind.COMPUTE, Dialect.OTHER)
        return _OTHER if path.endswith(_PURE_POST) else _OTHER_ONCE
    if _PROBE.fullmatch(path):
        return Endpoint(Kind.PROBE, Dialect.OTHER)
    return _OTHER if method in _IDEMPOTENT_METHODS else _OTHER_ONCE


def _canonical_path(target: str) -> str:
    path = target.split("?", 1)[0].split("#", 1)[0]
    if "%" in path:
        path = unquote(path, errors="replace").split("?", 1)[0]
    path = path.split(";", 1)[0]
    segments: list[str] = []
    for segment in path.lower().split("/"):
        if segment == "..":
            segments = segments[:-1]
        elif segment not in ("", "."):
            segments.append(segment)
    return "/" + "/".join(segments)
