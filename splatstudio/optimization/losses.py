"""How unlike a rendering and a photo are: the training loss and the scores of an evaluation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import to_device
from splatstudio.kernels import reference
from splatstudio.optimization.gradients import RenderOutput, TrainView
from splatstudio.rendering.render import stages_for, training_stages_for
from splatstudio.scene.colmap import NoVisiblePoints, visible_points
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import DepthConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.presets import nearest_preset

ROWS_AT_ONCE = 256
MAX_KEPT = 512  # views, whose points are kept on a device: 12 bytes each


def photometric(rgb: Tensor, target: Tensor, *, ssim_weight: float, mask: Tensor | None = None) -> Tensor:
    """Return the training loss (1 - w) * L1 + w * (1 - SSIM) of a rendering, a scalar (Kerbl et al. 2023).

    `rgb` and `target` [H, W, 3], range 0..1, not clamped; `mask` [H, W] bool says which pixels count. The
    gradient goes to `rgb`. Images with a side below the 11-pixel window are compared by L1 alone.
    """
    if min(rgb.shape[:2]) < reference.SSIM_WINDOW:
        ssim_weight = 0.0
    return stages_for(rgb).l1_ssim(rgb, target, ssim_weight=ssim_weight, mask=mask)


@torch.no_grad()
def psnr(image: Tensor, target: Tensor, mask: Tensor | None = None) -> float:
    """Return the peak signal-to-noise ratio of images [H, W, C], clamped to 0..1, in dB.

    `mask` [H, W] bool says which pixels count. Identical images give infinity, an empty mask NaN.
    """
    error = (image.clamp(0.0, 1.0) - target.clamp(0.0, 1.0)) ** 2
    if mask is not None:
        error = error[mask]
    return float(-10.0 * torch.log10(error.double().mean()))


@torch.no_grad()
def psnr_on_device(image: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return what `psnr` does as a tensor, float64 and a scalar, for which the host does not wait.

    The sum has another order, and the last bits may differ.
    """
    total = torch.zeros((), dtype=torch.float64, device=image.device)
    # By strips: the doubles of a whole picture would be among the most that a step holds.
    for first in range(0, len(image), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        error = (image[rows].clamp(0.0, 1.0) - target[rows].clamp(0.0, 1.0)).square_().double()
        if mask is not None:  # to select by it the host would need to know how many pixels it has
            error.masked_fill_(~mask[rows, :, None], 0.0)  # what it leaves out may be no number
        total += error.sum()
    num = image[..., 0].numel() if mask is None else mask.sum()
    return -10.0 * torch.log10(total / (num * image.shape[-1]))


@torch.no_grad()
def ssim(image: Tensor, target: Tensor, mask: Tensor | None = None) -> float:
    """Return the structural similarity of images [H, W, C], clamped to 0..1, valid padding, data range 1.

    `mask` [H, W] bool: outside it the image is taken to equal the target, and only the windows centered
    inside count. An empty mask gives NaN. Raises ValueError for an image with a side below 11 pixels.
    """
    image, target = image.clamp(0.0, 1.0), target.clamp(0.0, 1.0)
    if mask is None:
        return float(stages_for(image).ssim(image, target, padding="valid"))
    border = reference.SSIM_WINDOW // 2
    similarity = reference.ssim_map(torch.where(mask[..., None], image, target), target, padding="valid")
    return float(similarity[mask[border:-border, border:-border]].mean())


class DepthGuide:
    """The points that each training photo of a scene shows."""

    def __init__(self, points: Mapping[int, np.ndarray], extent: float) -> None:
        """`points` [M, 3], in the scene's frame, by the view's index; `extent` the scene's radius."""
        self._points = points
        self._extent = extent
        self._missing: Exception | None = None  # why there are no points, where the settings ask for them
        self._kept: OrderedDict[tuple[object, ...], Tensor] = OrderedDict()  # on a device

    @classmethod
    def of(cls, scene: Scene, config: DepthConfig) -> DepthGuide:
        """Return the guide that the settings ask for.

        It knows no points where they ask for none, and where the scene does not tell which photo shows which:
        a preset asks for it whatever the scene is, and a training can do without. See `note`.
        """
        if not config.weight > 0:
            return cls({}, scene.extent)
        try:
            shown = visible_points(scene)
        except (ValueError, OSError) as error:
            guide = cls({}, scene.extent)
            guide._missing = error
            return guide
        views = ((index, scene.views[index].name) for index in scene.train_indices)
        return cls({index: shown[name] for index, name in views if name in shown}, scene.extent)

    def note(self, config: TrainConfig) -> str | None:
        """Return a sentence where the settings ask for a guide and there is none; None: nothing to tell.

        That a scene has none is no news where nobody but the preset asks. That its files are damaged is.
        """
        of_preset = nearest_preset(config).settings.get("depth.weight") == config.depth.weight
        if self._missing is None or (of_preset and isinstance(self._missing, NoVisiblePoints)):
            return None
        return f"The depths of sparse points do not guide the training: {self._missing}."

    def penalty(
        self, view: TrainView, output: RenderOutput, config: TrainConfig, *, step: int
    ) -> Tensor | None:
        """Return what the loss of a output gains after `step` steps, a scalar; None: nothing."""
        weight = depth_weight(config.depth, step=step, steps=config.steps)
        maps = (output.alpha, output.depth_sum)
        return self._weighted(view.index, view.camera, *maps, view.mask, weight)

    def error(
        self, index: int, camera: Camera, alpha: Tensor, depth_sum: Tensor, mask: Tensor | None = None
    ) -> Tensor | None:
        """Return how wrong the drawn depths are at the points that the view `index` shows, a scalar.

        It is the mean of |1/drawn - 1/true| in units of 1/extent, over the points at whose pixel more than
        half is covered and that `mask` [H, W] bool does not leave out; `alpha` and `depth_sum` [H, W] as of
        `RenderOutput`. It is 0 where there is no such point, and None where none of the view is known. A GPU
        is not waited for.
        """
        return self._weighted(index, camera, alpha, depth_sum, mask, 1.0)

    def _weighted(
        self, index: int, camera: Camera, alpha: Tensor, depth_sum: Tensor, mask: Tensor | None, weight: float
    ) -> Tensor | None:
        """Return `weight` times the `error`."""
        points = self._points_of(index, alpha)
        if points is None:
            return None
        depth_error = training_stages_for(alpha).depth_error
        unit = weight * self._extent
        return depth_error(alpha, depth_sum, points, camera=camera, mask=mask, unit=unit)

    def _points_of(self, index: int, like: Tensor) -> Tensor | None:
        """Return the points of a view, [M, 3] on the device of `like`; None: none are known.

        Those of the last views are kept there.
        """
        points = self._points.get(index)
        if points is None:
            return None
        key = (index, like.device, like.dtype)
        if key not in self._kept:
            there = to_device(torch.from_numpy(np.ascontiguousarray(points)).to(like.dtype), like.device)
            self._kept[key] = there
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


def depth_weight(config: DepthConfig, *, step: int, steps: int) -> float:
    """Return the weight of the guide after `step` of `steps` steps: it falls exponentially."""
    return config.weight * config.weight_decay ** min(step / max(steps, 1), 1.0)
