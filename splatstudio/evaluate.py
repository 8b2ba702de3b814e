"""How well a model shows the photographs that it was not trained on."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splatstudio.durable import write_json_durably
from splatstudio.gaussians import Gaussians
from splatstudio.losses import psnr, ssim
from splatstudio.rendering import RenderOptions, render
from splatstudio.scene.photo import Photo
from splatstudio.scene.scene import Scene


@dataclass(frozen=True)
class ImageScore:
    """The scores of one photograph: PSNR in dB, SSIM up to 1."""

    name: str
    psnr: float
    ssim: float


@dataclass(frozen=True)
class Evaluation:
    """The scores of some photographs and their means over the photographs."""

    psnr: float
    ssim: float
    num_gaussians: int
    images: tuple[ImageScore, ...]
    seconds_per_image: float

    def to_json(self) -> dict[str, Any]:
        """Return the keys psnr, ssim, num_gaussians, seconds_per_image and images (name, psnr, ssim)."""
        return {**asdict(self), "images": [asdict(score) for score in self.images]}


@torch.no_grad()
def evaluate(
    gaussians: Gaussians,
    scene: Scene,
    *,
    indices: Sequence[int] | None = None,
    options: RenderOptions = RenderOptions(),
    on_image: Callable[[ImageScore, Tensor], None] | None = None,
) -> Evaluation:
    """Render `gaussians` (in the scene's frame) from the test cameras and compare with the photographs.

    PSNR is -10 log10 of the mean squared error over pixels and channels of the float render, clamped to 0..1,
    against the 8-bit photograph / 255. SSIM (Wang et al. 2004) has an 11x11 Gaussian window of sigma 1.5, no
    padding, and is averaged over windows and channels. Where a photograph has a mask, only pixels (windows
    centred) inside count; one that is masked altogether is left out. Where it has alpha, it is put over
    the background of `options`. The means are over images. `indices` defaults to the test views.
    `seconds_per_image` counts rendering alone. `on_image` gets each score and its render [H, W, 3].
    Raises ValueError when there is nothing to compare with.
    """
    indices = scene.test_indices if indices is None else indices
    scores: list[ImageScore] = []
    seconds = 0.0
    for index in indices:
        view = scene.views[index]
        target, mask = target_image(scene.photo(index), options.background, gaussians.device)
        if mask is not None and not mask.any():
            continue
        started = time.perf_counter()
        rgb = render(gaussians, view.camera, options).rgb
        seconds += time.perf_counter() - started
        scores.append(ImageScore(view.name, psnr(rgb, target, mask), ssim(rgb, target, mask)))
        if on_image is not None:
            on_image(scores[-1], rgb)
    if not scores:
        raise ValueError(
            f"{scene.path} has no test photographs to compare with: load it with test_every of 2 or more"
        )
    return Evaluation(
        psnr=sum(score.psnr for score in scores) / len(scores),
        ssim=sum(score.ssim for score in scores) / len(scores),
        num_gaussians=len(gaussians),
        images=tuple(scores),
        seconds_per_image=seconds / len(scores),
    )


def target_image(
    photo: Photo, background: Sequence[float], device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """Return what a render of `photo` should look like, [H, W, 3] float32 in 0..1, and its mask [H, W] bool.

    A photograph with alpha (not premultiplied) is put over `background`, linear RGB.
    """
    rgb = torch.tensor(photo.rgb).to(device).float() / 255.0
    if photo.alpha is not None:
        alpha = torch.tensor(photo.alpha).to(device)[..., None].float() / 255.0
        rgb = alpha * rgb + (1.0 - alpha) * rgb.new_tensor(tuple(background))
    mask = None if photo.mask is None else torch.tensor(photo.mask).to(device)
    return rgb, mask


def write_evaluation(run_dir: Path, step: int, evaluation: Evaluation) -> Path:
    """Write eval/step_N.json of a run folder and return its path."""
    folder = Path(run_dir) / "eval"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{step:08d}.json"
    write_json_durably(path, {"step": step, **evaluation.to_json()})
    return path
