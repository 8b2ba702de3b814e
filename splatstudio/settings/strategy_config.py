"""The settings of the strategies: of each of them those that only it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from splatstudio.settings.setting import documented, setting

StrategyName = Literal["default", "absgrad", "mcmc", "fast"]


@documented
@dataclass(frozen=True)
class DensifyConfig:
    """Rules for clone, split, prune and opacity reset (Kerbl et al. 2023, with gsplat's statistics)."""

    enabled: bool = setting(True, "Add and remove splats during training.", live=True)
    start_step: int = setting(
        500, "Step after which splats are added and removed; a sixth of all steps at the latest.", 0
    )
    stop_step: int = setting(
        15_000, "Step at which adding and removing ends; half of all steps at the latest.", 0
    )
    every: int = setting(100, "Steps between two densifications.", 1)
    reset_every: int = setting(3000, "Steps between two opacity resets.", 1)
    pause_after_reset: int = setting(
        0, "Steps without densification after each opacity reset and at the start.", 0
    )
    grow_grad: float = setting(
        2e-4, "Mean screen-space gradient above which a splat is cloned or split.", 0, live=True
    )
    grow_scale3d: float = setting(
        0.01,
        "Size, relative to the scene extent, up to which a splat is cloned and above which it is split.",
        0,
    )
    grow_scale2d: float = setting(
        0.05, "Screen size (share of the longer side) above which a splat is split.", 0
    )
    prune_opacity: float = setting(
        0.005,
        "Opacity below which a splat is removed; a reset lowers opacities to twice this.",
        1e-4,
        0.4,
        live=True,
    )
    prune_scale3d: float = setting(
        0.1, "Size, relative to the scene extent, above which a splat is removed after the first reset.", 0
    )
    prune_scale2d: float = setting(
        0.15, "Screen size above which a splat is removed, until stop_scale2d_step.", 0
    )
    stop_scale2d_step: int = setting(0, "Step until which the two screen-size rules apply; 0: never.", 0)
    max_gaussians: int = setting(
        2_000_000, "No splats are added above this number, whatever the strategy.", 1, live=True
    )

    def ends(self, steps: int) -> int:
        """Return the step of a training of `steps` from which none are added, removed or reset."""
        return min(self.stop_step, steps // 2)


@documented
@dataclass(frozen=True)
class AbsgradConfig:
    """Settings of *absgrad* (Ye et al. 2024, AbsGS); everything else is as in `densify`."""

    grow_grad: float = setting(
        8e-4, "Mean absolute screen-space gradient above which a splat grows.", 0, live=True
    )


@documented
@dataclass(frozen=True)
class McmcConfig:
    """Settings of *mcmc* (Kheradmand et al. 2024).

    It differs from the paper by guided and spread, and because parents keep their Adam moments. Of `densify`
    it uses only enabled and max_gaussians.
    """

    start_step: int = setting(
        500, "Step after which splats are relocated and added; a sixth of all steps at the latest.", 0
    )
    stop_step: int = setting(
        25_000, "Step at which relocating and adding ends; five sixths of all steps at the latest.", 0
    )
    every: int = setting(100, "Steps between two relocations.", 1)
    max_gaussians: int = setting(
        0, "Target number of splats, up to densify.max_gaussians; 0: computed from density.", 0
    )
    density: float = setting(
        0.3,
        "Target number of splats = density x pixels per photo x square root of the number of photos.",
        1e-3,
        100,
    )
    grow_factor: float = setting(
        1.05,
        "Growth of the number of splats at each relocation, at least, until the target is reached.",
        1,
        2,
    )
    min_opacity: float = setting(0.005, "Opacity up to which a splat counts as dead.", 1e-4, 0.4)
    noise: float = setting(
        5e5, "Scale of the noise on positions, multiplied by their learning rate and covariance.", 0
    )
    noise_every: int = setting(
        1, "Steps between two additions of noise, which is scaled by the square root of this number.", 1
    )
    guided: bool = setting(
        True, "Sample new splats by mean absolute gradients, not by opacities (as in the paper)."
    )
    spread: float = setting(
        0.5,
        "Random offset of a split splat's parts, relative to its size; 0: both at its center.",
        0,
        0.9,
    )

    def ends(self, steps: int) -> int:
        """Return the step of a training of `steps` from which none move or are added."""
        return min(self.stop_step, steps * 5 // 6)


@documented
@dataclass(frozen=True)
class FastConfig:
    """Settings of *fast*: it grows more splats than needed, then removes the least important ones.

    Everything else is as in `mcmc`, whose settings it uses, except density and max_gaussians.
    """

    density: float = setting(
        0.15,
        "Final number of splats = density x pixels per photo x square root of the number of photos; fewer in"
        " short trainings with photos above 40,000 pixels, more in long ones, see long_growth.",
        1e-3,
        100,
    )
    long_growth: float = setting(
        0.25,
        "Multiply the number of splats by (steps / 2,000) to this power, from 2,000 to 30,000 steps.",
        0,
        1,
    )
    thin_at: float = setting(
        0.6, "Share of the steps after which the least important splats are removed; 1: never.", 0, 1
    )
    thin_share: float = setting(
        0.32, "Share of the splats removed then; until then there are more by that much.", 0, 0.9
    )
    min_weight: float = setting(
        0.02,
        "Smallest contribution to any photo (sum of weights, px) with which a splat survives that removal.",
        0,
    )

    def thins(self, steps: int) -> int:
        """Return the step of a training of `steps` after which the least needed are removed."""
        return int(steps * self.thin_at)


@documented
@dataclass(frozen=True)
class CoarseConfig:
    """Coarse to fine: smaller photos first and then halves of photos, which are just as cheap."""

    first: float = setting(
        1.0, "Divisor of the photos' sides at the first step; 1: full size from the start.", 1, 64
    )
    until: float = setting(0.5, "Share of the steps after which photos have their full size.", 0.01, 1)
    halves_from: float = setting(
        1.0, "Share of the steps from which each step uses only one half of its photo; 1: never.", 0, 1
    )
    halves_until: float = setting(
        1.0, "Share of the steps from which whole photos are used again; 1: never.", 0, 1
    )
    halves_within: int = setting(
        8000, "Longest training, in steps, in which halves_from applies; longer ones use whole photos.", 1
    )


# Which settings of `densify` only some strategies read, all others being read by all but mcmc and fast; and
# which of mcmc's fast does not read.
_UNREAD_BY_ABSGRAD = frozenset({"densify.grow_grad"})
_UNREAD_BY_FAST = frozenset({"mcmc.density", "mcmc.max_gaussians"})
_READ_BY_MCMC = frozenset({"densify.enabled", "densify.max_gaussians"})


def unread_settings(strategy: StrategyName, names: Iterable[str]) -> list[str]:
    """Return those of the settings `names` that are of strategies but that `strategy` does not read."""

    def is_unread(name: str) -> bool:
        group = name.partition(".")[0]
        if group == "mcmc" and strategy == "fast":
            return name in _UNREAD_BY_FAST
        if group in ("absgrad", "mcmc", "fast"):
            return group != strategy
        if group != "densify":
            return False
        if strategy in ("mcmc", "fast"):
            return name not in _READ_BY_MCMC
        return strategy == "absgrad" and name in _UNREAD_BY_ABSGRAD

    return sorted(name for name in names if is_unread(name))


def note_on_unread(strategy: StrategyName, given: Iterable[str]) -> str | None:
    """Return a sentence on the settings `given` that `strategy` does not read; None: it reads all."""
    names = unread_settings(strategy, given)
    if not names:
        return None
    return f"The strategy {strategy} does not read {', '.join(names)}: it changes nothing."
