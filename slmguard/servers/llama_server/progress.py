"""One ever-growing count of work done, made of figures that each move at their own time.

A prompt is counted in /metrics when it is done, generated tokens only when their request ends, and what runs now is in
/slots. Their sum is exact when all is read at one instant, but it is not: a request that ends between two calls is seen
twice, and the sum falls afterwards. So the sum's growth is what is kept: it never falls, and it moves whenever the
server did, which is what a stall is judged by. Over a day it may be a few requests off.
"""

from __future__ import annotations

from collections.abc import Sequence

from slmguard.servers.llama_server.answers import Counters, Slot


class Progress:
    """Tokens processed and generated, as far as they were seen."""

    def __init__(self) -> None:
        self._total = 0
        self._known = False
        self._sum = 0
        self._decode_calls = 0
        self._running: dict[int, tuple[int, int]] = {}

    @property
    def tokens(self) -> int | None:
        """The count; None before anything could be read."""
        return self._total if self._known else None

    def forget_life(self) -> None:
        """The server was started anew: its counters begin at zero, the count goes on."""
        self._sum = 0
        self._decode_calls = 0
        self._running = {}

    def note(self, counters: Counters | None, slots: Sequence[Slot] | None) -> bool:
        """Take in one round of answers. True when the counters fell, which only another life of the server explains.

        `slots` are the busy ones; None when the server did not answer for them this time. Then only the number of
        batches counts: a sum without them would fall now and rise again later, and a stalled server seem alive.
        """
        self._known = True
        if counters is None:
            self._total += self._slots_growth(slots or ())
            return False
        before = self._decode_calls
        now = counters.decode_calls or 0
        fell = now < before
        if fell:
            self.forget_life()
            before = 0
        self._decode_calls = now
        grown = 1 if now > before else 0
        if slots is not None:
            total = counters.prompt_tokens + counters.predicted_tokens + sum(map(_uncounted, slots))
            grown = max(grown, total - self._sum)
            self._sum = total
        self._total += grown
        return fell

    def _slots_growth(self, slots: Sequence[Slot]) -> int:
        """Growth as the slots alone show it: requests that began and ended between two looks are missed."""
        before = self._running
        self._running = {slot.slot_id: (slot.task_id, _seen(slot)) for slot in slots}
        growth = 0
        for slot_id, (task_id, seen) in self._running.items():
            last_task_id, last_seen = before.get(slot_id, (task_id, 0))
            growth += max(0, seen - last_seen) if task_id == last_task_id else seen
        return growth


def _seen(slot: Slot) -> int:
    return slot.prompt_tokens_processed + slot.decoded_tokens


def _uncounted(slot: Slot) -> int:
    """Tokens of a running request that /metrics does not have yet."""
    return slot.decoded_tokens or slot.prompt_tokens_processed
