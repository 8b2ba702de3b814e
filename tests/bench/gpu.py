"""Measure the kernels on the GPU in use; ends with a short table, ratios and whether the aims are met.

    python tests/bench/gpu.py [--seconds 300] [--train SCENE ...]
    python tests/bench/gpu.py --part viewer --rows FILE   that alone; its lines are added to the file at once
    python tests/bench/gpu.py --device cpu --tiny         a rehearsal without a GPU; its figures mean nothing

Drawn are copies of the oracle's garden (`shared/oracle` in the repository or beside it; without the file
these rows are left out) and a synthetic cloud. gsplat and fused-ssim, where they can be imported, do the same
with the same tensors; on_gpu.sh says how to bring them. What no time is left for is left out and said so.
"""

from __future__ import annotations

import argparse
import queue
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import splatstudio  # noqa: F401 - before torch: it says how torch's threads wait

# isort: split
import torch
from gpu_peers import PEERS, fused_ssim_of, gsplat_picture, gsplat_step, installed, unless_it_fails
from gpu_report import Aim, Clock, Report
from gpu_workloads import (
    Workload,
    cloud,
    find_garden,
    garden,
    instances_of,
    leaves,
    training_step,
    with_instances,
    write_capture,
)
from torch import Tensor

from splatstudio.evaluation.evaluate import evaluate
from splatstudio.kernels import ops
from splatstudio.kernels.stages import ProjectSettings, RasterSettings
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import render
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.presets import PRESETS
from splatstudio.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
IN_A_ROW = 4  # steps that are timed together
TWICE, SSIM_AIM, MEMORY_AIM = Aim(ratio=2.0), Aim(ratio=1.3), Aim(most=1.0)
PAUSED_AIM, SLOWDOWN_AIM = Aim(most=1000 / 60), Aim(most=5.0)
# larger: pictures of the other sizes; loads: long lists; steps: of a trainer, and as a graph; presets: of a
# small scene, and how long their kernels take
PARTS = ("pictures", "steps", "presets", "loads", "larger", "kernels", "viewer", "trainings")
STEPPED_PRESETS = ("default", "mcmc", "fast")


@dataclass(frozen=True)
class Extent:
    """How much is measured."""

    millions: tuple[float, ...]
    sizes: dict[str, tuple[int, int]]
    loads: tuple[float, ...]  # millions of entries in the lists of a picture
    steps: int
    timed_steps: int  # of a trainer
    steps_before: int  # of a preset, before its steps are timed
    downscale: int
    viewer_seconds: float

    @property
    def first_size(self) -> tuple[str, tuple[int, int]]:
        """Return name and size of the smaller pictures."""
        return next(iter(self.sizes.items()))


FULL = Extent((1, 3, 6), {"1080p": (1920, 1080), "4K": (3840, 2160)}, (5, 15), 7000, 60, 1500, 2, 21.0)
TINY = Extent((0.001,), {"tiny": (64, 48)}, (0.003,), 3, 4, 2, 2, 0.2)


def rasterizer_rows(report: Report, clock: Clock, workload: Workload, label: str, peers: list[str]) -> None:
    """Time forward and way back of a picture, and a whole step with its memory."""
    inputs = list(workload.gaussians.tensors().values())

    def both(picture) -> tuple[float, float]:
        forward = clock.milliseconds(picture)
        rgb = picture()
        v_rgb = torch.rand_like(rgb)
        back = clock.milliseconds(lambda: torch.autograd.grad(rgb, inputs, v_rgb, retain_graph=True))
        return forward, back

    step = training_step(workload)
    step()  # the first one's lists have no more room than they need
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


