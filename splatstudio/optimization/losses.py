"""How unlike a rendering and a photograph are: the training loss and the scores of an evaluation."""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.kernels import reference
from splatstudio.rendering.render import stages_for

ROWS_AT_ONCE = 256


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

    `mask` [H, W] bool: outside it the image is taken to equal the target, and only the windows centred inside
    count. An empty mask gives NaN. Raises ValueError for an image with a side below 11 pixels.
    """
    image, target = image.clamp(0.0, 1.0), target.clamp(0.0, 1.0)
    if mask is None:
        return float(stages_for(image).ssim(image, target, padding="valid"))
    border = reference.SSIM_WINDOW // 2
    similarity = reference.ssim_map(torch.where(mask[..., None], image, target), target, padding="valid")
    return float(similarity[mask[border:-border, border:-border]].mean())
