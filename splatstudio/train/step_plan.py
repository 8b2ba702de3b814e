"""What is known of a step of a training before it: how it draws, at what rates, and whether it is quiet."""

from __future__ import annotations

from splatstudio.gaussians.dropout import Dropout
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.kernels.ops_training import Regularization
from splatstudio.optimization.optim import learning_rates
from splatstudio.optimization.train_step import StepPlan
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.strategy import Population, Strategy
from splatstudio.strategy.chance import seeds_of
from splatstudio.strategy.population import PERSISTENT_ID
from splatstudio.strategy.shapes import changes_shapes
from splatstudio.train.data.resolution import sh_degree_at
from splatstudio.train.step_stats import PSNR_EVERY

_DROPOUT = 0xD20  # tells its chance from that of the strategies


def options_at(index: int, config: TrainConfig, scene: Scene, strategy: Strategy) -> RenderOptions:
    """Return how the step after `index` others draws, but for the background."""
    return RenderOptions(
        sh_degree=sh_degree_at(index, config, len(scene.train_indices)),
        antialiased=config.antialiased,
        near=config.near,
        far=config.far,
        absgrad=strategy.absgrad,
    )


def plan_at(
    index: int,
    config: TrainConfig,
    scene: Scene,
    strategy: Strategy,
    *,
    extent: float,
    poses: bool,
    room: IntersectionCapacity | None,
    dropout: Dropout | None,
) -> StepPlan:
    """Return how the step after `index` others goes down; `strategy` follows `config`.

    `extent` is the unit of learning rates, in scene units; `poses`, `room` and `dropout` are as of
    `StepPlan`.
    """
    return StepPlan(
        options=options_at(index, config, scene, strategy),
        rates=learning_rates(config.optim, extent=extent, step=index, steps=config.steps),
        observed=strategy.observes(index),
        visible_only=config.optim.visible_only,
        regularization=Regularization(config.shapes.opacity_weight, config.shapes.scale_weight),
        poses=poses,
        room=room,
        scored=(index + 1) % PSNR_EVERY == 0,
        dropout=dropout,
    )


def dropout_at(index: int, config: TrainConfig, num_photos: int, population: Population) -> Dropout | None:
    """Return who is left out of the step after `index` others; None: nobody."""
    rate = config.dropout.rate_at(index, num_photos)
    if not rate > 0:
        return None
    (seed,) = seeds_of(config.seed ^ _DROPOUT, index, 1)
    return Dropout(rate, seed, population.counts[PERSISTENT_ID])


def is_quiet(index: int, config: TrainConfig, strategy: Strategy) -> bool:
    """Return whether all that changes Gaussians in the step after `index` others can have a `StepGate`."""
    return not (strategy.changes(index) or changes_shapes(config.shapes, index))