def trainer_rows(report: Report, clock: Clock, millions: float, extent: Extent, peers: list[str]) -> None:
    """Time the trainer's own steps, which begin the next one before their numbers are read.

    The photos come from the disk, as in a training; the Gaussians stand at random between the cameras.
    """
    name, size = extent.first_size
    label = f"trainer's step, {millions:g} M at random, {name}"
    # All degrees of the harmonics from the third step on.
    config = TrainConfig(init_random=round(1e6 * millions), sh_degree_every=1, eval_steps=(), save_steps=())
    with tempfile.TemporaryDirectory() as folder:
        scene = load_scene(write_capture(Path(folder) / "noise", size))
        trainer = Trainer(scene, config, device=clock.device)
        try:
            taken = clock.milliseconds(trainer.train_step, in_a_row=extent.timed_steps, rounds=3)
            gaussians = leaves(trainer.gaussians.detach())
            workload = Workload("random", gaussians, scene.views[scene.train_indices[0]].camera)
        finally:
            trainer.close()
    theirs = None
    if set(PEERS) <= set(peers):
        theirs = unless_it_fails(
            "gsplat", lambda: clock.milliseconds(gsplat_step(workload), in_a_row=IN_A_ROW)
        )
    report.add(label, taken, "ms", peer=theirs, aim=TWICE)


def preset_rows(report: Report, clock: Clock, path: Path, preset: str, extent: Extent) -> None:
    """Time the steps of a preset on a scene, and how long its kernels take of them.

    The difference is the host's: a GPU that waits for its next kernel.
    """
    given = {"steps", "downscale", "eval_steps", "save_steps"}
    config = TrainConfig(steps=extent.steps, downscale=extent.downscale, eval_steps=(), save_steps=())
    config = PRESETS[preset].apply(config, given)
    scene = load_training_scene(path, config)
    trainer = Trainer(scene, config, device=clock.device)
    try:
        for _ in range(min(extent.steps_before, extent.steps - 4 * extent.timed_steps)):
            trainer.train_step()
        taken = clock.milliseconds(trainer.train_step, in_a_row=extent.timed_steps, rounds=3)
        in_kernels = clock.milliseconds_of_kernels(trainer.train_step, extent.timed_steps)
    finally:
        trainer.close()
    label = f"step of {preset}, {path.name}, {trainer.num_gaussians / 1e3:.0f} k"
    report.add(label, taken, "ms")
    report.add(f"{label}: in kernels", in_kernels, "ms")


def graph_row(report: Report, clock: Clock, workload: Workload, label: str) -> None:
    """Time a picture that is captured as a graph and replayed, beside the same drawn anew."""
    if clock.device.type != "cuda":
        report.leave_out(f"picture as a graph, {label}", "graphs need a GPU")
        return
    room = round(1.25 * instances_of(workload))
    gaussians, optimizer = workload.gaussians.detach(), SplatAdam.zeros(workload.gaussians)
    background = torch.zeros(3, device=clock.device)

    def picture() -> Tensor:
        settings = ProjectSettings(sh_degree=gaussians.sh_degree)
        projected = optimizer.project(gaussians, camera=workload.camera, settings=settings)
        size = (workload.camera.width, workload.camera.height)
        return ops.rasterize(projected, RasterSettings(*size, background, room=room)).rgb

    with torch.no_grad():
        beside, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        with torch.cuda.stream(beside):  # as torch asks for before a capture
            expected = picture()
        torch.cuda.current_stream().wait_stream(beside)
        with torch.cuda.graph(graph):
            drawn = picture()
        graph.replay()
        torch.cuda.synchronize()
        if not torch.equal(drawn, expected):
            raise RuntimeError("the replayed picture is another one")
        eager, replayed = clock.milliseconds(picture), clock.milliseconds(graph.replay)
    report.add(f"picture as a graph (peer: as it is), {label}", replayed, "ms", peer=eager)


def viewer_rows(report: Report, clock: Clock, workload: Workload, seconds: float, label: str) -> None:
    """Time pictures for a browser, paused and beside a training."""
    from gpu_viewer import FRAMES_PER_SECOND, measure_viewer  # needs more than the other parts do

    figures = measure_viewer(workload, training_step(workload), clock, seconds)
    report.add(f"viewer, paused, {label}", figures.paused, "ms", aim=PAUSED_AIM)
    report.add(f"viewer, while training, {label}", figures.training, "ms")
    report.add(f"viewer, pictures of {FRAMES_PER_SECOND} a second", figures.frames_per_second, "1/s")
    report.add("viewer, training is slower by", 100.0 * figures.slowdown, "%", aim=SLOWDOWN_AIM)


