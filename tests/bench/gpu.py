"""Measure the kernels on the GPU in use; ends with a short table, ratios and whether the aims are met.

    python tests/bench/gpu.py [--seconds 300] [--train SCENE ...]
    python tests/bench/gpu.py --device cpu --tiny     a rehearsal without a GPU; its figures mean nothing

Drawn are copies of the oracle's garden (`shared/oracle` in the repository or beside it; without the file
these rows are left out) and a synthetic cloud. gsplat and fused-ssim, where they can be imported, do the same
with the same tensors; on_gpu.sh says how to bring them. What no time is left for is left out and said so.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from gpu_peers import PEERS, fused_ssim_of, gsplat_picture, gsplat_step, installed, unless_it_fails
from gpu_report import Aim, Clock, Report
from gpu_viewer import FRAMES_PER_SECOND, measure_viewer
from gpu_workloads import Workload, cloud, find_garden, garden, training_step

from splatstudio import ops
from splatstudio.config import TrainConfig
from splatstudio.evaluate import evaluate
from splatstudio.rendering import render
from splatstudio.scene import load_scene
from splatstudio.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
IN_A_ROW = 4  # steps that are timed together
TWICE, SSIM_AIM, MEMORY_AIM = Aim(ratio=2.0), Aim(ratio=1.3), Aim(most=1.0)
PAUSED_AIM, SLOWDOWN_AIM = Aim(most=1000 / 60), Aim(most=5.0)


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    millions: tuple[float, ...]
    sizes: dict[str, tuple[int, int]]
    steps: int
    downscale: int
    viewer_seconds: float

    @property
    def first_size(self) -> tuple[str, tuple[int, int]]:
        """Return name and size of the smaller pictures."""
        return next(iter(self.sizes.items()))


FULL = Extent((1, 3, 6), {"1080p": (1920, 1080), "4K": (3840, 2160)}, 7000, 2, 21.0)
TINY = Extent((0.001,), {"tiny": (64, 48)}, 3, 2, 0.2)


def rasteriser_rows(report: Report, clock: Clock, workload: Workload, label: str, peers: list[str]) -> None:
    """Time forward and way back of a picture, and a whole step with its memory."""
    inputs = list(workload.gaussians.tensors().values())

    def both(picture) -> tuple[float, float]:
        forward = clock.milliseconds(picture)
        rgb = picture()
        v_rgb = torch.rand_like(rgb)
        back = clock.milliseconds(lambda: torch.autograd.grad(rgb, inputs, v_rgb, retain_graph=True))
        return forward, back

    step = training_step(workload)
    peak = clock.peak_gigabytes(step)
    per_million = None if peak is None else peak / workload.millions
    forward, back = both(lambda: render(workload.gaussians, workload.camera).rgb)
    peer = None
    if "gsplat" in peers:
        peer = unless_it_fails("gsplat", lambda: both(gsplat_picture(workload)))
    report.add(f"forward, {label}", forward, "ms", peer=peer and peer[0], aim=TWICE)
    report.add(f"way back, {label}", back, "ms", peer=peer and peer[1], aim=TWICE)
    ours, theirs = clock.milliseconds(step, in_a_row=IN_A_ROW), None
    if set(PEERS) <= set(peers):
        theirs = unless_it_fails(
            "gsplat", lambda: clock.milliseconds(gsplat_step(workload), in_a_row=IN_A_ROW)
        )
    report.add(f"training step, {label}", ours, "ms", peer=theirs, aim=TWICE)
    report.add(f"memory a million, step, {label}", per_million, "GB", aim=MEMORY_AIM)


def loss_row(report: Report, clock: Clock, size: tuple[int, int], label: str, peers: list[str]) -> None:
    """Time SSIM and its gradient."""
    image = torch.rand(size[1], size[0], 3, device=clock.device, requires_grad=True)
    target = torch.rand_like(image)

    def work() -> None:
        image.grad = None
        ops.ssim(image, target, padding="same").backward()

    peer = None
    if "fused_ssim" in peers:
        peer = unless_it_fails("fused_ssim", lambda: clock.milliseconds(fused_ssim_of(image, target)))
    report.add(f"SSIM with gradient, {label}", clock.milliseconds(work), "ms", peer=peer, aim=SSIM_AIM)


def adam_row(report: Report, clock: Clock, millions: float) -> None:
    """Time a step of Adam on whole tensors, against torch's fused one."""
    tensors = [torch.rand(int(59e6 * millions), device=clock.device) for _ in range(4)]
    param = tensors[0].clone().requires_grad_()
    param.grad = tensors[1]
    peer = torch.optim.Adam([param], fused=True)
    ours = clock.milliseconds(
        lambda: ops.adam_step(*tensors, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-15, step=1)
    )
    report.add(
        f"Adam, {millions:g} M Gaussians (peer: torch)", ours, "ms", peer=clock.milliseconds(peer.step)
    )


