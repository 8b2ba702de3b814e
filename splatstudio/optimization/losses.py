"""How unlike a rendering and a photo are: the training loss and the scores of an evaluation."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from splatstudio.cameras.camera import Camera
from splatstudio.devices.accelerator import is_accelerator
from splatstudio.devices.transfer import to_device
from splatstudio.kernels import reference
from splatstudio.optimization.gradients import RenderOutput, TrainView
from splatstudio.rendering.render import stages_for
from splatstudio.scene.colmap import NoVisiblePoints, visible_points
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import DepthConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.presets import nearest_preset

ROWS_AT_ONCE = 256

MAX_KEPT = 512  # cameras, of which it is kept where they show the points: 12 bytes a point
MIN_ALPHA = 0.5  # where less is drawn there is no surface yet whose depth could be judged


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
        self._kept: OrderedDict[tuple[object, ...], tuple[Tensor, Tensor] | None] = OrderedDict()

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
        seen = self._points_in(view.index, view.camera, output.alpha)
        if seen is None:
            return None
        weight = depth_weight(config.depth, step=step, steps=config.steps)
        return self._weighted(seen, output.alpha, output.depth_sum, view.mask, weight)

    def error(
        self, index: int, camera: Camera, alpha: Tensor, depth_sum: Tensor, mask: Tensor | None = None
    ) -> Tensor | None:
        """Return how wrong the drawn depths are at the points that the view `index` shows, a scalar.

        It is the mean of |1/drawn - 1/true| in units of 1/extent, over the points at whose pixel more than
        half is covered and that `mask` [H, W] bool does not leave out; `alpha` and `depth_sum` [H, W] as of
        `RenderOutput`. It is 0 where there is no such point, and None where the camera shows none at all.
        A GPU is not waited for.
        """
        seen = self._points_in(index, camera, alpha)
        return None if seen is None else self._weighted(seen, alpha, depth_sum, mask, 1.0)

    def _weighted(
        self,
        seen: tuple[Tensor, Tensor],
        alpha: Tensor,
        depth_sum: Tensor,
        mask: Tensor | None,
        weight: float,
    ) -> Tensor:
        """Return `weight` times the error at the pixels and inverse depths `seen`, a scalar."""
        if is_accelerator(alpha.device):
            unit = weight * self._extent
            return _InverseDepthError.apply(alpha, depth_sum, *seen, mask, unit)  # type: ignore[return-value]
        place, inverse = seen
        # By `index_select`, whose gradients are summed in the order of the points. Those of an index come
        # from several threads where there are tens of thousands, in another order each time.
        covered = alpha.reshape(-1).index_select(0, place)
        counts = (covered.detach() > MIN_ALPHA).to(alpha)
        if mask is not None:
            counts = counts * mask.reshape(-1)[place].to(counts)
        drawn = depth_sum.reshape(-1).index_select(0, place) / covered.clamp_min(1e-6)
        wrong = (1.0 / drawn.clamp_min(1e-6) - inverse).abs() * self._extent
        return (wrong * counts).sum() / counts.sum().clamp_min(1.0) * weight

    def _points_in(self, index: int, camera: Camera, like: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return at which pixels of a camera the points of a view lie, and 1/depths there; None: at none.

        They are on the device of `like`. Cameras that stay where they are come again and again: what was
        worked out for the last ones is kept.
        """
        points = self._points.get(index)
        if points is None:
            return None
        key = (index, camera.width, camera.height, camera.K.tobytes(), camera.viewmat.tobytes(), like.device)
        if key not in self._kept:
            self._kept[key] = _seen_by(camera, points, like)
            while len(self._kept) > MAX_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]


class _InverseDepthError(torch.autograd.Function):
    """What `DepthGuide` measures, in units of 1/`unit`, for accelerators.

    There a step waits for the host, which takes longest to give the operators of autograd, one by one. The
    value and the gradients differ by rounding.
    """

    @staticmethod
    def forward(ctx, alpha, depth_sum, place, inverse, mask, unit):
        # The least is below any depth of what is drawn, and keeps what does not count finite.
        covered, depths = alpha.take(place), depth_sum.take(place).clamp_min_(1e-10)
        counts = covered > MIN_ALPHA
        if mask is not None:
            counts &= mask.take(place)
        farther = torch.addcdiv(inverse, covered, depths, value=-1.0).mul_(counts)
        num = counts.sum(dtype=alpha.dtype).clamp_min_(1.0).div_(unit)
        error = torch.linalg.vector_norm(farther, 1).div_(num)
        ctx.save_for_backward(place, farther.sgn_(), covered, depths, num)
        ctx.shape = alpha.shape
        return error

    @staticmethod
    @once_differentiable
    def backward(ctx, v_error):
        place, signs, covered, depths, num = ctx.saved_tensors
        gradients = signs.new_zeros((2, ctx.shape.numel()))
        v_alpha, v_depth_sum = gradients.unbind()
        # The points of a pixel differ in nothing but the sign. Whole numbers have one sum in whatever order a
        # device adds them; then each point writes the gradient of its pixel.
        v_alpha.index_add_(0, place, signs)
        v_points = v_alpha.take(place).div_(depths).mul_(v_error / num)
        v_depth_sum.index_copy_(0, place, (v_points * covered).div_(depths))
        v_alpha.index_copy_(0, place, v_points.neg_())
        return v_alpha.view(ctx.shape), v_depth_sum.view(ctx.shape), None, None, None, None


def _seen_by(camera: Camera, points: np.ndarray, like: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the places, row times width plus column, and 1/depths of `points` [M, 3] in a camera."""
    seen = points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
    seen = _only(seen, seen[:, 2] > 0)
    pixels = seen @ camera.K.T
    columns, rows = np.floor(pixels[:, 0] / pixels[:, 2]), np.floor(pixels[:, 1] / pixels[:, 2])
    inside = (columns >= 0) & (columns < camera.width) & (rows >= 0) & (rows < camera.height)
    place = _only(rows * camera.width + columns, inside).astype(np.int64)
    if len(place) == 0:
        return None
    inverse = 1.0 / _only(seen[:, 2], inside).astype(str(like.dtype).removeprefix("torch."))
    # In one copy: in a training whose pictures grow, that of each step has another size.
    packed = np.concatenate([place.view(np.uint8), inverse.view(np.uint8)])
    both = to_device(torch.from_numpy(packed), like.device)
    return both[: place.nbytes].view(torch.int64), both[place.nbytes :].view(like.dtype)


def _only(rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Return the rows that are `chosen`; mostly all are, and a copy takes several times as long as a look."""
    return rows if chosen.all() else rows[chosen]


def depth_weight(config: DepthConfig, *, step: int, steps: int) -> float:
    """Return the weight of the guide after `step` of `steps` steps: it falls exponentially."""
    return config.weight * config.weight_decay ** min(step / max(steps, 1), 1.0)
