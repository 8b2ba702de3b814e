"""The settings of the strategies: of each of them those that only it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from splatstudio.setting import documented, setting

StrategyName = Literal["default", "absgrad"]


@documented
@dataclass(frozen=True)
class DensifyConfig:
    """Rules of clone, split, prune and opacity reset (Kerbl et al. 2023, counted as gsplat does)."""

    enabled: bool = setting(True, "Add and remove Gaussians while training.", live=True)
    start_step: int = setting(
        500, "Step after which Gaussians are added and removed; at the latest after a sixth of the steps.", 0
    )
    stop_step: int = setting(
        15_000, "Step from which none are added or removed; at the latest after half of the steps.", 0
    )
    every: int = setting(100, "Steps between two densifications.", 1)
    reset_every: int = setting(3000, "Steps between two opacity resets.", 1)
    pause_after_reset: int = setting(0, "Steps without densification after an opacity reset.", 0)
    grow_grad: float = setting(
        2e-4, "Mean screen-space gradient above which a Gaussian is cloned or split.", 0, live=True
    )
    grow_scale3d: float = setting(
        0.01, "Size over scene extent below which to clone, above which to split.", 0
    )
    grow_scale2d: float = setting(0.05, "Screen size (share of the longer side) above which to split.", 0)
    prune_opacity: float = setting(
        0.005,
        "Opacity below which a Gaussian is removed; a reset lowers to twice this.",
        1e-4,
        0.4,
        live=True,
    )
    prune_scale3d: float = setting(0.1, "Size over scene extent above which one is removed after a reset.", 0)
    prune_scale2d: float = setting(
        0.15, "Screen size above which one is removed, while stop_scale2d_step.", 0
    )
    stop_scale2d_step: int = setting(0, "Step until which the two screen-size rules hold; 0: never.", 0)
    max_gaussians: int = setting(
        2_000_000, "No Gaussians are added above this number, by whatever strategy.", 1, live=True
    )


@documented
@dataclass(frozen=True)
class AbsgradConfig:
    """What *absgrad* has of its own (Ye et al. 2024, AbsGS); all else is as in `densify`."""

    grow_grad: float = setting(8e-4, "Mean absolute screen-space gradient above which a Gaussian grows.", 0)