def viewer_rows(report: Report, clock: Clock, workload: Workload, seconds: float, label: str) -> None:
    """Time pictures for a browser, paused and beside a training."""
    figures = measure_viewer(workload, training_step(workload), clock, seconds)
    report.add(f"viewer, paused, {label}", figures.paused, "ms", aim=PAUSED_AIM)
    report.add(f"viewer, while training, {label}", figures.training, "ms")
    report.add(f"viewer, pictures of {FRAMES_PER_SECOND} a second", figures.frames_per_second, "1/s")
    report.add("viewer, training is slower by", 100.0 * figures.slowdown, "%", aim=SLOWDOWN_AIM)


def training_rows(report: Report, clock: Clock, path: Path, config: TrainConfig, seconds: float) -> None:
    """Train a scene for at most `seconds` and evaluate it on its test photographs."""
    scene = load_scene(path, downscale=config.downscale, test_every=config.test_every)
    trainer = Trainer(scene, config, device=clock.device)
    try:
        started = time.perf_counter()
        while trainer.step < config.steps and time.perf_counter() < started + seconds:
            trainer.train_step()
        clock.wait()
        taken = time.perf_counter() - started
        scores = evaluate(trainer.gaussians, scene, options=trainer.display_options)
    finally:
        trainer.close()
    steps = f"{trainer.step} steps"
    if trainer.step < config.steps:
        steps = f"cut off at step {trainer.step} of {config.steps}"
    report.add(f"{path.name}, {steps}", taken, "s")
    report.add(f"{path.name}, PSNR of the test photographs", scores.psnr, "dB")
    report.add(f"{path.name}, Gaussians", trainer.num_gaussians / 1e6, "M")


def measure_pictures(report: Report, clock: Clock, extent: Extent, peers: list[str]) -> None:
    """Time the garden's tiles and the cloud, then the viewer on the first of them."""
    file = find_garden(ROOT)
    if file is None:
        report.leave_out("garden", "there is no shared/oracle with its file, in the repository or beside it")
    else:
        for size in extent.sizes:
            for millions in extent.millions:
                label = f"garden {millions:g} M, {size}"
                # The longest row, 6 M at 4K with its peer, is eight medians of at most 3 s each.
                if report.has_time(label, 24.0 if clock.device.type == "cuda" else 0.0):
                    num = round(1e6 * millions)
                    try:
                        workload = garden(file, num, extent.sizes[size], clock.device)
                        rasteriser_rows(report, clock, workload, label, peers)
                    except torch.OutOfMemoryError as error:
                        report.leave_out(label, str(error).splitlines()[0])
    name, size = extent.first_size
    num = round(1e6 * extent.millions[0])
    label = f"cloud {extent.millions[0]:g} M, {name}"
    if report.has_time(label, 10.0):
        rasteriser_rows(report, clock, cloud(num, size, clock.device), label, peers)
    loss_row(report, clock, size, name, peers)
    adam_row(report, clock, extent.millions[0])
    workload = cloud(num, size, clock.device) if file is None else garden(file, num, size, clock.device)
    label = f"{workload.name} {extent.millions[0]:g} M, {name}"
    if report.has_time(f"viewer, {label}", extent.viewer_seconds):
        viewer_rows(report, clock, workload, extent.viewer_seconds, label)


def measure_trainings(report: Report, clock: Clock, extent: Extent, scenes: list[Path]) -> None:
    """Train each scene in an equal share of the time that is left."""
    for number, path in enumerate(scenes):
        config = TrainConfig(steps=extent.steps, downscale=extent.downscale, eval_steps=(), save_steps=())
        if report.has_time(f"training on {path.name}", 5.0):
            seconds = 0.95 * report.seconds_left / (len(scenes) - number)
            training_rows(report, clock, path, config, seconds)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, measure, print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="about how long all of it may take")
    parser.add_argument("--train", type=Path, nargs="*", default=[], help="scenes to train")
    parser.add_argument("--millions", type=float, nargs="+", help="of Gaussians; default 1 3 6")
    parser.add_argument(
        "--peers", choices=PEERS, nargs="*", help="to compare with; default: those that are installed"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--tiny", action="store_true", help="a thousand Gaussians, pictures of 64 x 48, 3 steps"
    )
    given = parser.parse_args(arguments)
    if given.device == "cuda" and not ops.has_cuda_kernels():
        raise SystemExit("no GPU, or the extension was built without CUDA kernels: see `splatstudio doctor`")
    if given.device == "cpu" and not given.tiny:
        raise SystemExit(
            "on the CPU this is only a rehearsal: add --tiny (tests/bench/step.py measures the CPU)"
        )
    peers = installed() if given.peers is None else given.peers
    extent = TINY if given.tiny else FULL
    if given.millions:
        extent = Extent(
            tuple(given.millions), extent.sizes, extent.steps, extent.downscale, extent.viewer_seconds
        )
    clock = Clock(torch.device(given.device))
    # Half of the time is for the trainings.
    report = Report(given.seconds * (0.5 if given.train else 1.0), judges=given.device == "cuda")
    end = time.monotonic() + given.seconds
    measure_pictures(report, clock, extent, peers)
    report.prolong(end)
    measure_trainings(report, clock, extent, given.train)
    machine = torch.cuda.get_device_name() if given.device == "cuda" else "the CPU: a rehearsal"
    print(f"\n{report.table(f'{machine}, torch {torch.__version__}')}")


if __name__ == "__main__":
    main()
