"""How much memory a training takes, told before it starts, and the settings with which it fits.

The terms are counted from the tensors that a step holds at once. What a photo sees of a model is not
known before: `SEEN_SHARE` is assumed, as in a room or around an object. The lists of rows by which strategies
choose, up to 12 bytes a row of all ranks on the CPU or 16 of a rank's own, are not among the terms: while
they are there, gradients and what is seen are not, which take more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch

from splatstudio.devices import accelerator
from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.operating_system import free_memory
from splatstudio.scene.images import default_memory_budget
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, changed
from splatstudio.strategy.make_strategy import make_strategy
from splatstudio.strategy.mcmc import McmcStrategy
from splatstudio.training.precision import HALVES, row_bytes

SEEN_SHARE = 0.5  # of the Gaussians that one photo shows
# Of a Gaussian that a camera sees: its projection (48 bytes) and the gradients of that, its places in the
# lists of 8 tiles (12 bytes each) and what sorting them needs. Measured on a CPU: 277 bytes.
SEEN_BYTES = 270
# Its row in the exchange: 10 numbers and radii, as they are sent and as they come, with their place; as they
# are drawn, of several cameras once more; and the gradients with a probe both ways. Measured on 2 and 3 ranks
# of a CPU: 230 to 320 bytes.
EXCHANGED_BYTES = 48 + 48 + 8 + 48 + 32 + 2 * 48
# Beside these, with --precision mixed, its gradients as they are sent and as they come: up to 8 words.
PACKED_BYTES = 2 * row_bytes(HALVES, probe=True)[1]
COUNTS_BYTES, MCMC_COUNTS_BYTES = 12, 16  # of mcmc and fast, one less and the keys
KEY_BYTES = 8  # of the others, where some are left out of each step
LEAVING_OUT_BYTES = 40  # while a step finds who that is
WEIGHT_BYTES = 4  # of fast, as it finds who is needed least
PLACE_BYTES = 8  # of several ranks, or in the order of space: where a Gaussian stands among all
SURVEYED_BYTES = 12  # its three weights in a photo, of which each rank draws one at a time
# Of a pixel of a photo in a step: the picture, its loss and the gradients of both. Measured: 280 bytes.
PIXEL_BYTES = 280
# Of a pixel of a photo that is accumulated, from the step's beginning to its end: the photo, the
# picture that was drawn, and a mask.
ACCUMULATED_BYTES = 25
UPLOADED_BYTES = 5  # of a pixel of a photo on a GPU as it was decoded: this step's and the next one's
PHOTO_BYTES = 4  # of a pixel of a decoded photo that is kept: RGB, and a mask now and then
# The process with torch, and on a GPU the context with the kernels.
CPU_PROCESS_BYTES, GPU_CONTEXT_BYTES = 400 << 20, 512 << 20
SPARE = 0.9  # of the free memory is planned with: allocators leave holes
MAX_ROUND = 64  # of both batch_size and accumulate
MIN_SPLATS = 10_000  # below which no training is worth while


@dataclass(frozen=True)
class MemoryPlan:
    """What one rank of a training needs; bytes."""

    num_ranks: int
    free: int  # of the rank with the least
    fixed: int  # the process, pictures of a round, decoded photos on the CPU
    per_splat: float  # of the rank's own
    photos: int = 0  # all photos as they were decoded, where they may stay on a GPU

    @property
    def num_splats(self) -> int:
        """Return how many Gaussians fit, on all ranks together."""
        return max(0, int((SPARE * self.free - self.fixed) / self.per_splat)) * self.num_ranks

    def bytes_for(self, num_splats: int) -> int:
        """Return what each rank needs for `num_splats` on all ranks together."""
        return self.fixed + int(self.per_splat * num_splats / self.num_ranks)

    def kept_photos(self, num_splats: int) -> int:
        """Return how many bytes of photos a GPU keeps beside `num_splats` on all ranks together."""
        return max(0, min(self.photos, int(SPARE * self.free) - self.bytes_for(num_splats)))


def plan_memory(
    config: TrainConfig, sizes: Iterable[tuple[int, int]], devices: RankDevices, free: int | None = None
) -> MemoryPlan:
    """Return what a training needs on each rank.

    `sizes` are width and height of the photos, px. `free`: bytes, None: what each rank may take now.
    Beside these it depends on the settings sh_degree, batch_size, accumulate, strategy, precision, order and
    dropout alone: of what is accumulated the pictures are held, and all else one round at a time.
    """
    pixels = [width * height for width, height in sizes]
    num_ranks, on_gpu = devices.num_ranks, devices.gpus[0] is not None
    floats = 14 + 3 * ((config.sh_degree + 1) ** 2 - 1)
    # Parameters and both moments; and the gradients, or while the number changes the new parameters.
    placed = num_ranks > 1 or config.order == "morton"
    keyed = config.strategy in ("mcmc", "fast")
    counts = MCMC_COUNTS_BYTES if keyed else COUNTS_BYTES
    if not keyed and config.dropout.rate > 0:
        counts += KEY_BYTES
    if config.dropout.rate_at(1, len(pixels)) > 0:
        counts += LEAVING_OUT_BYTES
    state = 4 * floats * 4 + counts + (PLACE_BYTES if placed else 0)
    cameras = config.batch_size * num_ranks  # of a round: each rank projects its part for all of them
    seen = cameras * SEEN_SHARE * SEEN_BYTES
    row = EXCHANGED_BYTES + (PACKED_BYTES if config.precision == "mixed" else 0)
    exchanged = cameras * SEEN_SHARE * row if num_ranks > 1 else 0.0
    if config.strategy == "fast":
        state += SURVEYED_BYTES * num_ranks + WEIGHT_BYTES
    largest = config.batch_size * max(pixels, default=0)
    fixed = largest * PIXEL_BYTES + largest * (config.accumulate - 1) * ACCUMULATED_BYTES
    if on_gpu:
        # The others stay there where room is left, else in the machine's memory.
        fixed += GPU_CONTEXT_BYTES + 2 * largest * config.accumulate * UPLOADED_BYTES
    else:
        fixed += CPU_PROCESS_BYTES
        # Each rank comes to use all photos, and keeps as many as its share of the room holds.
        fixed += min(PHOTO_BYTES * sum(pixels), default_memory_budget() // num_ranks)
    photos = PHOTO_BYTES * sum(pixels) if on_gpu else 0
    free = free_bytes(devices) if free is None else free
    return MemoryPlan(num_ranks, free, fixed, state + seen + exchanged, photos)


def free_bytes(devices: RankDevices) -> int:
    """Return the bytes that each rank may take: of the GPU with the least, or its share of the machine."""
    gpus = [gpu for gpu in devices.gpus if gpu is not None]
    if not gpus:
        return free_memory() // devices.num_ranks
    return min(map(accelerator.free_memory_of, gpus))


def sizes_of(scene: Scene) -> list[tuple[int, int]]:
    """Return width and height of the photos that are trained on, px."""
    cameras = (scene.views[index].camera for index in scene.train_indices)
    return [(camera.width, camera.height) for camera in cameras]


def with_splats_that_fit(config: TrainConfig, plan: MemoryPlan) -> TrainConfig:
    """Return the settings with the most Gaussians that fit; ValueError where that is hardly any."""
    if not plan.num_splats >= MIN_SPLATS:
        raise ValueError(
            f"there is no memory for a training: {plan.free / 1e9:.1f} GB are free for each process, and"
            f" {plan.bytes_for(MIN_SPLATS) / 1e9:.1f} GB are needed for {MIN_SPLATS:,} splats; use smaller"
            " photos (--downscale), or close other programs"
        )
    return changed(config, "densify.max_gaussians", plan.num_splats)


def with_batches_that_fit(
    config: TrainConfig, sizes: list[tuple[int, int]], devices: RankDevices, num_splats: int
) -> TrainConfig:
    """Return the settings with the largest batches with which `num_splats` fit.

    A step has as many photos as before: the rest is accumulated. Where even single ones leave too little
    room, single ones it is. Raises ValueError where a step has a single photo anyway.
    """
    together = config.batch_size * config.accumulate
    if together == 1:
        raise ValueError(
            "--batch-size auto says how many of a step's photos are held at once: say how many it has"
            " with --accumulate, as in --accumulate 8 --batch-size auto"
        )
    for batch_size in range(min(together, MAX_ROUND), 0, -1):
        if together % batch_size == 0 and together // batch_size <= MAX_ROUND:
            config = changed(changed(config, "accumulate", together // batch_size), "batch_size", batch_size)
            if plan_memory(config, sizes, devices).num_splats >= num_splats:
                break
    return config


def splats_chosen(config: TrainConfig, scene: Scene) -> int | None:
    """Return how many Gaussians the strategy itself chooses for these photos and steps at most.

    None: its rules know no number but the limit that holds for all strategies.
    """

    def nothing(_: int) -> list[torch.Tensor]:
        return []

    strategy = make_strategy(scene, config, extent=1.0, generator=torch.Generator(), survey=nothing)
    return strategy.cap if isinstance(strategy, McmcStrategy) else None


def splats_wanted(config: TrainConfig, scene: Scene) -> int:
    """Return how many Gaussians a training comes to at most, by its settings and its strategy's limit.

    It may begin with more than its strategy chooses: with the scene's points, or so many at random.
    """
    limit = config.densify.max_gaussians
    chosen, first = splats_chosen(config, scene), len(scene.points) or config.init_random
    return max(limit if chosen is None else chosen, min(first, limit))


def fitted(
    config: TrainConfig,
    scene: Scene,
    devices: RankDevices,
    *,
    max_splats: int | Literal["auto"] | None,
    fit_batch: bool,
) -> tuple[TrainConfig, str]:
    """Return the settings as the user asked for them to fit, and a sentence on what they need.

    `max_splats`: the most Gaussians, "auto" as many as fit, None as the settings say; but *fast*, which
    chooses their number itself, then chooses no more than fit. `fit_batch`: of a step's photos as many
    at once as fit. Raises ValueError where hardly any fit, where there is but one photo a step, or for a
    number outside its range.
    """
    sizes = sizes_of(scene)
    if isinstance(max_splats, int):
        config = changed(config, "densify.max_gaussians", max_splats)
    rounds = ""
    if fit_batch:
        # As many splats as asked for; where their number is to be found, the photos come first.
        config = with_batches_that_fit(config, sizes, devices, splats_wanted(config, scene))
        rounds = f" A step has {config.accumulate} x {config.batch_size} photos on each rank."
    plan = plan_memory(config, sizes, devices)
    if max_splats == "auto":
        config = with_splats_that_fit(config, plan)
    wanted = splats_wanted(config, scene)
    chosen = max_splats is None and config.strategy == "fast"
    if chosen and MIN_SPLATS <= plan.num_splats < wanted:
        config = with_splats_that_fit(config, plan)
        rounds = f" For these photos it would be {wanted:,}, but no more fit.{rounds}"
    if isinstance(max_splats, int) and wanted < max_splats:
        rounds = f"{_why_no_more(config)}{rounds}"
    return config, describe(plan, splats_wanted(config, scene)) + rounds


def _why_no_more(config: TrainConfig) -> str:
    """Return why a training comes to fewer Gaussians than its limit allows, and what would say more."""
    if config.strategy == "mcmc":
        return " The strategy mcmc wants no more than that: --mcmc.max-gaussians says how many it has."
    return (
        f" The strategy {config.strategy} wants no more than that for these photos and steps: a higher"
        " --fast.density allows more."
    )


FIT_BY_ITSELF = "--max-splats auto trains with no more"


def describe(plan: MemoryPlan, num_splats: int, advice: str = FIT_BY_ITSELF) -> str:
    """Return what a training of up to `num_splats` needs, and `advice` where that is not there."""
    each = "" if plan.num_ranks == 1 else " on each rank"
    need, free = plan.bytes_for(num_splats) / 1e9, plan.free / 1e9
    text = f"Up to {num_splats:,} splats need about {need:.1f} GB{each}; {free:.1f} GB are free."
    if num_splats <= plan.num_splats:
        return text + _of_photos(plan, num_splats)
    return f"{text} About {plan.num_splats:,} fit: {advice}."


def _of_photos(plan: MemoryPlan, num_splats: int) -> str:
    if plan.photos == 0:
        return ""
    share, gigabytes = plan.kept_photos(num_splats) / plan.photos, plan.photos / 1e9
    if share == 1.0:
        return f" The photos stay on the GPU, too ({gigabytes:.1f} GB)."
    return (
        f" Of the photos ({gigabytes:.1f} GB) {100 * share:.0f} % stay on the GPU; the others are sent there."
    )


def photos_to_keep(
    config: TrainConfig, scene: Scene, present: int, device: torch.device, num_ranks: int
) -> int:
    """Return how many bytes of photos stay on `device`, where `present` splats of all ranks already are.

    What is free is what is free now; the model's growth to the most that its settings allow is left room.
    On the CPU none: they are in its memory anyway.
    """
    if not accelerator.is_accelerator(device):
        return 0
    each = RankDevices((device.index or 0,) * num_ranks)
    plan = plan_memory(config, sizes_of(scene), each, free=accelerator.room_on(device))
    return plan.kept_photos(max(0, splats_wanted(config, scene) - present))
