"""Time one training iteration and its parts on a fixed workload; prints one line of JSON.

python tests/bench/step.py --ply model.ply --scene SCENE --downscale 1 --threads 2 --json

The model (or, without --ply, the scene's points) is drawn by the scene's training cameras in turn and
compared with their photos, so that Adam also makes up for steps of what was out of sight; --camera N
keeps to one camera. Times are medians over all steps, wall clock. `one_camera_iteration_ms`, the rasterizer
alone, pairs and size are those of camera N, by default the scene's first. `*_ns_per_pair` are
core-nanoseconds: wall time of the rasterizer times threads, over the Gaussian-pixel pairs that were
composited.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.evaluation.evaluate import target_of
from splatstudio.formats.ply import read_ply
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.initialize import from_points
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import bilateral_grid, count_seen, depth_error, drop_out
from splatstudio.kernels.stages import (
    ALPHA_THRESHOLD,
    TRANSMITTANCE_STOP,
    Projected,
    ProjectSettings,
    RasterSettings,
)
from splatstudio.optimization.gradients import apply_gradients, backward, draw, gradient_of_pose
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.optim import SplatAdam, learning_rates
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo_uploads import pixels_of
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import OptimConfig

# Floating-point operations of the rasterizer's inner loops (csrc/cpu/raster_lanes.cpp) for one pixel.
FORWARD_FLOP, BACKWARD_FLOP = 26, 40
COUNTING_TILE = 32  # px

Clock = Callable[[], float]  # of the wall, or of the processor
Example = tuple[Camera, Tensor, Tensor | None]  # a photo [H, W, 3] with its camera and mask


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--ply", type=Path, help="the model, in the scene's own frame; default: its points")
    parser.add_argument("--scene", type=Path, required=True)
    parser.add_argument("--downscale", type=int, default=1)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--repeats", type=int, default=7, help="steps with each camera that are measured")
    parser.add_argument("--camera", type=int, help="draw by this camera alone, counted from 0")
    parser.add_argument("--cameras", type=int, default=8, help="how many take turns at most; default 8")
    parser.add_argument("--every", type=int, default=1, help="keep every n-th Gaussian")
    parser.add_argument(
        "--scaling", action="store_true", help="also one thread against --threads, in turns: thread_scaling"
    )
    parser.add_argument(
        "--million", action="store_true", help="copies of the model, a million Gaussians, at a megapixel"
    )
    parser.add_argument("--json", action="store_true", help="print JSON (the default: names and values)")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    scene = load_scene(arguments.scene, downscale=arguments.downscale)
    model = load_model(scene, arguments.ply)[:: arguments.every]
    numbers = camera_numbers(scene, arguments.camera, arguments.cameras)
    example, *examples = [example_of(scene, number) for number in (arguments.camera or 0, *numbers)]
    if arguments.million:
        model, example = a_million(model), at_a_megapixel(example)
        examples = [at_a_megapixel(other) for other in examples]
    report = measure(example, examples, model, arguments.repeats)
    report["cameras"] = " ".join(map(str, numbers))
    report["threads"] = arguments.threads
    if arguments.scaling:
        report["thread_scaling"] = round(thread_scaling(examples, model, arguments.threads), 3)
    if arguments.json:
        print(json.dumps(report))
    else:
        print("\n".join(f"{name:24} {value}" for name, value in report.items()))


def load_model(scene: Scene, ply: Path | None) -> Gaussians:
    if ply is not None:
        return transformed(read_ply(ply).gaussians, scene.transform)
    generator = torch.Generator().manual_seed(0)
    return from_points(
        scene.points, scene.colors, sh_degree=3, init_scale=1.0, init_opacity=0.1, generator=generator
    )


def camera_numbers(scene: Scene, wanted: int | None, most: int) -> list[int]:
    """Return `wanted` alone, or at most `most` training cameras, evenly spread."""
    if wanted is not None:
        if not 0 <= wanted < len(scene.views):
            raise SystemExit(f"--camera {wanted}: the scene has cameras 0 to {len(scene.views) - 1}")
        return [wanted]
    training = scene.train_indices
    num = min(max(most, 1), len(training))
    return [training[i * len(training) // num] for i in range(num)]


def example_of(scene: Scene, number: int) -> Example:
    """Return the scene's photo `number`."""
    target, mask = target_of(pixels_of(scene.photo(number), torch.device("cpu")), (0.0, 0.0, 0.0))
    return scene.views[number].camera, target, mask


def at_a_megapixel(example: Example) -> Example:
    """Return the photo enlarged to a million pixels."""
    camera, target, _ = example
    factor = (1e6 / (camera.width * camera.height)) ** 0.5
    larger = camera.resized(round(camera.width * factor), round(camera.height * factor))
    size = (larger.height, larger.width)
    image = torch.nn.functional.interpolate(target.permute(2, 0, 1)[None], size=size, mode="bilinear")
    return larger, image[0].permute(1, 2, 0).contiguous(), None


