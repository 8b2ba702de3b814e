"""Scores that follow how people see differences, and need no network's weights: MS-SSIM and FLIP."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splatstudio.kernels.reference import SSIM_WINDOW, ssim_factors

# Wang, Simoncelli and Bovik 2003, section 3.2: of the finest scale first.
SCALE_WEIGHTS = (0.0448, 0.2856, 0.3001, 0.2363, 0.1333)
MIN_SIDE = SSIM_WINDOW * 2 ** (len(SCALE_WEIGHTS) - 1)  # px, so that a window fits into the coarsest scale

NO_FLIP = "FLIP is skipped: flip-evaluator is not installed here; pip install flip-evaluator"


@torch.no_grad()
def ms_ssim(image: Tensor, target: Tensor, mask: Tensor | None = None) -> float | None:
    """Return the structural similarity over five scales of images [H, W, C], clamped to 0..1.

    Each scale is the mean of 2 x 2 pixels of the one before; contrast and structure count at all of them,
    brightness at the coarsest; windows as of SSIM, mean over the channels. `mask` [H, W] bool: outside it the
    image is taken to equal the target, and the windows centered inside count; an empty one gives NaN. None
    for an image with a side below 176 pixels (Wang, Simoncelli and Bovik 2003).
    """
    if min(image.shape[:2]) < MIN_SIDE:
        return None
    image, target = image.clamp(0.0, 1.0), target.clamp(0.0, 1.0)
    inside = torch.ones(image.shape[:2], dtype=torch.bool, device=image.device) if mask is None else mask
    image = torch.where(inside[..., None], image, target)
    product, border = torch.ones(image.shape[2], dtype=torch.float64, device=image.device), SSIM_WINDOW // 2
    for scale, weight in enumerate(SCALE_WEIGHTS):
        coarsest = scale == len(SCALE_WEIGHTS) - 1
        brightness, structure = ssim_factors(image, target)
        similarity = brightness * structure if coarsest else structure
        mean = similarity[inside[border:-border, border:-border]].double().mean(dim=0)
        product *= mean.clamp_min(0.0) ** weight  # NaN stays NaN
        if not coarsest:
            image, target = _halved(image), _halved(target)
            inside = _halved(inside[..., None].float())[..., 0] > 0.0
    return float(product.mean())


def flip_error(image: Tensor, target: Tensor, mask: Tensor | None = None) -> float:
    """Return the mean FLIP error of an image [H, W, 3] against the target, 0 (equal) to 1, clamped to 0..1.

    How strongly an observer sees the two alternate on a screen with 67 pixels a degree (LDR-FLIP, Andersson
    et al. 2020). `mask` [H, W] bool: outside it the image is taken to equal the target, and the pixels inside
    count. NaN for an image with a value that is no number, and for an empty mask. Raises ImportError without
    flip-evaluator.
    """
    from flip_evaluator import evaluate

    if mask is not None:
        image = torch.where(mask[..., None], image, target)
    image, target = image.float().clamp(0.0, 1.0), target.float().clamp(0.0, 1.0)
    if image.isnan().any() or target.isnan().any():
        return float("nan")
    test, reference = (np.ascontiguousarray(each.cpu()) for each in (image, target))
    errors, _, _ = evaluate(reference, test, "LDR", applyMagma=False)
    errors = errors[..., 0] if mask is None else errors[mask.cpu().numpy(), 0]
    return float(errors.mean(dtype=np.float64)) if errors.size else float("nan")


def has_flip() -> bool:
    """Return whether `flip_error` can be computed here."""
    return find_spec("flip_evaluator") is not None


def _halved(image: Tensor) -> Tensor:
    """Return the means of 2 x 2 pixels of an image [H, W, C]; an odd row or column at the end is left out."""
    return functional.avg_pool2d(image.permute(2, 0, 1)[None], 2)[0].permute(1, 2, 0)
