"""Settings under which a training on one GPU learns more than Gaussians, or from more than one photo."""

from __future__ import annotations

from dataclasses import replace

from splatstudio.optimization.losses import DepthGuide
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import (
    DepthConfig,
    DropoutConfig,
    ExposureConfig,
    PoseConfig,
    ShapeConfig,
    SkyConfig,
)
from splatstudio.settings.config import OptimConfig, TrainConfig
from splatstudio.settings.strategy_config import CoarseConfig, McmcConfig

CONFIG = TrainConfig(steps=100, seed=3, eval_steps=(), save_steps=())
WEIGHTS = ShapeConfig(opacity_weight=0.01, scale_weight=0.01)
FEW = DropoutConfig(rate=0.9, photos=1000, grown_at=100)
POSES = PoseConfig(enabled=True, start_step=2)
GRID = ExposureConfig(grid=True, grid_size=4, grid_depth=3)
OPTIONS: dict[str, TrainConfig] = {
    "nothing": CONFIG,
    "mcmc": replace(CONFIG, strategy="mcmc", random_background=True, shapes=WEIGHTS, dropout=FEW),
    "coarse": replace(
        CONFIG,
        strategy="absgrad",
        coarse=CoarseConfig(first=2.0, until=1.0),
        antialiased=True,
        optim=OptimConfig(visible_only=True),
        dropout=FEW,
    ),
    "depth": replace(CONFIG, depth=DepthConfig(weight=0.3)),
    "exposure": replace(CONFIG, exposure=ExposureConfig(enabled=True)),
    "grid": replace(CONFIG, exposure=GRID, random_background=True),
    "sky": replace(CONFIG, sky=SkyConfig(enabled=True)),
    "poses": replace(CONFIG, poses=POSES, sh_degree_every=4),
    "masked": replace(CONFIG, sky=SkyConfig(enabled=True), coarse=CoarseConfig(first=1.5, until=1.0)),
    "transparent": replace(CONFIG, exposure=ExposureConfig(enabled=True), strategy="mcmc"),
    "batch": replace(CONFIG, batch_size=2, random_background=True),
    "everything": replace(
        CONFIG,
        batch_size=2,
        accumulate=2,
        strategy="mcmc",
        mcmc=McmcConfig(start_step=90),
        shapes=WEIGHTS,
        optim=OptimConfig(visible_only=True),
        depth=DepthConfig(weight=0.3),
        exposure=ExposureConfig(enabled=True),
        sky=SkyConfig(enabled=True),
        poses=POSES,
        dropout=FEW,
    ),
}


def guide_of(scene: Scene, config: DepthConfig) -> DepthGuide:
    """Return a guide, in place of `DepthGuide.of`, for which every photo shows every point."""
    known = {index: scene.points.astype("float64") for index in scene.train_indices}
    return DepthGuide(known if config.weight > 0 else {}, scene.extent)
