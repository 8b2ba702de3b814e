"""Time the CUDA kernels on the GPU in use, with CUDA events; prints a short table with ratios.

    python tests/bench/gpu.py [--millions 1 3 6] [--train SCENE ...]

The workload is a synthetic cloud of splats as large as those of a trained scene; gsplat and fused-ssim, where
they can be imported, are timed on the same tensors (`pip download` their wheels elsewhere and install them
with --no-index on a machine without a network).
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from splatstudio import ops
from splatstudio.camera import Camera
from splatstudio.config import DensifyConfig, OptimConfig, TrainConfig
from splatstudio.descent import backward, draw, improve
from splatstudio.evaluate import evaluate
from splatstudio.gaussians import Gaussians
from splatstudio.losses import photometric
from splatstudio.optim import SplatAdam, learning_rates
from splatstudio.rendering import RenderOptions, options_for_display, render
from splatstudio.scene import load_scene
from splatstudio.trainer import Trainer

SIZES = {"1080p": (1920, 1080), "4K": (3840, 2160)}
REPEATS = 15


def cloud(num: int) -> Gaussians:
    """Return `num` splats in a box before the camera, about 2 px wide at 1080p and a million of them."""
    random = torch.Generator("cuda").manual_seed(0)
    size = math.log(0.004 * (1e6 / num) ** (1 / 3))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device="cuda")

    means = 2.0 * torch.rand(num, 3, generator=random, device="cuda") - 1.0
    return Gaussians(
        means=means,
        quats=normal(num, 4),
        scales=size + 0.5 * normal(num, 3),
        opacities=normal(num),
        sh0=0.5 * normal(num, 1, 3),
        shN=0.1 * normal(num, 15, 3),
    )


def camera(width: int, height: int) -> Camera:
    """Return a camera that has the box of `cloud` fill its picture."""
    viewmat = np.eye(4)
    viewmat[2, 3] = 2.2
    K = np.array([[0.9 * width, 0.0, width / 2], [0.0, 0.9 * width, height / 2], [0.0, 0.0, 1.0]])
    return Camera(viewmat, K, width, height)


def milliseconds(work: Callable[[], object]) -> float:
    """Return the median time of `work` on the GPU."""
    times = []
    for _ in range(REPEATS + 3):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times[3:])


def leaves(gaussians: Gaussians) -> Gaussians:
    """Return the Gaussians with tensors that take gradients."""
    return gaussians.map(lambda tensor: tensor.detach().requires_grad_())


def forward_and_backward(picture: Callable[[], Tensor], inputs: list[Tensor]) -> tuple[float, float]:
    """Return the median milliseconds of a picture and of its way back."""
    forward = milliseconds(picture)
    rgb = picture()
    v_rgb = torch.rand_like(rgb)
    back = milliseconds(lambda: torch.autograd.grad(rgb, inputs, v_rgb, retain_graph=True))
    return forward, back


def gsplat_picture(gaussians: Gaussians, view: Camera) -> Callable[[], Tensor]:
    """Return gsplat's rendering of the same tensors."""
    from gsplat import rasterization  # pyright: ignore[reportMissingImports]

    viewmat = torch.tensor(view.viewmat, dtype=torch.float32, device="cuda")[None]
    K = torch.tensor(view.K, dtype=torch.float32, device="cuda")[None]
    g = gaussians

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
        )[0]

    return picture


def row(name: str, ours: float, peer: float | None = None, unit: str = "ms") -> None:
    """Print one line of the table."""
    compared = "" if peer is None else f"{peer:10.3f} {unit}   x {peer / ours:5.2f}"
    print(f"{name:36} {ours:10.3f} {unit} {compared}", flush=True)


def rasteriser_rows(millions: float, size: str) -> None:
    """Time forward, backward and a whole step."""
    gaussians, view = leaves(cloud(int(1e6 * millions))), camera(*SIZES[size])
    inputs = list(gaussians.tensors().values())
    torch.cuda.reset_peak_memory_stats()
    forward, back = forward_and_backward(lambda: render(gaussians, view).rgb, inputs)
    peer: tuple[float | None, float | None] = (None, None)
    if importlib.util.find_spec("gsplat"):
        peer = forward_and_backward(gsplat_picture(gaussians, view), inputs)
    label = f"{millions:g} M at {size}"
    row(f"forward, {label}", forward, peer[0])
    row(f"backward, {label}", back, peer[1])
    target = torch.rand(view.height, view.width, 3, device="cuda")
    optimizer = SplatAdam.zeros(gaussians)
    rates = learning_rates(OptimConfig(), extent=1.0, step=0, steps=30_000)

    def step() -> None:
        drawing = draw(gaussians, optimizer, view, RenderOptions(), observed=True)
        loss = photometric(drawing.rgb, target, ssim_weight=0.2)
        improve(drawing, backward(drawing, loss), optimizer, rates)

    torch.cuda.reset_peak_memory_stats()
    row(f"training step, {label}", milliseconds(step))
    row(f"peak memory of a step, {label}", torch.cuda.max_memory_allocated() / 2**30, unit="GiB")


def loss_rows() -> None:
    """Time the loss with its gradient."""
    image = torch.rand(1080, 1920, 3, device="cuda", requires_grad=True)
    target = torch.rand_like(image)
    ours = milliseconds(lambda: ops.ssim(image, target, padding="same").backward())
    peer = None
    if importlib.util.find_spec("fused_ssim"):
        from fused_ssim import fused_ssim  # pyright: ignore[reportMissingImports]

        theirs, other = (t.detach().permute(2, 0, 1)[None].contiguous() for t in (image, target))
        theirs.requires_grad_()
        peer = milliseconds(lambda: fused_ssim(theirs, other).backward())
    row("SSIM with gradient, 1080p", ours, peer)
    tensors = [torch.rand(59_000_000, device="cuda") for _ in range(4)]
    adam = torch.optim.Adam([tensors[0].clone().requires_grad_()], fused=True)
    adam.param_groups[0]["params"][0].grad = tensors[1]
    ours = milliseconds(lambda: ops.adam_step(*tensors, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-15, step=1))
    row("Adam, 1 M Gaussians (peer: torch)", ours, milliseconds(adam.step))


def training_rows(path: Path, steps: int) -> None:
    """Train a scene and evaluate it."""
    config = TrainConfig(steps=steps, downscale=2, eval_steps=(), save_steps=(), densify=DensifyConfig())
    scene = load_scene(path, downscale=config.downscale, test_every=config.test_every)
    trainer = Trainer(scene, config)
    started = time.perf_counter()
    for _ in range(steps):
        trainer.train_step()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    scores = evaluate(trainer.gaussians, scene, options=options_for_display(config))
    row(f"{path.name}, {steps} steps", seconds, unit="s")
    row(f"{path.name}, PSNR of the test photos", scores.psnr, unit="dB")
    trainer.close()


def main() -> None:
    """Parse the command line and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--millions", type=float, nargs="*", default=[1, 3, 6])
    parser.add_argument("--train", type=Path, nargs="*", default=[])
    parser.add_argument("--steps", type=int, default=7000)
    arguments = parser.parse_args()
    if not ops.has_cuda_kernels():
        raise SystemExit("no GPU, or the extension was built without CUDA kernels: see `splatstudio doctor`")
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}")
    print(f"{'':36} {'ours':>10}    {'peer':>10}      peer / ours")
    for millions in arguments.millions:
        for size in SIZES:
            rasteriser_rows(millions, size)
    loss_rows()
    for path in arguments.train:
        training_rows(path, arguments.steps)


if __name__ == "__main__":
    main()
