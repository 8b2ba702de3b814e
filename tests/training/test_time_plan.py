"""How long a training is said to take, and which one is proposed for some minutes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.settings.presets import PRESETS
from splatstudio.training.time_plan import (
    ENOUGH_STEPS,
    MIN_PIXELS,
    START_SECONDS,
    StepTimes,
    TimePlan,
    duration_words,
    expected_seconds,
    measured_times,
    plan_within,
    proposal,
)

FIXED = StepTimes(step=0.01, pixel=0.0, splat=0.0)
# Two cores without AVX-512, about.
SLOW = StepTimes(step=2e-3, pixel=2e-7, splat=5e-7)


def faster(times: StepTimes, factor: float) -> StepTimes:
    return StepTimes(times.step / factor, times.pixel / factor, times.splat / factor)


@pytest.fixture
def large(blob_scene: Scene) -> Scene:
    """Return the scene as if its photos had 1600 x 1200 pixels."""
    views = tuple(replace(view, camera=view.camera.resized(1600, 1200)) for view in blob_scene.views)
    return replace(blob_scene, views=views)


def test_time_follows_steps_batches_pixels_and_splats(large: Scene) -> None:
    def working(config: TrainConfig, times: StepTimes) -> float:
        return expected_seconds(config, large, times) - START_SECONDS

    config = replace(TrainConfig(), steps=1000)
    once = working(config, FIXED)
    assert once >= 10.0
    for name, value in (("steps", 2000), ("batch_size", 2), ("accumulate", 2)):
        assert working(changed(config, name, value), FIXED) == pytest.approx(2 * once), name
    by_pixels = StepTimes(0.0, 1e-7, 0.0)
    quarter = working(changed(config, "downscale", 2), by_pixels)
    assert working(config, by_pixels) == pytest.approx(4 * quarter)
    fast = PRESETS["fast"].apply(config, ("steps",))
    assert working(fast, by_pixels) < 0.7 * working(config, by_pixels), "small photos first, then halves"
    fixed = changed(config, "densify.enabled", False)
    by_splats = StepTimes(0.0, 0.0, 1e-6)
    assert working(fixed, by_splats) < working(config, by_splats), "splats are added"


def test_a_slow_machine_gets_smaller_photos_and_fewer_steps(large: Scene) -> None:
    speeds = [faster(SLOW, factor) for factor in (100, 10, 1, 0.1)]
    plans = [plan_within(10.0, large, TrainConfig(), speed) for speed in speeds]
    assert [plan.downscale for plan in plans] == sorted(plan.downscale for plan in plans)
    assert plans[0].downscale == 1 and plans[0].steps == 30_000
    assert plans[-1].downscale > 1 and plans[-1].steps < 30_000
    for plan, speed in zip(plans, speeds, strict=True):
        config = plan.applied(TrainConfig(), ())
        assert plan.seconds == pytest.approx(expected_seconds(config, large, speed))
        assert config.strategy == "fast" and config.steps == plan.steps and config.downscale == plan.downscale
        assert 1600 * 1200 / plan.downscale**2 >= MIN_PIXELS
    assert all(plan.seconds <= 600 and plan.steps >= ENOUGH_STEPS for plan in plans[:3])


def test_more_minutes_are_never_a_smaller_training(large: Scene) -> None:
    plans = [plan_within(minutes, large, TrainConfig(), SLOW) for minutes in (1, 3, 10, 30, 100)]
    work = [plan.steps / plan.downscale**2 for plan in plans]
    assert work == sorted(work) and work[0] < work[-1]


def test_no_more_is_planned_than_was_asked_for(large: Scene) -> None:
    config = changed(TrainConfig(), "downscale", 4)
    assert plan_within(1000.0, large, config, SLOW).downscale == 4
    given = changed(config, "sh_degree_every", 123)
    applied = plan_within(10.0, large, given, SLOW).applied(given, ("sh_degree_every",))
    assert applied.sh_degree_every == 123


def test_the_time_is_that_of_the_training_that_was_asked_for(large: Scene) -> None:
    many, given = changed(TrainConfig(), "fast.density", 1.0), ("fast.density",)
    plan = plan_within(10.0, large, many, SLOW, given)
    assert plan.seconds == expected_seconds(plan.applied(many, given), large, SLOW) <= 600
    assert plan.seconds < expected_seconds(
        plan_within(10.0, large, many, SLOW).applied(many, given), large, SLOW
    )


def test_where_nothing_fits_the_least_training_says_its_own_time(large: Scene) -> None:
    plan = plan_within(0.01, large, TrainConfig(), SLOW)
    assert plan.steps == 500 and plan.seconds > 0.6


def test_a_training_of_less_than_an_hour_is_left_as_it_is(large: Scene) -> None:
    assert proposal(large, TrainConfig(), faster(SLOW, 1000)) is None
    plan = proposal(large, TrainConfig(), SLOW)
    assert plan is not None and plan.instead_of > 3600 > plan.seconds


def test_it_is_said_as_people_say_it() -> None:
    said = [duration_words(60 * minutes) for minutes in (0.8, 8.8, 33, 100, 600, 5000)]
    expected = ["about a minute", "about 9 minutes", "about 35 minutes", "about 2 hours", "about 10 hours"]
    assert said == [*expected, "about 3 days"]
    said = [duration_words(seconds) for seconds in (1, 12, 44, 47, 48, 89)]
    assert said == [*(f"about {number} seconds" for number in (5, 10, 45, 45)), *["about a minute"] * 2]
    plan = TimePlan({}, 540.0, 9000.0, 2, 7000)
    assert plan.sentence == "about 9 minutes: fast, half size, 7,000 steps"


def test_this_machine_takes_longer_for_more(large: Scene) -> None:
    times = measured_times("cpu")
    assert all(np.isfinite([times.step, times.pixel, times.splat]))
    assert times.of(1e6, 1e6) > times.of(1e4, 1e4) > 0