def a_million(model: Gaussians) -> Gaussians:
    """Return a million Gaussians: copies, each moved by its own size, smaller as there are more of them."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.arange(1_000_000) % len(model)
    many = model[rows]
    offset = torch.randn(many.means.shape, generator=generator) * many.scales.exp()
    shrink = (len(model) / 1e6) ** (1 / 3)
    return replace(many, means=many.means + offset, scales=many.scales + math.log(shrink))


def measure(
    example: Example, examples: list[Example], model: Gaussians, repeats: int
) -> dict[str, float | int | str]:
    camera = example[0]
    stages = time_iteration(model, examples, repeats)
    # Of the process so far: scene, model, gradients, moments and a training step's scratch.
    peak_rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    one_camera = time_iteration(model, [example], repeats)
    raster_forward, raster_backward = time_rasterizer(model, camera, repeats)
    pairs = count_pairs(
        projected_by(model, camera), RasterSettings(camera.width, camera.height, torch.zeros(3))
    )
    threads, peak = torch.get_num_threads(), fma_peak()
    flop = pairs * (FORWARD_FLOP + BACKWARD_FLOP)
    return {
        "num_gaussians": len(model),
        "width": camera.width,
        "height": camera.height,
        "kernels": ops.native_version(),
        **{name: round(1e3 * seconds, 2) for name, seconds in stages.items()},
        "one_camera_iteration_ms": round(1e3 * one_camera["iteration_ms"], 2),
        "pose_gradient_ms": round(1e3 * time_pose_gradient(model, example, repeats), 2),
        "depth_error_ms": round(1e3 * time_depth_error(example, repeats), 3),
        "bilateral_grid_ms": round(1e3 * time_bilateral_grid(example, repeats), 3),
        "drop_out_ms": round(1e3 * time_drop_out(model, repeats), 3),
        "raster_forward_ms": round(1e3 * raster_forward, 2),
        "raster_backward_ms": round(1e3 * raster_backward, 2),
        "pairs": pairs,
        "forward_ns_per_pair": round(1e9 * raster_forward * threads / pairs, 3),
        "backward_ns_per_pair": round(1e9 * raster_backward * threads / pairs, 3),
        "fma_peak_share": round(flop / (raster_forward + raster_backward) / peak, 4),
        "fma_peak_gflops": round(peak / 1e9, 1),
        "peak_rss_mb": round(peak_rss_mb),
    }


def thread_scaling(examples: list[Example], model: Gaussians, threads: int, rounds: int = 5) -> float:
    """Return how many times as fast `threads` threads make an iteration as one does.

    Both are measured in turns, so that what else the machine does slows both; the best of each counts.
    """
    seconds: dict[int, list[float]] = {1: [], threads: []}
    for _ in range(rounds):
        for number, samples in seconds.items():
            torch.set_num_threads(number)
            samples.append(time_iteration(model, examples, repeats=3)["iteration_ms"])
    torch.set_num_threads(threads)
    return min(seconds[1]) / min(seconds[threads])


def median_time(action: Callable[[], object], repeats: int, clock: Clock = time.perf_counter) -> float:
    """Return the median of `repeats` times in seconds, after one unmeasured call."""
    action()
    times = []
    for _ in range(repeats):
        started = clock()
        action()
        times.append(clock() - started)
    return statistics.median(times)


def time_iteration(
    model: Gaussians, examples: list[Example], repeats: int, clock: Clock = time.perf_counter
) -> dict[str, float]:
    """Return the medians of a whole iteration and of its four stages, seconds.

    Each example is drawn `repeats` times, in turns, after a first turn that is not measured. The rest of the
    way back, from what was projected, is part of the optimizer's step.
    """
    params = model.map(lambda tensor: tensor.clone().requires_grad_())
    optimizer = SplatAdam.zeros(params)
    # Rates of 0: the same picture in every repetition, at the cost of any other rate.
    rates = dict.fromkeys(learning_rates(OptimConfig(), extent=1.0, step=0, steps=1), 0.0)
    grad2d, visible, radius2d = torch.zeros(3, len(model))
    parts: dict[str, list[float]] = {"forward_ms": [], "loss_ms": [], "backward_ms": [], "optimizer_ms": []}
    for camera, target, mask in examples * (repeats + 1):
        marks = [clock()]
        drawing = draw(params, optimizer, camera, RenderOptions(), observed=True)
        marks.append(clock())
        loss = photometric(drawing.rgb, target, ssim_weight=0.2, mask=mask)
        marks.append(clock())
        gradients = backward(drawing, loss)
        marks.append(clock())
        apply_gradients(drawing, gradients, optimizer, rates)
        assert gradients.means2d is not None
        size = (camera.width, camera.height)
        count_seen(gradients.means2d, drawing.radii, size, grad2d, visible, radius2d)
        marks.append(clock())
        del drawing, loss, gradients
        for number, samples in enumerate(parts.values()):
            samples.append(marks[number + 1] - marks[number])
    iterations = [sum(samples) for samples in zip(*parts.values(), strict=True)]
    medians = {name: statistics.median(samples[len(examples) :]) for name, samples in parts.items()}
    return {"iteration_ms": statistics.median(iterations[len(examples) :]), **medians}


def time_pose_gradient(model: Gaussians, example: Example, repeats: int) -> float:
    """Return the seconds that a step takes longer where the camera's place is learned."""
    camera, target, mask = example
    params = model.map(lambda tensor: tensor.clone().requires_grad_())
    drawing = draw(params, SplatAdam.zeros(params), camera, RenderOptions(), observed=False)
    gradients = backward(drawing, photometric(drawing.rgb, target, ssim_weight=0.2, mask=mask))
    return median_time(lambda: gradient_of_pose(drawing, gradients), repeats)


