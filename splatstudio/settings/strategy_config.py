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
    """Rules of clone, split, prune and opacity reset (Kerbl et al. 2023, counted as gsplat does)."""

    enabled: bool = setting(True, "Add and remove splats while training.", live=True)
    start_step: int = setting(
        500, "Step after which splats are added and removed; at the latest after a sixth of the steps.", 0
    )
    stop_step: int = setting(
        15_000, "Step from which none are added or removed; at the latest after half of the steps.", 0
    )
    every: int = setting(100, "Steps between two densifications.", 1)
    reset_every: int = setting(3000, "Steps between two opacity resets.", 1)
    pause_after_reset: int = setting(
        0, "Steps without densification after each opacity reset, and at the beginning.", 0
    )
    grow_grad: float = setting(
        2e-4, "Mean screen-space gradient above which a splat is cloned or split.", 0, live=True
    )
    grow_scale3d: float = setting(
        0.01, "Size over scene extent below which to clone, above which to split.", 0
    )
    grow_scale2d: float = setting(0.05, "Screen size (share of the longer side) above which to split.", 0)
    prune_opacity: float = setting(
        0.005,
        "Opacity below which a splat is removed; a reset lowers to twice this.",
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
        2_000_000, "No splats are added above this number, by whatever strategy.", 1, live=True
    )

    def ends(self, steps: int) -> int:
        """Return the step of a training of `steps` from which none are added, removed or reset."""
        return min(self.stop_step, steps // 2)


@documented
@dataclass(frozen=True)
class AbsgradConfig:
    """What *absgrad* has of its own (Ye et al. 2024, AbsGS); all else is as in `densify`."""

    grow_grad: float = setting(
        8e-4, "Mean absolute screen-space gradient above which a splat grows.", 0, live=True
    )


@documented
@dataclass(frozen=True)
class McmcConfig:
    """What *mcmc* has of its own (Kheradmand et al. 2024).

    It differs from the paper by guided and spread, and in that parents keep their Adam moments. Of `densify`
    it has enabled and max_gaussians alone.
    """

    start_step: int = setting(
        500, "Step after which splats move and are added; at the latest after a sixth of the steps.", 0
    )
    stop_step: int = setting(
        25_000, "Step from which none move or are added; at the latest after five sixths of the steps.", 0
    )
    every: int = setting(100, "Steps between two relocations.", 1)
    max_gaussians: int = setting(
        0, "Target count, densify.max_gaussians at most; 0: as many as density says.", 0
    )
    density: float = setting(
        0.3, "Target count over the pixels of a photo times the square root of their number.", 1e-3, 100
    )
    grow_factor: float = setting(
        1.05, "At least so many times as many after each relocation, up to all.", 1, 2
    )
    min_opacity: float = setting(0.005, "Opacity up to which a splat is dead.", 1e-4, 0.4)
    noise: float = setting(5e5, "Size of the positions' noise, times their learning rate and covariance.", 0)
    noise_every: int = setting(
        1, "Steps between two times of noise, which is larger by the square root of their number.", 1
    )
    guided: bool = setting(
        True, "Samples go where the mean absolute gradients are large, not where opacities are (the paper)."
    )
    spread: float = setting(
        0.5,
        "Where parents and born lie: at random in what was one, by so many times its size; 0: at its center.",
        0,
        0.9,
    )

    def ends(self, steps: int) -> int:
        """Return the step of a training of `steps` from which none move or are added."""
        return min(self.stop_step, steps * 5 // 6)


@documented
@dataclass(frozen=True)
class FastConfig:
    """What *fast* has of its own: more grow than there are to be, then the least needed go.

    All else is as in `mcmc`, of which it has all settings but density and max_gaussians.
    """

    density: float = setting(
        0.15,
        "Count in the end, over the pixels of a photo times the square root of their number; fewer in few"
        " steps with photos of above 40,000 pixels, more in many, see long_growth.",
        1e-3,
        100,
    )
    long_growth: float = setting(
        0.25,
        "Steps, 2,000 to 30,000 of them, multiply the count of density by (steps / 2,000) to this.",
        0,
        1,
    )
    thin_at: float = setting(
        0.6, "Share of the steps after which all photos are asked and the least needed go; 1: never.", 0, 1
    )
    thin_share: float = setting(
        0.32, "Share of all that is removed then; until then there are so many more.", 0, 0.9
    )
    min_weight: float = setting(
        0.02, "Sum of its weights, px, that a photo must show, or a splat is removed then.", 0
    )

    def thins(self, steps: int) -> int:
        """Return the step of a training of `steps` after which the least needed are removed."""
        return int(steps * self.thin_at)


@documented
@dataclass(frozen=True)
class CoarseConfig:
    """Coarse to fine: smaller photos first, and later halves of them, which are as cheap."""

    first: float = setting(1.0, "By what the sides are divided at the first step; 1: never smaller.", 1, 64)
    until: float = setting(0.5, "Share of the steps after which they have their full size.", 0.01, 1)
    halves_from: float = setting(
        1.0, "Share of the steps from which each learns from a half of its photo alone; 1: never.", 0, 1
    )
    halves_until: float = setting(
        1.0, "Share of the steps from which photos are whole again; 1: never.", 0, 1
    )
    halves_within: int = setting(
        8000, "Steps of a training up to which halves_from holds; in longer ones photos stay whole.", 1
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
