"""Steps of a training on a real GPU, for which the host does not wait: `pytest -m cuda`."""

from __future__ import annotations

import pytest
import torch
from blob_models import blobs, ring_of_cameras
from lookahead_trainings import waiting_is_an_error
from torch import Tensor

from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.ranks import ALONE
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.intersection_capacity import IntersectionCapacity, intersection_capacity_for
from splatstudio.optimization.gradients import RenderOutput, StepInputs, StepPlan, TrainView
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.optim import SplatAdam, learning_rates
from splatstudio.optimization.train_step import begin_step
from splatstudio.rendering.render import RenderOptions
from splatstudio.settings.config import OptimConfig
from splatstudio.strategy.population import trainable

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]

RATES = learning_rates(OptimConfig(), extent=1.0, step=0, steps=100)


class Training:
    """Steps of one model on the current GPU, each with another camera."""

    def __init__(self, room: IntersectionCapacity | None):
        self.gaussians: Gaussians = trainable(blobs(num=500).to("cuda"))
        self._optimizer = SplatAdam.zeros(self.gaussians)
        self._plan = StepPlan(RenderOptions(sh_degree=1), RATES, observed=True, capacity=room)
        random = torch.Generator().manual_seed(1)
        self._shots = [
            TrainView(
                i, "", camera, torch.rand(camera.height, camera.width, 3, generator=random).cuda(), None, rgb
            )
            for i, (camera, rgb) in enumerate(
                (camera, (0.1 * i, 0.2, 0.3)) for i, camera in enumerate(ring_of_cameras())
            )
        ]

    def step(self, number: int) -> float:
        def loss_of(shot: TrainView, drawing: RenderOutput) -> Tensor:
            return photometric(drawing.rgb, shot.target, ssim_weight=0.2, mask=shot.mask)

        shot = self._shots[number % len(self._shots)]
        work = StepInputs(loss_of, self._plan)
        begun = begin_step(ALONE, self.gaussians, self._optimizer, [[shot]], work)
        begun.apply()
        assert begun.result is not None
        (loss,) = begun.result.losses
        return loss


def test_steps_with_room_are_the_same_to_the_bit() -> None:
    room = intersection_capacity_for(torch.device("cuda"))
    assert room is not None
    exact, roomy = Training(None), Training(room)
    for number in range(12):
        if number == 5:
            room.size = 10
        assert roomy.step(number) == exact.step(number)
        assert room.size is not None and room.size > 10
    for ours, theirs in zip(
        roomy.gaussians.tensors().values(), exact.gaussians.tensors().values(), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_a_step_does_not_wait_for_the_queue() -> None:
    training = Training(IntersectionCapacity())
    for number in range(9):
        training.step(number)
    with waiting_is_an_error():
        for number in range(9):
            training.step(number)


def test_a_step_without_memory_is_told_as_such_and_the_next_one_is_made() -> None:
    room = IntersectionCapacity()
    training = Training(room)
    training.step(0)
    room.size = 2**31 - 2  # of which the first list alone takes 8.6 GB
    torch.cuda.set_per_process_memory_fraction(0.02)
    try:
        with pytest.raises(OutOfMemory):
            training.step(1)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert room.size is None and training.step(1) > 0
