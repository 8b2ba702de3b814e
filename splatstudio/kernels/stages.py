"""What passes between the stages of a render: project -> rasterize.

`ops.py` (native kernels) and `reference.py` (plain torch) offer the same functions over these types.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

EPS2D = 0.3  # px^2, added to the projected covariance so that nothing is thinner than about a pixel
ALPHA_THRESHOLD = 1.0 / 255.0  # contributions below are invisible in 8 bits and skipped
TRANSMITTANCE_STOP = 1e-4  # a pixel is finished when the next Gaussian would leave less than this
MAX_ALPHA = 0.999  # keeps 1 - alpha away from 0 in the backward pass
MIN_COMPENSATION = 0.005  # lower bound of the antialiasing opacity factor


@dataclass(frozen=True)
class ProjectSettings:
    """How Gaussians are projected: the active SH degree, antialiasing, depth range in scene units."""

    sh_degree: int = 3
    antialiased: bool = False
    near: float = 0.01
    far: float = 1e10


@dataclass(frozen=True, eq=False)
class Projected:
    """N Gaussians as one camera sees them; culled rows have radii 0 and zeros elsewhere."""

    means2d: Tensor  # [N, 2] px
    conics: Tensor  # [N, 3] (a, b, c), inverse of the blurred 2-D covariance
    depths: Tensor  # [N] camera z
    opacities: Tensor  # [N] effective: times the compensation when antialiased
    colors: Tensor  # [N, 3] max(SH + 0.5, 0)
    radii: Tensor  # [N, 2] int32 px, opacity-aware half extents, 0 = culled


@dataclass(frozen=True, eq=False)
class RasterSettings:
    """How projected Gaussians are composited into an image of `width` x `height` pixels."""

    width: int
    height: int
    background: Tensor  # [3] linear RGB behind everything
    max_alpha: float = MAX_ALPHA
    # On a GPU: how many instances (a visible Gaussian in a tile) there is memory for, so that the host need
    # not wait for their number. Of more than that the farthest are missing. None: for as many as there are.
    room: int | None = None


@dataclass(frozen=True, eq=False)
class Raster:
    """A composited image."""

    rgb: Tensor  # [H, W, 3] not clamped above
    alpha: Tensor  # [H, W] 1 - final transmittance
    depth_sum: Tensor  # [H, W] sum of w z; the expected depth is depth_sum / max(alpha, 1e-10)
    num_instances: Tensor | None = None  # [1] int64, how many there are, in room or not; kernels count them


@dataclass(frozen=True, eq=False)
class Shapes:
    """How N Gaussians lie in a view; zeros for those that are not seen."""

    normals: Tensor  # [N, 3] the shortest axis, turned to the camera, in the camera's axes
    # [N, 4] ux, uy, t, p: where its ellipsoid is cut in two, its depth grows by (ux, uy) a pixel; t is the
    # standard deviation of the depth there, and p the pixels that a unit of the world takes.
    surfaces: Tensor


@dataclass(frozen=True, eq=False)
class MedianRaster:
    """The median depth of an image and the number of Gaussians blended, for looking at: no gradients."""

    depth: Tensor  # [H, W] of the Gaussian that takes the transmittance below 1/2; 0 where none does
    count: Tensor  # [H, W] int32


@dataclass(frozen=True, eq=False)
class SolidRaster:
    """An image of solid, shaded ellipsoids: no gradients."""

    rgb: Tensor  # [H, W, 3]
    depth: Tensor  # [H, W] of the nearest surface; 0 where there is none
