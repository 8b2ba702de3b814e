"""When the curve of the test photos counts as flat, on made and recorded curves; told once."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from splatstudio.settings.config import OptimConfig, TrainConfig
from splatstudio.settings.plateau_curve import Plateau, PlateauConfig, Score, line_through, plateau_stretch
from splatstudio.settings.strategy_config import CoarseConfig, DensifyConfig
from splatstudio.training.plateau import PlateauWatch, evaluation_interval, rates_left, settled_after

STEPS, EVERY = 10_000, 200
RULES = PlateauConfig()
PHOTOS = 50

# The test PSNR of every 100th of 4000 steps on a real scene of 14 photos, until 1500 with growth: few
# photos are learned by heart.
LEARNED_BY_HEART = (
    "18.83 22.73 25.01 26.17 26.88 27.51 28.12 28.61 28.42 28.29 28.34 28.7 28.45 28.63 29.05 28.87 28.79"
    " 28.95 28.82 28.4 28.49 28.43 28.31 28.24 28.2"
)


def first_flat(
    curve: Callable[[float], float],
    *,
    noise: float = 0.0,
    seed: int = 0,
    every: int = EVERY,
    settled: int = 5000,
) -> tuple[int, Plateau] | None:
    """Return when a curve over the share of the steps is first flat, and the stretch."""
    random = np.random.default_rng(seed)
    scores: list[Score] = []
    for step in range(every, STEPS + 1, every):
        scores.append(Score(step, curve(step / STEPS) + noise * random.standard_normal(), 1000))
        flat = plateau_stretch(scores, RULES, steps=STEPS, settled=settled)
        if flat is not None:
            return step, flat
    return None


def test_a_curve_that_rises_is_never_flat() -> None:
    assert first_flat(lambda share: 25 + 3 * share) is None
    assert first_flat(lambda share: 25 + 0.4 * share) is None, "0.06 dB in 15 % of the steps"


@pytest.mark.parametrize("seed", range(5))
def test_noise_hides_no_rise_and_no_rest(seed: int) -> None:
    assert first_flat(lambda share: 25 + 1.5 * share, noise=0.1, seed=seed) is None, "0.22 dB"
    found = first_flat(lambda share: 28 - 8 * math.exp(-20 * share), noise=0.03, seed=seed)
    assert found is not None
    step, flat = found
    assert 6000 < step <= 9000 and abs(flat.psnr - 28) < 0.05 and 5000 < flat.since < 5800


def test_few_noisy_scores_that_lie_on_a_line_by_chance_hide_no_rise() -> None:
    # As seldom as stop_when_flat evaluates: five scores in the time that is looked back on.
    found = [
        first_flat(lambda share: 25 + share, noise=0.1, seed=seed, every=300, settled=3000)
        for seed in range(16)
    ]
    assert sum(flat is not None for flat in found) <= 1, "0.15 dB"


def test_more_noise_takes_a_longer_look() -> None:
    steps = [found[0] for noise in (0.0, 0.05) if (found := first_flat(lambda _: 28.0, noise=noise, seed=1))]
    assert steps[0] < steps[1]


def test_flat_begins_where_the_score_has_reached_its_level() -> None:
    found = first_flat(lambda share: 28 - max(0.0, 0.6 - share) * 20)
    assert found is not None
    step, flat = found
    assert 7000 <= step < 8000 and flat.since == 6000 and flat.psnr == 28.0


def test_a_falling_curve_is_flat() -> None:
    assert first_flat(lambda share: 28 - share) is not None


def test_nothing_is_flat_in_the_first_third_nor_with_few_scores() -> None:
    found = first_flat(lambda _: 28.0, settled=0)
    assert found is not None and found[0] == 3400
    few = [Score(step, 28.0, 9) for step in (5000, 6000, 7000, 8000)]
    assert plateau_stretch(few, RULES, steps=STEPS, settled=0) is None
    more = [*few, Score(9000, 28.0, 9)]
    assert plateau_stretch(more, RULES, steps=STEPS, settled=0) == Plateau(5000, 28.0)
    close = [Score(step, 28.0, 9) for step in range(9000, 9100, 10)]
    assert plateau_stretch(close, RULES, steps=STEPS, settled=0) is None, "asked for again and again"
    assert plateau_stretch([], RULES, steps=STEPS, settled=0) is None


def test_a_single_bad_score_does_not_decide() -> None:
    def curve(share: float) -> float:
        return 20.0 if abs(share - 0.6) < 1e-9 else 28.0

    flat = first_flat(curve)
    assert flat == first_flat(lambda _: 28.0)


def test_while_gaussians_are_added_nothing_is_flat() -> None:
    growing = [Score(step, 28.0, 1000 + step // 10) for step in range(EVERY, STEPS, EVERY)]
    assert plateau_stretch(growing, RULES, steps=STEPS, settled=0) is None
    steady = [replace(score, num_gaussians=2000) for score in growing]
    assert plateau_stretch(steady, RULES, steps=STEPS, settled=0) is not None


def test_without_a_gain_to_ask_for_nothing_is_flat() -> None:
    rules = PlateauConfig(gain=0.0)
    level = [Score(step, 28.0, 9) for step in range(EVERY, STEPS, EVERY)]
    assert plateau_stretch(level, rules, steps=STEPS, settled=0) is None


def test_a_line_is_found_in_spite_of_outliers() -> None:
    x = np.arange(20.0)
    y = 3.0 + 0.5 * x
    y[7] = 90.0
    slope, error = line_through(x, y)
    assert slope == pytest.approx(0.5) and error == pytest.approx(0.0, abs=1e-9)
    random = np.random.default_rng(0)
    errors = [line_through(x, 0.5 * x + random.standard_normal(20)) for _ in range(200)]
    spread = np.std([slope for slope, _ in errors])
    assert np.median([error for _, error in errors]) == pytest.approx(spread, rel=0.3)


def test_a_recorded_curve_of_few_photos_is_told_before_it_falls_far() -> None:
    config = TrainConfig(steps=4000, sh_degree=0, densify=DensifyConfig(stop_step=1500))
    told = []
    watch = PlateauWatch()
    for number, psnr in enumerate(map(float, LEARNED_BY_HEART.split()), start=1):
        watch.add(Score(100 * number, psnr, 90_000 if number > 15 else 50_000 + 2000 * number))
        if (news := watch.news(config, PHOTOS)) is not None:
            told.append((100 * number, news))
    ((step, news),) = told
    assert 2000 <= step <= 2500 and 28.3 < news.flat.psnr < 29.0 and not news.stops


# ---- what is told of it, and once


def rows_of(curve: Callable[[int], float], until: int = STEPS) -> list[dict]:
    return [
        {"step": step, "test_psnr": curve(step), "num_gaussians": 1000} for step in range(EVERY, until, EVERY)
    ]


def told_steps(config: TrainConfig, rows: list[dict]) -> list[tuple[int, bool]]:
    """Return at which steps there is news of a training that leaves these rows, and whether it stops."""
    watch, told = PlateauWatch(), []
    for row in rows:
        watch.add(Score(row["step"], row["test_psnr"], row["num_gaussians"]))
        if (news := watch.news(config, PHOTOS)) is not None:
            told.append((row["step"], news.stops))
    return told


CONFIG = TrainConfig(steps=STEPS, sh_degree=0, densify=DensifyConfig(enabled=False))


def test_a_stretch_is_told_once_and_another_one_after_a_rise() -> None:
    level = rows_of(lambda step: 28.0)
    assert told_steps(CONFIG, level) == [(3400, False)]
    two = rows_of(lambda step: 28.0 + min(max(step - 4000, 0) / 2000, 1.0))
    told = told_steps(CONFIG, two)
    assert len(told) == 2 and told[0] == (3400, False) and told[1][0] > 6800


def test_what_is_no_number_counts_as_no_score() -> None:
    assert told_steps(CONFIG, rows_of(lambda step: math.nan)) == []
    assert told_steps(CONFIG, rows_of(lambda step: math.inf)) == []
    holes = rows_of(lambda step: math.nan if step % 600 == 0 else 28.0)
    assert len(told_steps(CONFIG, holes)) == 1


def test_after_a_reset_of_the_opacities_the_score_has_to_recover() -> None:
    watch, told = PlateauWatch(), []
    for step in range(EVERY, STEPS, EVERY):
        if step == 6000:
            watch.note_reset(step - 10)
        since = step - 6000
        watch.add(Score(step, 28.0 - (4.0 if 0 <= since < 600 else 0.0), 1000))
        if step > 3400 and (news := watch.news(CONFIG, PHOTOS)) is not None:
            told.append((step, news.flat.since))
            break
    assert told == [(3600, 200)], "before the reset"
    after = PlateauWatch([{"step": 5990, "densified": {"opacities_reset": True}}], 5990)
    for step in range(EVERY, STEPS, EVERY):
        after.add(Score(step, 28.0 - (4.0 if 6000 <= step < 6600 else 0.0), 1000))
        if (news := after.news(CONFIG, PHOTOS)) is not None:
            told.append((step, news.flat.since))
            break
    step, since = told[-1]
    assert step >= 5990 + 0.75 * 0.15 * STEPS and since > 5990


def test_a_training_that_goes_on_knows_what_was_told() -> None:
    rows = rows_of(lambda step: 28.0 + min(max(step - 4000, 0) / 2000, 1.0))
    whole = told_steps(CONFIG, rows)
    for cut in (2000, 3400, 5000, 8000):
        written: list[dict] = []
        told: list[tuple[int, bool]] = []
        watch = PlateauWatch()
        for row in rows:
            if row["step"] == cut:
                # As it reads its metrics, of which a crash has left lines of later steps.
                lines = [json.loads(json.dumps(line)) for line in written]
                watch = PlateauWatch([*lines, {"step": cut + 900, "test_psnr": 90.0}], cut - EVERY)
            written.append(row)
            watch.add(Score(row["step"], row["test_psnr"], row["num_gaussians"]))
            if (news := watch.news(CONFIG, PHOTOS)) is not None:
                written.append(news.row())
                told.append((row["step"], news.stops))
        assert told == whole, cut


def test_scores_from_before_a_setting_was_changed_tell_nothing_of_now() -> None:
    level, news = rows_of(lambda step: 28.0, until=7000), []
    for setting in ("optim.sh0_lr", "steps", "eval_every"):
        note = {"step": 6700, "setting": setting, "value": STEPS}
        watch = PlateauWatch([*level, note], 6800, planned=STEPS, steps=STEPS)
        news.append(watch.news(CONFIG, PHOTOS))
    longer = PlateauWatch(level, 6800, planned=STEPS // 2, steps=STEPS)
    assert longer.news(CONFIG, PHOTOS) is None, "its learning rates fall later now"
    assert news[:2] == [None, None] and news[2] is not None


def test_it_stops_once_and_not_before_the_rates_are_nearly_at_rest() -> None:
    level = rows_of(lambda step: 28.0)
    stopping = replace(CONFIG, stop_when_flat=True)
    assert told_steps(stopping, level) == [(3400, True)]
    falling = replace(stopping, optim=OptimConfig(rest_lr_decay=0.15))
    assert rates_left(falling, 5000) == pytest.approx(0.15**0.5) and rates_left(CONFIG, 5000) == 1.0
    first, last = told_steps(falling, level)
    assert first == (3400, False) and last[1] and 8000 < last[0] < 8400


def test_what_is_still_to_change_by_plan_is_waited_for() -> None:
    assert settled_after(replace(CONFIG, sh_degree=3), PHOTOS) == 3000
    assert settled_after(replace(CONFIG, sh_degree=3, steps=2500), PHOTOS) == 2000
    coarse = replace(CONFIG, coarse=CoarseConfig(first=4.0, until=0.6))
    assert settled_after(coarse, PHOTOS) == 6000
    ((step, _),) = told_steps(coarse, rows_of(lambda step: 28.0))
    assert step > 7000


def test_who_stops_by_scores_has_them_without_asking() -> None:
    never = replace(CONFIG, eval_every=0)
    assert evaluation_interval(never, 6) == 0
    stopping = replace(never, stop_when_flat=True)
    assert evaluation_interval(stopping, 6) == 300
    assert evaluation_interval(replace(stopping, eval_every=70), 6) == 70
