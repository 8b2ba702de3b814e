"""What of a model is left out where it is kept: faint Gaussians, and those outside of a box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # The command line names a Trim before it loads torch.
    import numpy as np
    from torch import Tensor

    from splatstudio.gaussians.gaussians import Gaussians


@dataclass(frozen=True)
class Trim:
    """Which Gaussians are kept.

    Args:
        min_opacity: Leave out what is less opaque than this, 0 to 1; below 1/255 nothing is ever drawn.
        crop: Keep only what has its center in this box: x y z of one corner and of the opposite one.
    """

    min_opacity: float = 0.0
    crop: tuple[float, float, float, float, float, float] | None = None

    def check(self) -> None:
        """Raise ValueError for what no model can be trimmed by."""
        if not 0 <= self.min_opacity < 1:
            raise ValueError(f"the least opacity lies between 0 and 1, not {self.min_opacity:g}")
        if self.crop is not None and not all(math.isfinite(value) for value in self.crop):
            raise ValueError("the corners of a crop box are finite numbers")

    @property
    def keeps_all(self) -> bool:
        """Return whether nothing is left out."""
        return self.min_opacity == 0 and self.crop is None


KEEP_ALL = Trim()


def trimmed(gaussians: Gaussians, trim: Trim, to_box: np.ndarray | None = None) -> Gaussians:
    """Return the Gaussians that `trim` keeps, as they are.

    `to_box` [4, 4] leads from their frame to that of the box, None: it is theirs. Raises ValueError when none
    is left.
    """
    if trim.keeps_all:
        return gaussians
    kept = _kept(gaussians, trim, to_box)
    if not bool(kept.any()):
        raise ValueError("no splat is left: lower the least opacity, or make the crop box larger")
    return gaussians[kept]


def hidden(gaussians: Gaussians, trim: Trim, nowhere: Sequence[float]) -> tuple[Gaussians, int]:
    """Return the Gaussians for a picture that shows those alone that `trim` keeps, and how many these are.

    The others are moved to `nowhere` [3], which the picture does not show: that is quicker than a copy of
    all that stay, whose harmonics are most of a model.
    """
    if trim.keeps_all or len(gaussians) == 0:
        return gaussians, len(gaussians)
    kept = _kept(gaussians, trim)
    means = gaussians.means.where(kept[:, None], gaussians.means.new_tensor(nowhere))
    return replace(gaussians, means=means), int(kept.sum())


def _kept(gaussians: Gaussians, trim: Trim, to_box: np.ndarray | None = None) -> Tensor:
    """Return which Gaussians `trim` keeps, [N] bool. Raises ValueError for values that cannot be used."""
    trim.check()
    kept = gaussians.opacities.sigmoid() >= trim.min_opacity
    if trim.crop is not None:
        means = gaussians.means
        if to_box is not None:  # in float64: a box in the coordinates of a map is far from its origin
            means = means.double()
            means = means @ means.new_tensor(to_box[:3, :3]).T + means.new_tensor(to_box[:3, 3])
        corners = means.new_tensor(trim.crop).reshape(2, 3)
        low, high = corners.amin(dim=0), corners.amax(dim=0)
        kept &= ((means >= low) & (means <= high)).all(dim=1)
    return kept
