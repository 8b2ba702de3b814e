"""gsplat and fused-ssim on our tensors, where they can be imported.

python tests/bench/gpu_peers.py NAME     whether NAME (gsplat, fused_ssim) works here, in a small case
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable
from typing import TypeVar

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from gpu_workloads import SSIM_WEIGHT, Workload, cloud, noise
from torch import Tensor

from splatstudio.optimization.optim import BETA1, BETA2, EPS, learning_rates
from splatstudio.settings.config import OptimConfig

PEERS = ("gsplat", "fused_ssim")
T = TypeVar("T")


def installed() -> list[str]:
    """Return the names of the peers that are installed."""
    return [name for name in PEERS if importlib.util.find_spec(name) is not None]


def unless_it_fails(name: str, work: Callable[[], T]) -> T | None:
    """Return what a peer's work returns; None, with a line that says why, where it has none to return.

    A peer of another version than ours was written for, or one that runs out of memory, ends no benchmark.
    """
    try:
        return work()
    except (ImportError, TypeError, AttributeError, AssertionError, ValueError, RuntimeError) as error:
        print(f"{name} did not work: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
        return None


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
    """Return a step as gsplat's own trainer makes it: its rasterizer, fused-ssim, torch's fused Adam.

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


def main() -> None:
    """Run one peer on a small case; the exit status says whether it works."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("name", choices=PEERS)
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args()
    if given.name not in installed():
        raise SystemExit(f"{given.name} is not installed")
    workload = cloud(1000, (64, 48), torch.device(given.device))
    if given.name == "gsplat":
        gsplat_picture(workload)().sum().backward()
    else:
        image = noise(workload.camera, workload.gaussians.device)
        fused_ssim_of(image, 0.5 * image)()
    print(f"{given.name} works")


if __name__ == "__main__":
    main()
