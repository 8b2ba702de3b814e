"""gsplat and fused-ssim on our tensors, where they can be imported."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable

import torch
from gpu_workloads import SSIM_WEIGHT, Workload, noise
from torch import Tensor

from splatstudio.config import OptimConfig
from splatstudio.optim import BETA1, BETA2, EPS, learning_rates


def has_gsplat() -> bool:
    """Return whether gsplat is installed."""
    return importlib.util.find_spec("gsplat") is not None


def has_fused_ssim() -> bool:
    """Return whether fused-ssim is installed."""
    return importlib.util.find_spec("fused_ssim") is not None


def gsplat_picture(workload: Workload) -> Callable[[], Tensor]:
    """Return gsplat's rendering of the same tensors, [H, W, 3]."""
    from gsplat import rasterization  # pyright: ignore[reportMissingImports]

    g, view = workload.gaussians, workload.camera
    viewmat = torch.tensor(view.viewmat, dtype=torch.float32, device=g.device)[None]
    K = torch.tensor(view.K, dtype=torch.float32, device=g.device)[None]

    def picture() -> Tensor:
        colors = torch.cat([g.sh0, g.shN], dim=1)
        return rasterization(
            g.means,
            g.quats,
            g.scales.exp(),
            g.opacities.sigmoid(),
            colors,
            viewmat,
            K,
            view.width,
            view.height,
            sh_degree=3,
            packed=False,
        )[0][0]

    return picture


def gsplat_step(workload: Workload) -> Callable[[], object]:
    """Return a step as gsplat's own trainer makes it: its rasteriser, fused-ssim, torch's fused Adam.

    Needs both.
    """
    from fused_ssim import fused_ssim  # pyright: ignore[reportMissingImports]

    picture, target = gsplat_picture(workload), noise(workload.camera, workload.gaussians.device)
    rates = learning_rates(OptimConfig(), extent=1.0, step=0, steps=30_000)
    tensors = workload.gaussians.tensors()
    adam = torch.optim.Adam(
        [{"params": [tensor], "lr": rates[name]} for name, tensor in tensors.items()],
        betas=(BETA1, BETA2),
        eps=EPS,
        fused=True,
    )
    batch = target.permute(2, 0, 1)[None].contiguous()

    def step() -> None:
        rgb = picture()
        similarity = fused_ssim(rgb.permute(2, 0, 1)[None].contiguous(), batch, padding="valid")
        loss = (1 - SSIM_WEIGHT) * (rgb - target).abs().mean() + SSIM_WEIGHT * (1 - similarity)
        adam.zero_grad(set_to_none=True)
        loss.backward()
        adam.step()

    return step


def fused_ssim_of(image: Tensor, target: Tensor) -> Callable[[], object]:
    """Return fused-ssim's value and gradient of the same images [H, W, 3]."""
    from fused_ssim import fused_ssim  # pyright: ignore[reportMissingImports]

    ours, other = (tensor.detach().permute(2, 0, 1)[None].contiguous() for tensor in (image, target))
    ours.requires_grad_()

    def work() -> None:
        ours.grad = None
        fused_ssim(ours, other).backward()

    return work
