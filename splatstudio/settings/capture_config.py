"""The settings for real captures: changing light, cameras a little off, skies, floaters; all off at first."""

from __future__ import annotations

from dataclasses import dataclass

from splatstudio.settings.setting import documented, setting


@documented
@dataclass(frozen=True)
class ExposureConfig:
    """A color correction for each training photo, learned beside the model and used only in the loss.

    The model is rendered without it. Test photos have none, so their PSNR is uncorrected.
    """

    enabled: bool = setting(False, "Learn an affine map of colors (3 x 4) for each training photo.")
    lr: float = setting(2e-2, "Learning rate of the maps at the first step.", 0, 1, live=True)
    lr_decay: float = setting(0.05, "Final learning rate as a share of the initial one.", 1e-6, 1)
    stay: float = setting(
        0.1, "Weight of the mean squared deviation of a map from the identity.", 0, live=True
    )
    grid: bool = setting(
        False, "Learn a bilateral grid of such maps (by position and brightness) for each photo instead."
    )
    grid_size: int = setting(4, "Grid cells along each side of the photo.", 2, 64)
    grid_depth: int = setting(2, "Grid cells from dark to bright.", 2, 32)
    grid_smooth: float = setting(
        10.0, "Weight of the mean squared difference between neighboring cells.", 0, live=True
    )


@documented
@dataclass(frozen=True)
class PoseConfig:
    """A small correction of each training camera; test cameras and displayed cameras stay unchanged.

    An export with cameras writes the corrected ones.
    """

    enabled: bool = setting(
        False, "Refine the poses of the training cameras; an export with cameras writes the refined ones."
    )
    start_step: int = setting(200, "Steps before the first correction.", 0)
    lr: float = setting(
        5e-4,
        "Learning rate of rotations (radians) and of shifts (relative to the scene's extent).",
        0,
        1,
        live=True,
    )
    lr_decay: float = setting(0.1, "Final learning rate as a share of the initial one.", 1e-6, 1)


@documented
@dataclass(frozen=True)
class SkyConfig:
    """A learned background color by viewing direction, which files of Gaussians cannot store."""

    enabled: bool = setting(False, "Learn the background behind the scene instead of using a fixed color.")
    degree: int = setting(2, "Degree of its spherical harmonics; 0: one color everywhere.", 0, 3)
    lr: float = setting(5e-3, "Learning rate of its coefficients.", 0, 1, live=True)


@documented
@dataclass(frozen=True)
class DepthConfig:
    """The depth of the sparse points as a guide: for COLMAP scenes, which record who sees which point.

    It has no effect in other scenes.
    """

    weight: float = setting(
        0.0, "Weight of the mean error of extent/depth at the sparse points of each view; 0: off.", 0, 100
    )
    weight_decay: float = setting(0.01, "Final weight as a share of the initial one.", 1e-6, 1)


@documented
@dataclass(frozen=True)
class ShapeConfig:
    """Which shapes Gaussians may take and how often they must be seen, for every strategy."""

    opacity_weight: float = setting(0.0, "Weight of the mean opacity in the loss.", 0, 10, live=True)
    scale_weight: float = setting(0.0, "Weight of the mean size in the loss.", 0, 10, live=True)
    max_scale: float = setting(
        0.0, "Largest standard deviation relative to the scene's extent; 0: no limit.", 0, live=True
    )
    max_ratio: float = setting(
        0.0,
        "Largest ratio of the longest to the middle standard deviation, against needles; 0: no limit.",
        0,
        live=True,
        least=1,
    )
    max_thickness: float = setting(
        0.0,
        "Largest ratio of the shortest to the middle standard deviation, for discs on surfaces; 0: no limit.",
        0,
        1,
        live=True,
    )
    min_views: int = setting(
        0, "Remove splats that are visible in fewer training photos than this; 0: never.", 0, live=True
    )
    min_views_every: int = setting(1000, "Steps between two such removals.", 1)


@documented
@dataclass(frozen=True)
class DropoutConfig:
    """Gaussians randomly left out of each step, for scenes with few photos (Park et al. 2025).

    Each one then has to be right by itself, because combinations that only fit together do not last. The
    training PSNR is measured without the Gaussians left out, so it is lower than that of the model.
    """

    rate: float = setting(
        0.0, "Largest share of splats left out of a step, reached with very few photos.", 0, 0.9
    )
    grown_at: int = setting(
        7000, "Step until which the share grows linearly, since overfitting grows with training.", 1
    )
    photos: int = setting(40, "Number of training photos at which the share has fallen linearly to 0.", 1)

    def rate_at(self, step: int, num_photos: int) -> float:
        """Return what share is left out of the step after `step` others."""
        few = max(1.0 - num_photos / self.photos, 0.0)
        return self.rate * few * min(step / self.grown_at, 1.0)
