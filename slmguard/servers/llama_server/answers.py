"""What llama-server's /slots, /metrics, /props and /models say, read leniently: fields come and go between builds.

Checked against build b11669 of Debian and the build in xllamacpp 2026.10 (both answer alike), and older field names.
Anything of an unexpected type counts as not said.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_PREFIX = "llamacpp:"


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot. While idle a server repeats the last request's figures; they mean nothing then."""

    slot_id: int
    task_id: int
    busy: bool
    prompt_tokens: int = 0
    prompt_tokens_processed: int = 0
    decoded_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Counters:
    """The lines of /metrics that the guard uses.

    `prompt_tokens` moves when a prompt is done, `predicted_tokens` only when a request ends, `decode_calls` with every
    batch (seen on both builds).
    """

    prompt_tokens: int
    predicted_tokens: int
    decode_calls: int | None = None
    busy_slots: int | None = None
    deferred_requests: int | None = None


@dataclass(frozen=True, slots=True)
class Model:
    """One model of a router: its name, and `loaded`, `unloaded`, `loading`, `sleeping` …"""

    name: str
    status: str


def _whole(value: object) -> int | None:
    """The value as a whole number that is not negative, None when it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value < 1 << 62 else None  # also refuses NaN, for which no comparison holds


def read_slots(document: object) -> tuple[Slot, ...] | None:
    """The slots of /slots; None when the answer is no list of slots."""
    if not isinstance(document, list):
        return None
    slots: list[Slot] = []
    for entry in document:
        slot = _read_slot(entry)
        if slot is None:
            return None
        slots.append(slot)
    return tuple(slots)


def _read_slot(entry: object) -> Slot | None:
    if not isinstance(entry, dict):
        return None
    slot_id = _whole(entry.get("id"))
    busy = entry.get("is_processing")
    if busy is None:
        busy = _whole(entry.get("state"))  # builds before December 2024: 0 is idle
    if slot_id is None or busy is None:
        return None
    token = entry.get("next_token")  # a list of one since 2025, a plain object before
    if isinstance(token, list):
        token = token[0] if token else {}
    decoded = _whole(token.get("n_decoded")) if isinstance(token, dict) else None
    task_id = entry.get("id_task")
    return Slot(
        slot_id=slot_id,
        task_id=task_id if isinstance(task_id, int) else -1,
        busy=bool(busy),
        prompt_tokens=_whole(entry.get("n_prompt_tokens")) or 0,
        prompt_tokens_processed=_whole(entry.get("n_prompt_tokens_processed")) or 0,
        decoded_tokens=decoded or 0,
    )


def read_counters(text: str) -> Counters | None:
    """The counters of /metrics; None when the two token counters are not there."""
    values: dict[str, int] = {}
    for line in text.splitlines():
        if not line.startswith(_PREFIX):
            continue
        name, _, figure = line[len(_PREFIX) :].partition(" ")
        try:
            value = _whole(float(figure.split(" ")[0]))
        except ValueError:
            continue
        if value is not None:
            values[name] = value
    if "prompt_tokens_total" not in values or "tokens_predicted_total" not in values:
        return None
    return Counters(
        prompt_tokens=values["prompt_tokens_total"],
        predicted_tokens=values["tokens_predicted_total"],
        decode_calls=values.get("n_decode_total"),
        busy_slots=values.get("requests_processing"),
        deferred_requests=values.get("requests_deferred"),
    )


def read_models(document: object) -> tuple[Model, ...] | None:
    """The models of a router's /models; None when the answer is not a router's (those have a status for each)."""
    entries = document.get("data") if isinstance(document, Mapping) else None
    if not isinstance(entries, list):
        return None
    models: list[Model] = []
    for entry in entries:
        status = entry.get("status") if isinstance(entry, dict) else None
        value = status.get("value") if isinstance(status, dict) else None
        if isinstance(value, str) and isinstance(entry.get("id"), str):
            models.append(Model(entry["id"], value))
    return tuple(models)


def error_message(document: object) -> str:
    """The message of an OpenAI-shaped error, or "" when there is none."""
    error = document.get("error") if isinstance(document, Mapping) else None
    message = error.get("message") if isinstance(error, Mapping) else error
    return message if isinstance(message, str) else ""
