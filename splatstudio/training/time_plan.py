"""How long a training takes on this machine, and which one gives the best picture within some minutes.

A step takes a time of its own, one for each pixel and one for each splat. These three are measured once with
drawn splats; how many pixels and splats the steps have follows from the settings. Real scenes differ by what
covers what: a plan is right to within a third or so.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch

from splatstudio.cameras.camera import Camera
from splatstudio.devices import accelerator
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.gradients import apply_gradients, backward, draw
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.optim import SplatAdam, learning_rates
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import OptimConfig, TrainConfig, changed, value_of
from splatstudio.settings.presets import PRESETS
from splatstudio.settings.strategy_config import FastConfig
from splatstudio.training.data.resolution import divisor_at
from splatstudio.training.data.train_views import crops
from splatstudio.training.memory_plan import sizes_of, splats_chosen

BUDGET_MINUTES = 10.0  # for which a training is proposed
LONG_SECONDS = 3600.0  # from which on another one is proposed in the place of what the settings say
# Of a step: what is measured here lacks the photos' decoding, what strategies ask, and evaluations.
BESIDE = 1.25
START_SECONDS = 5.0  # of a process that loads torch and the scene
ENOUGH_STEPS = 3000  # fewer are worse than smaller photos
STEPS = (500, 700, 1000, 1500, 2000, 3000, 4000, 5000, 7000, 10_000, 15_000, 20_000, 30_000)
DIVISORS = (1, 2, 4, 8)
MIN_PIXELS = 40_000  # of a photo: smaller ones show too little, whatever the number of steps
# The original rules know no limit: in eight trainings of real scenes they came to 0.3 to 4 times what these
# settings of *fast* would give, mostly to 0.5 to 1.5 times, and add none after this step.
LIKE_DEFAULT, GROWS_UNTIL = FastConfig(density=0.22, long_growth=0.75, thin_share=0.0), 15_000
SAMPLES = 60  # of the steps, at which pixels and splats are looked at


@dataclass(frozen=True)
class StepTimes:
    """What a training step takes: by itself, for each pixel, and for each splat; seconds."""

    step: float
    pixel: float
    splat: float

    def of(self, pixels: float, splats: float) -> float:
        """Return the seconds of a step with so many pixels and splats."""
        return self.step + self.pixel * pixels + self.splat * splats


@dataclass(frozen=True)
class TimePlan:
    """A training by the settings in which it differs from the one that was asked for, and its time."""

    settings: Mapping[str, Any]  # by dotted names; beside them it has the preset *fast*
    seconds: float
    instead_of: float  # seconds of the training that was asked for
    downscale: int
    steps: int

    def applied(self, config: TrainConfig, given: Collection[str]) -> TrainConfig:
        """Return settings as planned, but for those in `given`, which the user asked for."""
        config = PRESETS["fast"].apply(config, given)
        for name, value in self.settings.items():
            config = changed(config, name, value)
        return config

    def is_in(self, config: TrainConfig) -> bool:
        """Return whether settings are still those of the plan."""
        return all(value_of(config, name) == value for name, value in self.settings.items())

    @property
    def choice(self) -> str:
        """Say what is chosen, as "fast, half size, 7,000 steps"."""
        size = {1: "full size", 2: "half size"}.get(self.downscale, f"1/{self.downscale} size")
        return f"fast, {size}, {self.steps:,} steps"

    @property
    def sentence(self) -> str:
        """Say what it is, as "about 9 minutes: fast, half size, 7,000 steps"."""
        return f"{duration_words(self.seconds)}: {self.choice}"


def duration_words(seconds: float) -> str:
    """Return an estimate in words, as "about 20 seconds", "about 9 minutes" or "about 3 hours"."""
    minutes = seconds / 60.0
    if seconds < 47.5:
        return f"about {max(5, 5 * round(seconds / 5))} seconds"
    if minutes < 1.5:
        return "about a minute"
    if minutes < 90:
        return f"about {round(minutes) if minutes < 20 else 5 * round(minutes / 5)} minutes"
    hours = minutes / 60.0
    return f"about {round(hours)} hours" if hours < 48 else f"about {round(hours / 24)} days"


def expected_seconds(config: TrainConfig, scene: Scene, times: StepTimes) -> float:
    """Return how long a training of a scene takes on one device; see the module for how well it is known."""
    scene = scene.resized(config.downscale)
    full = statistics.fmean(width * height for width, height in sizes_of(scene))
    halved = crops(config)
    each = [
        times.of(full / divisor_at(step, config) ** 2 * (0.5 if step in halved else 1.0), splats)
        for step, splats in _splats_at(config, scene)
    ]
    batch = config.batch_size * config.accumulate
    return START_SECONDS + BESIDE * batch * config.steps * statistics.fmean(each)


def _splats_at(config: TrainConfig, scene: Scene) -> Iterator[tuple[int, float]]:
    """Yield steps of a training and how many splats it has there: from the points to what it comes to."""
    first = min(len(scene.points) or config.init_random, config.densify.max_gaussians)
    last = splats_chosen(config, scene)
    if last is None:
        like_it = replace(config, strategy="fast", fast=LIKE_DEFAULT, steps=min(config.steps, GROWS_UNTIL))
        last = splats_chosen(like_it, scene) or first
    last = max(last, first) if config.densify.enabled else first
    for sample in range(SAMPLES):
        step = (sample + 0.5) / SAMPLES * config.steps
        # Some of the steps have passed before the first are added; half of them before the last.
        grown = min(max((step / config.steps - 0.05) / 0.4, 0.0), 1.0)
        thinned = (
            config.densify.enabled and config.strategy == "fast" and step > config.fast.thins(config.steps)
        )
        left = 1.0 - config.fast.thin_share if thinned else 1.0
        yield int(step), left * (first + grown * (last - first))


def plan_within(
    minutes: float, scene: Scene, config: TrainConfig, times: StepTimes, given: Collection[str] = ()
) -> TimePlan:
    """Return the training with *fast* that gives the best picture in about so many minutes.

    The largest photos with which `ENOUGH_STEPS` fit, else the smallest that show anything, and as many
    steps as fit then. The settings named in `given`, which the user asked for, are as in `config`.
    """
    best: tuple[int, int, float] | None = None
    for divisor in _divisors(scene, config):
        candidates = [
            (divisor, steps, expected_seconds(_settings_of(config, divisor, steps, given), scene, times))
            for steps in STEPS
        ]
        fitting = [each for each in candidates if each[2] <= 60.0 * minutes] or candidates[:1]
        if best is None or fitting[-1][1] > best[1]:  # smaller photos must gain something
            best = fitting[-1]
        if best[1] >= ENOUGH_STEPS:
            break
    assert best is not None
    divisor, steps, seconds = best
    settings = {"downscale": divisor, "steps": steps}
    return TimePlan(settings, seconds, expected_seconds(config, scene, times), divisor, steps)


def _divisors(scene: Scene, config: TrainConfig) -> Sequence[int]:
    """Return by what the photos may be divided: by no less than was asked for, and not too small."""
    sizes = sizes_of(scene.resized(1))
    pixels = statistics.fmean(width * height for width, height in sizes)
    chosen = [each for each in DIVISORS if each >= config.downscale]
    return [each for each in chosen if pixels / each**2 >= MIN_PIXELS] or [config.downscale]


def _settings_of(config: TrainConfig, divisor: int, steps: int, given: Collection[str]) -> TrainConfig:
    config = PRESETS["fast"].apply(config, {*given, "steps"})
    return changed(changed(config, "downscale", divisor), "steps", steps)


def proposal(scene: Scene, config: TrainConfig, times: StepTimes) -> TimePlan | None:
    """Return what to propose in the place of a training that takes long here; None: it does not."""
    plan = plan_within(BUDGET_MINUTES, scene, config, times)
    return plan if plan.instead_of > LONG_SECONDS else None


@cache
def measured_times(device: str) -> StepTimes:
    """Measure on a device ("cpu", "cuda:0") what a step takes there; about half a second, once a process."""
    side, splats = 384, 40_000
    small = _seconds_of_step(torch.device(device), 64, 2000)
    large = _seconds_of_step(torch.device(device), side, 2000)
    many = _seconds_of_step(torch.device(device), 64, splats)
    pixel = max(large - small, 0.0) / (side**2 - 64**2)
    splat = max(many - small, 0.0) / (splats - 2000)
    return StepTimes(max(small - pixel * 64**2 - splat * 2000, 0.0), pixel, splat)


def _seconds_of_step(device: torch.device, side: int, num_splats: int) -> float:
    """Return the least seconds of a step with a picture of `side` x `side` pixels."""
    camera = Camera(np.eye(4), np.array([[side, 0, side / 2], [0, side, side / 2], [0, 0, 1.0]]), side, side)
    params = _drawn_splats(num_splats, device).map(lambda tensor: tensor.clone().requires_grad_())
    optimizer = SplatAdam.zeros(params)
    rates = dict.fromkeys(learning_rates(OptimConfig(), extent=1.0, step=0, steps=1), 0.0)
    target = torch.full((side, side, 3), 0.5, device=device)
    seconds = []
    for _ in range(6):
        started = time.perf_counter()
        drawing = draw(params, optimizer, camera, RenderOptions(), observed=True)
        gradients = backward(drawing, photometric(drawing.rgb, target, ssim_weight=0.2))
        apply_gradients(drawing, gradients, optimizer, rates)
        accelerator.synchronize(device)
        seconds.append(time.perf_counter() - started)
    return min(seconds[1:])  # other work of the machine comes and goes


def _drawn_splats(num: int, device: torch.device) -> Gaussians:
    """Return splats all over a picture, which they cover as those of a trained model do: some 20 a pixel."""
    generator = torch.Generator().manual_seed(0)
    uniform = torch.rand(num, 3, generator=generator)
    means = torch.stack([(uniform[:, 0] - 0.5) * 3, (uniform[:, 1] - 0.5) * 3, 3 + uniform[:, 2]], 1)
    size = 0.9 / math.sqrt(num)
    splats = Gaussians(
        means=means,
        quats=torch.nn.functional.normalize(torch.randn(num, 4, generator=generator), dim=1),
        scales=torch.full((num, 3), math.log(size)) + 0.5 * torch.randn(num, 3, generator=generator),
        opacities=torch.zeros(num),
        sh0=torch.rand(num, 1, 3, generator=generator),
        shN=torch.zeros(num, 15, 3),
    )
    return splats.map(lambda tensor: tensor.to(device))