def training_rows(report: Report, clock: Clock, path: Path, config: TrainConfig, seconds: float) -> None:
    """Train a scene for at most `seconds` and evaluate it on its test photos."""
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
    report.add(f"{path.name}, PSNR of the test photos", scores.psnr, "dB")
    report.add(f"{path.name}, Gaussians", trainer.num_gaussians / 1e6, "M")


def attempt(report: Report, label: str, work: Callable[[], None]) -> None:
    """Do one part of the work; where it fails the table says why in its place, and the next one is tried."""
    try:
        work()
    except torch.OutOfMemoryError as error:
        report.leave_out(label, str(error).splitlines()[0])
    except (RuntimeError, ValueError, AssertionError, ImportError, OSError, queue.Empty) as error:
        lines = str(error).splitlines() or ["without a word"]
        report.fail(label, f"{type(error).__name__}: {lines[0]}")


@dataclass(frozen=True)
class Bench:
    """What all parts need."""

    report: Report
    clock: Clock
    extent: Extent
    peers: list[str]
    garden: Path | None

    def workload(self, num: int, size: tuple[int, int]) -> Workload:
        """Return the garden where its file is, else the cloud."""
        if self.garden is None:
            return cloud(num, size, self.clock.device)
        return garden(self.garden, num, size, self.clock.device)


def measure_garden(bench: Bench, sizes: list[str]) -> None:
    """Time the garden's tiles in pictures of some sizes."""
    report, clock, extent = bench.report, bench.clock, bench.extent
    if bench.garden is None:
        report.leave_out("garden", "there is no shared/oracle with its file, in the repository or beside it")
        return
    for size in sizes:
        for millions in extent.millions:
            label = f"garden {millions:g} M, {size}"
            # The longest row, 6 M at 4K with its peer, is eight medians of at most 3 s each.
            if report.has_time(label, 24.0 if clock.device.type == "cuda" else 0.0):
                made = (round(1e6 * millions), extent.sizes[size])
                attempt(
                    report,
                    label,
                    lambda made=made, label=label: rasterizer_rows(
                        report, clock, bench.workload(*made), label, bench.peers
                    ),
                )


def measure_cloud(bench: Bench) -> None:
    """Time the cloud that needs no file."""
    name, size = bench.extent.first_size
    num = round(1e6 * bench.extent.millions[0])
    label = f"cloud {bench.extent.millions[0]:g} M, {name}"

    def work() -> None:
        workload = cloud(num, size, bench.clock.device)
        rasterizer_rows(bench.report, bench.clock, workload, label, bench.peers)

    if bench.report.has_time(label, 10.0):
        attempt(bench.report, label, work)


def measure_kernels(bench: Bench) -> None:
    """Time what is no picture: the loss and the optimizer."""
    name, size = bench.extent.first_size
    report, clock, peers = bench.report, bench.clock, bench.peers
    attempt(report, "SSIM with gradient", lambda: loss_row(report, clock, size, name, peers))
    attempt(report, "Adam", lambda: adam_row(report, clock, bench.extent.millions[0]))


def measure_pictures_for_a_browser(bench: Bench) -> None:
    """Time the viewer on the first of the workloads."""
    name, size = bench.extent.first_size
    seconds, millions = bench.extent.viewer_seconds, bench.extent.millions[0]
    label = f"{'cloud' if bench.garden is None else 'garden'} {millions:g} M, {name}"

    def work() -> None:
        workload = bench.workload(round(1e6 * millions), size)
        viewer_rows(bench.report, bench.clock, workload, seconds, label)

    if bench.report.has_time(f"viewer, {label}", seconds):
        attempt(bench.report, f"viewer, {label}", work)


def measure_steps(bench: Bench) -> None:
    """Time steps of a trainer, and a picture as a graph."""
    report, extent = bench.report, bench.extent
    name, size = extent.first_size
    for millions in extent.millions[:2]:
        label = f"trainer's step, {millions:g} M"
        if report.has_time(label, 20.0 if bench.clock.device.type == "cuda" else 0.0):
            attempt(
                report,
                label,
                lambda millions=millions: trainer_rows(report, bench.clock, millions, extent, bench.peers),
            )
    num = round(1e6 * extent.millions[0])
    attempt(
        report,
        "picture as a graph",
        lambda: graph_row(report, bench.clock, cloud(num, size, bench.clock.device), name),
    )


