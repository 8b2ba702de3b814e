"""All that a step queues on a real GPU can be captured as a graph and replayed: `pytest -m cuda`.

A graph has no copies from the host: constants come from tensors that are there already, and what the host
wants to know is read later. The numbers of a step that kernels take by value (the camera, rates, the number
of the step) are those of the capture.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras
from torch import Tensor

from splatstudio.corrections.corrections import LearnedRows, exposed
from splatstudio.devices import transfer
from splatstudio.distributed.ranks import ALONE
from splatstudio.kernels import ops
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.optimization import losses as depth_guide
from splatstudio.optimization import train_step
from splatstudio.optimization.gradients import RenderOutput, StepInputs, StepPlan, TrainView
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.optim import SplatAdam
from splatstudio.optimization.train_step import begin_step
from splatstudio.rendering.render import RenderOptions
from splatstudio.strategy.population import trainable

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]

SH_DEGREE = 1


@pytest.fixture
def no_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a constant be copied to the GPU but once, and let nothing be copied back."""
    known: dict[Any, Tensor] = {}
    real = transfer.to_device

    def once(tensor: Tensor, device: torch.device) -> Tensor:
        key = (tensor.dtype, tensor.shape, tensor.contiguous().numpy().tobytes())
        if key not in known:
            known[key] = real(tensor, device)
        return known[key]

    for module in [module for name, module in sys.modules.items() if name.startswith("splatstudio")]:
        if getattr(module, "to_device", None) is real:
            monkeypatch.setattr(module, "to_device", once)
    monkeypatch.setattr(train_step, "ReadBack", lambda *tensors: tensors)


class Training:
    """The first step of a model on some photos, again and again, on buffers that stay where they are."""

    def __init__(self, num_photos: int, room: int):
        self.gaussians = trainable(blobs(num=400).to("cuda"))
        self.optimizer = SplatAdam.zeros(self.gaussians)
        self.optimizer._columns_in_use(SH_DEGREE)  # asks the device, once
        self.exposures = LearnedRows.starting_at(torch.zeros(4, 3, 4, device="cuda"))
        self._room = IntersectionCapacity()
        self._room.size = room
        points = {index: blobs().means.numpy().astype(np.float64) for index in range(4)}
        self._guide = depth_guide.DepthGuide(points, extent=1.0)
        cameras, random = ring_of_cameras(4), torch.Generator().manual_seed(1)
        self._shots = [
            TrainView(
                index, "", camera, torch.rand(camera.height, camera.width, 3, generator=random).cuda(), *rest
            )
            for index, camera in enumerate(cameras[:num_photos])
            for rest in [(None, (0.1, 0.2, 0.3))]
        ]

    def queue(self) -> Tensor:
        """Queue the step and return the sum of its losses."""
        self.optimizer.num_steps = 0
        rows = range(len(self._shots))
        leaf = self.exposures.leaf(rows)

        def loss_of(shot: TrainView, drawing: RenderOutput) -> Tensor:
            rgb = exposed(drawing.rgb, leaf[shot.index])
            loss = photometric(rgb, shot.target, ssim_weight=0.2)
            error = self._guide.error(shot.index, shot.camera, drawing.alpha, drawing.depth_sum)
            assert error is not None
            return loss + 0.1 * error

        options, rates = RenderOptions(sh_degree=SH_DEGREE), dict.fromkeys(self.gaussians.tensors(), 1e-3)
        plan = StepPlan(options, rates, observed=True, poses=True, capacity=self._room)
        inputs = StepInputs(loss_of, plan, (leaf,))
        found = begin_step(
            ALONE, self.gaussians, self.optimizer, [self._shots], inputs, late=lambda _, rgb: rgb
        )
        assert found.gate is not None and found.others[0] is not None
        found.apply()
        self.exposures.step(rows, found.others[0], 1e-3, gate=found.gate)
        self.exposures.center(found.gate)
        return found.gate.loss

    def state(self) -> list[Tensor]:
        """Return copies of all that a step may change."""
        models = (self.gaussians, self.optimizer.exp_avg, self.optimizer.exp_avg_sq)
        tensors = [tensor for model in models for tensor in model.tensors().values()]
        return [tensor.detach().clone() for tensor in [*tensors, *self.exposures.tensors().values()]]


def beside(work: Callable[[], object]) -> None:
    """Do some work on a stream of its own, as torch asks for before a capture."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        work()
    torch.cuda.current_stream().wait_stream(stream)


@pytest.mark.usefixtures("no_copies")
@pytest.mark.parametrize("num_photos", [1, 2])
@pytest.mark.parametrize("room", [100_000, 20])
def test_a_step_with_all_that_is_learned_can_be_captured_and_replayed(num_photos: int, room: int) -> None:
    beside(lambda: [Training(num_photos, room).queue() for _ in range(3)])  # loads kernels and libraries
    eager, replayed = Training(num_photos, room), Training(num_photos, room)
    start = replayed.state()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        total = replayed.queue()
    for _ in range(3):
        expected = eager.queue()
        graph.replay()
        assert float(total) == float(expected)
    after = replayed.state()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(after, eager.state(), strict=True))
    moved = not all(torch.equal(ours, theirs) for ours, theirs in zip(after, start, strict=True))
    assert moved == (room > 20), "a step without room changes nothing"