def time_depth_error(example: Example, repeats: int, num_points: int = 2000) -> float:
    """Return the seconds that a step takes longer where the depths of points guide it."""
    camera, random = example[0], torch.Generator().manual_seed(0)
    offsets = torch.rand(num_points, 3, generator=random) - torch.tensor([0.5, 0.5, -1.0])
    rotation, center = (torch.from_numpy(each).float() for each in (camera.viewmat[:3, :3], camera.position))
    points = center + offsets @ rotation
    maps = [torch.full((camera.height, camera.width), value, requires_grad=True) for value in (0.9, 1.2)]
    return median_time(
        lambda: torch.autograd.grad(depth_error(maps[0], maps[1], points, camera=camera), maps), repeats
    )


def time_bilateral_grid(example: Example, repeats: int) -> float:
    """Return the seconds that a step takes longer where it learns exposures by place and brightness."""
    rgb = example[1].clone().requires_grad_()
    grid = torch.zeros(12, 2, 4, 4, requires_grad=True)
    v_colors = torch.ones_like(rgb)
    return median_time(lambda: torch.autograd.grad(bilateral_grid(rgb, grid), (rgb, grid), v_colors), repeats)


def time_drop_out(model: Gaussians, repeats: int) -> float:
    """Return the seconds that a step takes longer where it leaves out a share of the Gaussians."""
    keys = torch.arange(len(model))
    return median_time(lambda: drop_out(model.opacities, keys, seed=1, rate=0.1), repeats)


def projected_by(model: Gaussians, camera: Camera) -> Projected:
    """Return the model's splats in a camera's picture."""
    with torch.no_grad():
        return ops.project(
            model.means,
            model.quats,
            model.scales.exp(),
            model.opacities.sigmoid(),
            model.sh0,
            model.shN,
            camera=camera,
            settings=ProjectSettings(sh_degree=model.sh_degree),
        )


def time_rasterizer(
    model: Gaussians, camera: Camera, repeats: int, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """Return the rasterizer's forward and backward seconds, binning included."""
    projected = projected_by(model, camera)
    leaves = Projected(
        *(tensor.requires_grad_(tensor.is_floating_point()) for tensor in vars(projected).values())
    )
    settings = RasterSettings(camera.width, camera.height, torch.zeros(3))
    forward = median_time(lambda: ops.rasterize(leaves, settings), repeats, clock)
    raster = ops.rasterize(leaves, settings)
    v_rgb = torch.randn(raster.rgb.shape, generator=torch.Generator().manual_seed(0))
    backward = median_time(lambda: raster.rgb.backward(v_rgb, retain_graph=True), repeats, clock)
    return forward, backward


@torch.no_grad()
def count_pairs(projected: Projected, settings: RasterSettings) -> int:
    """Return the number of (Gaussian, pixel) pairs that are composited, by the definition."""
    visible = (projected.radii > 0).all(dim=1).nonzero()[:, 0]
    order = visible[torch.argsort(projected.depths[visible], stable=True)]
    centers, radii = projected.means2d[order], projected.radii[order]
    low, high = centers - radii, centers + radii
    pairs = 0
    for top in range(0, settings.height, COUNTING_TILE):
        for left in range(0, settings.width, COUNTING_TILE):
            bottom = min(top + COUNTING_TILE, settings.height)
            right = min(left + COUNTING_TILE, settings.width)
            inside = (high[:, 0] >= left) & (low[:, 0] <= right) & (high[:, 1] >= top) & (low[:, 1] <= bottom)
            rows = order[inside]
            y, x = torch.meshgrid(
                torch.arange(top, bottom) + 0.5, torch.arange(left, right) + 0.5, indexing="ij"
            )
            dx, dy = (projected.means2d[rows, :, None, None] - torch.stack([x, y])).unbind(1)
            a, b, c = projected.conics[rows].T[:, :, None, None]
            sigma = 0.5 * (a * dx * dx + c * dy * dy) + b * dx * dy
            alpha = (projected.opacities[rows, None, None] * torch.exp(-sigma)).clamp_max(settings.max_alpha)
            alpha = torch.where((sigma >= 0) & (alpha >= ALPHA_THRESHOLD), alpha, 0.0)
            unfinished = (1.0 - alpha).cumprod(dim=0) > TRANSMITTANCE_STOP
            pairs += int(((alpha > 0) & unfinished).sum())
    return pairs


def fma_peak(size: int = 1024) -> float:
    """Return the best rate of a matrix product on torch's threads, floating-point operations a second."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = min(median_time(lambda: a @ b, 3) for _ in range(5))
    return 2.0 * size**3 / best


if __name__ == "__main__":
    main()
