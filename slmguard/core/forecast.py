"""When will the limit be reached at the present slope?

The slope is the median of the slopes between all pairs of points (Theil-Sen), and the newer half of the window must
show it too: one step of a few MB followed by silence does not look like growth, while many steps do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from slmguard.core.settings import ForecastSettings

POINT_SPACING_S = 2.0
STEP_WINDOW_S = 10.0
MIN_POINTS = 6


@dataclass(frozen=True, slots=True)
class Track:
    """The recent course of one figure: (monotonic seconds, bytes), oldest first, a bounded number of points.

    `step_bytes` is the largest rise within 10 s that was seen lately: what one conversation may cost.
    """

    points: tuple[tuple[float, int], ...] = ()
    slope_bytes_per_s: float | None = None
    step_bytes: int = 0
    step_at_s: float = 0.0


def add(track: Track, now_s: float, figure_bytes: int, settings: ForecastSettings) -> Track:
    """`track` with one more observation; points closer than 2 s to the last one only update the step."""
    if track.points and now_s - track.points[-1][0] < POINT_SPACING_S:
        return _with_step(track, now_s, figure_bytes, settings)
    kept = tuple(point for point in track.points if now_s - point[0] <= settings.window_s)
    points = (*kept, (now_s, figure_bytes))
    stepped = _with_step(replace(track, points=points), now_s, figure_bytes, settings)
    return replace(stepped, slope_bytes_per_s=slope(points))


def _with_step(track: Track, now_s: float, figure_bytes: int, settings: ForecastSettings) -> Track:
    recent = [value for at_s, value in track.points if now_s - at_s <= STEP_WINDOW_S]
    rise = figure_bytes - min(recent) if recent else 0
    if rise >= track.step_bytes or now_s - track.step_at_s > settings.step_memory_s:
        return replace(track, step_bytes=max(0, rise), step_at_s=now_s)
    return track


def slope(points: tuple[tuple[float, int], ...]) -> float | None:
    """Robust slope in bytes per second, None when the points are too few to tell."""
    if len(points) < MIN_POINTS:
        return None
    return min(_median_slope(points), _median_slope(points[len(points) // 2 :]))


def _median_slope(points: tuple[tuple[float, int], ...]) -> float:
    slopes = [
        (later_bytes - earlier_bytes) / (later_s - earlier_s)
        for index, (earlier_s, earlier_bytes) in enumerate(points)
        for later_s, later_bytes in points[index + 1 :]
        if later_s > earlier_s
    ]
    # The statistics module would bring decimal and fractions along: 1 MiB of RSS for one median.
    return sorted(slopes)[len(slopes) // 2] if slopes else 0.0


def seconds_until(track: Track, figure_bytes: int, limit_bytes: int, settings: ForecastSettings) -> float | None:
    """Seconds until `limit_bytes` at the present slope; 0 when it is passed, None when it is not approached."""
    if figure_bytes >= limit_bytes:
        return 0.0
    speed = track.slope_bytes_per_s
    if speed is None or speed < settings.min_slope_bytes_per_s:
        return None
    return (limit_bytes - figure_bytes) / speed