def measure_presets(bench: Bench, scenes: list[Path]) -> None:
    """Time steps of presets on the first scene."""
    for preset in STEPPED_PRESETS if scenes else ():
        label = f"step of {preset}"
        if bench.report.has_time(label, 13.0 if bench.clock.device.type == "cuda" else 0.0):
            attempt(
                bench.report,
                label,
                lambda preset=preset: preset_rows(bench.report, bench.clock, scenes[0], preset, bench.extent),
            )


def measure_loads(bench: Bench) -> None:
    """Time pictures whose lists are long: splats of the cloud, made as large as that takes."""
    report, extent = bench.report, bench.extent
    _, size = extent.first_size
    num = round(1e6 * extent.millions[0])
    for load in extent.loads:
        label = f"cloud {extent.millions[0]:g} M, {load:g} M entries"

        def work(load: float = load, label: str = label) -> None:
            workload = with_instances(cloud(num, size, bench.clock.device), round(1e6 * load))
            rasterizer_rows(report, bench.clock, workload, label, bench.peers)

        if report.has_time(label, 12.0 if bench.clock.device.type == "cuda" else 0.0):
            attempt(report, label, work)


def measure_trainings(bench: Bench, scenes: list[Path]) -> None:
    """Train each scene in an equal share of the time that is left."""
    report, extent = bench.report, bench.extent
    for number, path in enumerate(scenes):
        config = TrainConfig(steps=extent.steps, downscale=extent.downscale, eval_steps=(), save_steps=())
        label = f"training on {path.name}"
        if report.has_time(label, 5.0):
            seconds = 0.95 * report.seconds_left / (len(scenes) - number)
            attempt(
                report,
                label,
                lambda path=path, config=config, seconds=seconds: training_rows(
                    report, bench.clock, path, config, seconds
                ),
            )


def measure(bench: Bench, parts: list[str], scenes: list[Path], end: float) -> None:
    """Measure the parts in turn, until `end` of the monotonic clock."""
    sizes = list(bench.extent.sizes)
    if "pictures" in parts:
        measure_garden(bench, sizes[:1])
        measure_cloud(bench)
    if "steps" in parts:
        measure_steps(bench)
    if "presets" in parts:
        measure_presets(bench, scenes)
    if "loads" in parts:
        measure_loads(bench)
    if "larger" in parts:
        measure_garden(bench, sizes[1:])
    if "kernels" in parts:
        measure_kernels(bench)
    if "viewer" in parts:
        measure_pictures_for_a_browser(bench)
    bench.report.prolong(end)
    if "trainings" in parts:
        measure_trainings(bench, scenes)


def main(arguments: list[str] | None = None) -> None:
    """Parse the command line, measure, print the table; exit status 1 where anything has failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=300.0, help="about how long all of it may take")
    parser.add_argument("--train", type=Path, nargs="*", default=[], help="scenes to train")
    parser.add_argument("--millions", type=float, nargs="+", help="of Gaussians; default 1 3 6")
    parser.add_argument(
        "--peers", choices=PEERS, nargs="*", help="to compare with; default: those that are installed"
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=list(PARTS), help="default: all")
    parser.add_argument("--rows", type=Path, help="a file to which each line of the table is added")
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
        extent = replace(extent, millions=tuple(given.millions))
    clock = Clock(torch.device(given.device))
    # Half of the time is for the trainings.
    shared = given.train and "trainings" in given.part and len(given.part) > 1
    report = Report(given.seconds * (0.5 if shared else 1.0), judges=given.device == "cuda", file=given.rows)
    end = time.monotonic() + given.seconds
    bench = Bench(report, clock, extent, peers, find_garden(ROOT))
    measure(bench, given.part, given.train, end)
    machine = torch.cuda.get_device_name() if given.device == "cuda" else "the CPU: a rehearsal"
    print(f"\n{report.table(f'{machine}, torch {torch.__version__}')}")
    if report.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
