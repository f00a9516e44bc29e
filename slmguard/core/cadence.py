"""How long may the guard look away? As long as the fastest growth needs to reach the next threshold."""

from __future__ import annotations

from slmguard.core.settings import CadenceSettings


def interval_s(
    settings: CadenceSettings,
    distances_bytes: tuple[int, ...],
    growth_bytes_per_s: float | None,
    *,
    busy: bool,
) -> float:
    """Seconds until the next look, between `min_s` and `max_s`.

    `distances_bytes` are what is left until the next threshold of each trigger (service, host); none means that
    nothing can be compared and the slowest pace is enough. While a rung runs or settles (`busy`) the pace is at
    least twice a second.
    """
    ceiling_s = min(settings.max_s, 0.5) if busy else settings.max_s
    if not distances_bytes:
        return max(settings.min_s, ceiling_s)
    distance = max(0, min(distances_bytes))
    wait_s = distance / settings.fill_bytes_per_s
    if growth_bytes_per_s is not None and growth_bytes_per_s > 0:
        wait_s = min(wait_s, distance / growth_bytes_per_s / 4)
    return min(ceiling_s, max(settings.min_s, wait_s))
