"""What the GPU's benchmark draws: the oracle's garden laid out in tiles, and a cloud that needs no file."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.distributed.ranks import ALONE
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.intersection_capacity import intersection_capacity_for
from splatstudio.optimization.gradients import RenderOutput, StepInputs, StepPlan, TrainView, draw
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.optim import SplatAdam, learning_rates
from splatstudio.optimization.train_step import begin_step
from splatstudio.rendering.render import RenderOptions
from splatstudio.settings.config import OptimConfig

GARDEN = "garden0_pinhole_classic_sh3_grad.npz"
SSIM_WEIGHT = 0.2


@dataclass(frozen=True, eq=False)
class Workload:
    """Gaussians that take gradients, and where they are seen from."""

    name: str
    gaussians: Gaussians
    camera: Camera

    @property
    def millions(self) -> float:
        """Return the number of Gaussians in millions."""
        return len(self.gaussians) / 1e6


def find_garden(root: Path) -> Path | None:
    """Return the oracle's garden below `root`/shared or beside `root`, None where it is not."""
    files = [folder / "shared" / "oracle" / GARDEN for folder in (root, root.parent)]
    return next((file for file in files if file.is_file()), None)


def garden(file: Path, num: int, size: tuple[int, int], device: torch.device) -> Workload:
    """Return `num` Gaussians: copies of the oracle's garden side by side on the ground, as gsplat lays its.

    The camera is the first of the file's with a picture of `size` = (width, height); it stands in the copy in
    the middle.
    """
    with np.load(file) as data:
        arrays = {name: data[name] for name in ("means", "quats", "scales", "opacities", "sh")}
        viewmat, K = data["viewmats"][0].astype(np.float64), data["Ks"][0].astype(np.float64)
        width = int(data["width"])
    one = {name: torch.from_numpy(array) for name, array in arrays.items()}
    copies = math.ceil(num / len(one["means"]))
    side = math.ceil(math.sqrt(copies))
    extent = one["means"].amax(dim=0) - one["means"].amin(dim=0)
    # The middle first, so that the camera's own copy is there whatever the number.
    places = sorted(
        ((x - side // 2, y - side // 2) for x in range(side) for y in range(side)),
        key=lambda place: place[0] ** 2 + place[1] ** 2,
    )[:copies]
    offsets = torch.tensor([[x, y, 0.0] for x, y in places]) * extent

    def tiled(tensor: Tensor) -> Tensor:
        return tensor.repeat(copies, *([1] * (tensor.dim() - 1)))[:num]

    means = (one["means"] + offsets[:, None]).reshape(-1, 3)[:num]
    opacities = one["opacities"].clamp(1e-4, 1.0 - 1e-4)
    gaussians = Gaussians(
        means=means,
        quats=tiled(one["quats"]),
        scales=tiled(one["scales"].log()),
        opacities=tiled(torch.logit(opacities)),
        sh0=tiled(one["sh"][:, :1]),
        shN=tiled(one["sh"][:, 1:]),
    )
    factor = size[0] / width
    K = np.array([[K[0, 0] * factor, 0, size[0] / 2], [0, K[1, 1] * factor, size[1] / 2], [0, 0, 1.0]])
    return Workload("garden", leaves(gaussians.to(device)), Camera(viewmat, K, *size))


def cloud(num: int, size: tuple[int, int], device: torch.device) -> Workload:
    """Return `num` splats in a box before the camera, about 2 px wide at 1080p and a million of them."""
    random = torch.Generator(device).manual_seed(0)
    scale = math.log(0.004 * (1e6 / num) ** (1 / 3))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, device=device)

    gaussians = Gaussians(
        means=2.0 * torch.rand(num, 3, generator=random, device=device) - 1.0,
        quats=normal(num, 4),
        scales=scale + 0.5 * normal(num, 3),
        opacities=normal(num),
        sh0=0.5 * normal(num, 1, 3),
        shN=0.1 * normal(num, 15, 3),
    )
    width, height = size
    viewmat = np.eye(4)
    viewmat[2, 3] = 2.2
    K = np.array([[0.9 * width, 0.0, width / 2], [0.0, 0.9 * width, height / 2], [0.0, 0.0, 1.0]])
    return Workload("cloud", leaves(gaussians), Camera(viewmat, K, width, height))


def instances_of(workload: Workload) -> int:
    """Return how many entries, a splat in a tile each, the lists of the workload's picture have."""
    with torch.no_grad():
        optimizer = SplatAdam.zeros(workload.gaussians)
        drawn = draw(workload.gaussians, optimizer, workload.camera, RenderOptions(), observed=False)
    assert drawn.num_instances is not None, "our own kernels count them"
    return int(drawn.num_instances)


def with_instances(workload: Workload, wanted: int) -> Workload:
    """Return the workload with splats so large that its lists have `wanted` entries, to a twentieth."""
    low, high = -4.0, 4.0  # of the logarithm of the factor
    made = workload
    for _ in range(12):
        middle = (low + high) / 2
        gaussians = replace(workload.gaussians, scales=workload.gaussians.scales.detach() + middle)
        made = replace(workload, gaussians=leaves(gaussians))
        found = instances_of(made)
        if abs(found - wanted) <= wanted / 20:
            break
        low, high = (low, middle) if found > wanted else (middle, high)
    return made


def write_capture(folder: Path, size: tuple[int, int], num_photos: int = 8) -> Path:
    """Write photos of noise, taken on a ring that looks inwards, as a scene with transforms.json.

    What is in them is of no matter to the time that a step takes.
    """
    width, height = size
    (folder / "images").mkdir(parents=True)
    random, frames = np.random.default_rng(0), []
    for number in range(num_photos):
        name = f"images/{number:02d}.jpg"
        coarse = random.integers(0, 255, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
        cv2.imwrite(str(folder / name), cv2.resize(coarse, size))
        angle = 2 * math.pi * number / num_photos
        place = np.array([4 * math.cos(angle), 4 * math.sin(angle), 1.0])
        world = np.linalg.inv(look_at(place, np.zeros(3), np.array([0.0, 0.0, 1.0])))
        world[:, 1:3] *= -1  # of OpenGL's cameras, which look along -z
        frames.append({"file_path": name, "transform_matrix": world.tolist()})
    lens = {"fl_x": 0.9 * width, "fl_y": 0.9 * width, "cx": width / 2, "cy": height / 2}
    (folder / "transforms.json").write_text(json.dumps({**lens, "w": width, "h": height, "frames": frames}))
    return folder


def leaves(gaussians: Gaussians) -> Gaussians:
    """Return the Gaussians with tensors that take gradients."""
    return gaussians.map(lambda tensor: tensor.detach().contiguous().requires_grad_())


def noise(camera: Camera, device: torch.device) -> Tensor:
    """Return a photo [H, W, 3] of the camera's size."""
    return torch.rand(
        camera.height, camera.width, 3, generator=torch.Generator(device).manual_seed(1), device=device
    )


def training_step(workload: Workload) -> Callable[[], object]:
    """Return a whole step of a training on one photo, as the trainer makes it."""
    gaussians, camera = workload.gaussians, workload.camera
    target = noise(camera, gaussians.device)
    shot = TrainView(0, "noise", camera, target, None, (0.0, 0.0, 0.0))
    optimizer = SplatAdam.zeros(gaussians)
    rates = learning_rates(OptimConfig(), extent=1.0, step=0, steps=30_000)
    capacity = intersection_capacity_for(gaussians.device)
    plan = StepPlan(RenderOptions(), rates, observed=True, capacity=capacity)

    def loss_of(shot: TrainView, drawing: RenderOutput) -> Tensor:
        return photometric(drawing.rgb, shot.target, ssim_weight=SSIM_WEIGHT, mask=shot.mask)

    inputs = StepInputs(loss_of, plan)
    return lambda: begin_step(ALONE, gaussians, optimizer, [[shot]], inputs).apply()
