"""The settings for real captures: changing light, cameras a little off, skies, floaters; all off at first."""

from __future__ import annotations

from dataclasses import dataclass

from splatstudio.settings.setting import documented, setting


@documented
@dataclass(frozen=True)
class ExposureConfig:
    """A color correction of each training photo, learned besides the model and seen by the loss alone.

    The model is drawn without it. Test photos have none: their PSNR is the plain one.
    """

    enabled: bool = setting(False, "Learn an affine map of colors (3 x 4) for each training photo.")
    lr: float = setting(2e-2, "Learning rate of the maps at the first step.", 0, 1, live=True)
    lr_decay: float = setting(0.05, "That rate at the last step over that at the first.", 1e-6, 1)
    stay: float = setting(0.1, "Weight of the mean square by which a map differs from none.", 0, live=True)
    grid: bool = setting(
        False, "Learn a bilateral grid of such maps for each photo (place and brightness) instead."
    )
    grid_size: int = setting(4, "Cells of a grid along each side of the photo.", 2, 64)
    grid_depth: int = setting(2, "Cells of a grid from dark to bright.", 2, 32)
    grid_smooth: float = setting(
        10.0, "Weight of the mean square difference of neighboring cells.", 0, live=True
    )


@documented
@dataclass(frozen=True)
class PoseConfig:
    """A small correction of each training camera; test cameras and the ones that are shown stay as read.

    An export with cameras writes the corrected ones.
    """

    enabled: bool = setting(
        False, "Learn where the training cameras really stood; an export with cameras writes that."
    )
    start_step: int = setting(200, "Steps before the first correction.", 0)
    lr: float = setting(
        5e-4, "Learning rate of rotations (radians) and of shifts over the scene's extent.", 0, 1, live=True
    )
    lr_decay: float = setting(0.1, "That rate at the last step over that at the first.", 1e-6, 1)


@documented
@dataclass(frozen=True)
class SkyConfig:
    """A learned color behind everything, by viewing direction; files of Gaussians cannot hold it."""

    enabled: bool = setting(False, "Learn what is behind the scene, in place of a fixed background.")
    degree: int = setting(2, "Degree of its spherical harmonics; 0: one color everywhere.", 0, 3)
    lr: float = setting(5e-3, "Learning rate of its coefficients.", 0, 1, live=True)


@documented
@dataclass(frozen=True)
class DepthConfig:
    """The depth of the sparse points as a guide: for COLMAP scenes, which tell who sees which point.

    In other scenes nothing guides.
    """

    weight: float = setting(
        0.0, "Weight of the mean error of extent/depth at each view's sparse points; 0: off.", 0, 100
    )
    weight_decay: float = setting(0.01, "That weight at the last step over that at the first.", 1e-6, 1)


@documented
@dataclass(frozen=True)
class ShapeConfig:
    """What shapes Gaussians may take, and whether they must be seen; of any strategy."""

    opacity_weight: float = setting(0.0, "Weight of the mean opacity in the loss.", 0, 10, live=True)
    scale_weight: float = setting(0.0, "Weight of the mean size in the loss.", 0, 10, live=True)
    max_scale: float = setting(
        0.0, "Largest standard deviation over the scene's extent; 0: no limit.", 0, live=True
    )
    max_ratio: float = setting(
        0.0,
        "Longest over middle standard deviation at most, 1 or more: no needles. 0: no limit.",
        0,
        live=True,
        least=1,
    )
    max_thickness: float = setting(
        0.0,
        "Shortest over middle standard deviation at most: discs, which lie on surfaces. 0: no limit.",
        0,
        1,
        live=True,
    )
    min_views: int = setting(0, "Remove splats that fewer training photos show; 0: never.", 0, live=True)
    min_views_every: int = setting(1000, "Steps between two such removals.", 1)


@documented
@dataclass(frozen=True)
class DropoutConfig:
    """Gaussians left out of each step by chance, for scenes of few photos (Park et al. 2025).

    Each then has to be right for itself, and what shows the photos only together does not last. The
    training's own PSNR is that of the pictures without them, lower than that of the model.
    """

    rate: float = setting(
        0.0, "Share of the splats that a step leaves out at most, with very few photos.", 0, 0.9
    )
    grown_at: int = setting(7000, "The share grows evenly up to this step: the longer, the more overfits.", 1)
    photos: int = setting(
        40, "The share falls evenly with the number of training photos, to 0 with so many.", 1
    )

    def rate_at(self, step: int, num_photos: int) -> float:
        """Return what share is left out of the step after `step` others."""
        few = max(1.0 - num_photos / self.photos, 0.0)
        return self.rate * few * min(step / self.grown_at, 1.0)
