"""Forecast: slopes, steps and when they matter."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from slmguard.core import forecast
from slmguard.core.settings import ForecastSettings

SETTINGS = ForecastSettings()
MIB = 1 << 20


def _track(values: list[int], spacing_s: float = 2.0) -> forecast.Track:
    track = forecast.Track()
    for index, value in enumerate(values):
        track = forecast.add(track, index * spacing_s, value, SETTINGS)
    return track


def test_steady_growth_is_foreseen() -> None:
    track = _track([index * MIB for index in range(20)])
    seconds = forecast.seconds_until(track, 19 * MIB, 119 * MIB, SETTINGS)
    assert seconds is not None
    assert math.isclose(seconds, 200.0, rel_tol=0.01)


def test_one_step_followed_by_silence_is_no_growth() -> None:
    track = _track([100 * MIB] * 12 + [126 * MIB] * 12)
    assert forecast.seconds_until(track, 126 * MIB, 200 * MIB, SETTINGS) is None
    assert track.step_bytes == 26 * MIB


def test_many_steps_are_growth() -> None:
    track = _track([100 * MIB + (index // 4) * 26 * MIB for index in range(28)])
    seconds = forecast.seconds_until(track, 300 * MIB, 400 * MIB, SETTINGS)
    assert seconds is not None
    assert 20 < seconds < 60


def test_a_passed_limit_is_zero_seconds_away() -> None:
    assert forecast.seconds_until(forecast.Track(), 10, 10, SETTINGS) == 0.0


def test_falling_memory_never_reaches_the_limit() -> None:
    track = _track([(50 - index) * MIB for index in range(20)])
    assert forecast.seconds_until(track, 30 * MIB, 100 * MIB, SETTINGS) is None


@given(st.lists(st.integers(0, 1 << 40), max_size=200))
def test_the_track_stays_bounded_and_never_raises(values: list[int]) -> None:
    track = _track(values)
    assert len(track.points) <= SETTINGS.window_s / forecast.POINT_SPACING_S + 2
