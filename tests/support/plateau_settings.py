"""Settings under which a score stands still as soon as anything may, and the news of it."""

from __future__ import annotations

from splatstudio.settings.config import TrainConfig
from splatstudio.settings.plateau_curve import Plateau, PlateauConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.plateau import PlateauNews

# Whatever the scores are, they are flat as soon as anything may be: at step 22.
ANYHOW = TrainConfig(
    steps=60,
    sh_degree=0,
    eval_steps=(),
    eval_every=2,
    save_steps=(),
    flat=PlateauConfig(gain=10.0, share=0.1, scores=4),
    densify=DensifyConfig(enabled=False),
)
FLAT_NEWS = PlateauNews(20, Plateau(2, 17.79), False, 1.0)
