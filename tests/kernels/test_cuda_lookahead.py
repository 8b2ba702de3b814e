"""Steps on a real GPU that are queued before the host knows how the last one went: `pytest -m cuda`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from blob_models import blobs, ring_of_cameras
from lookahead_trainings import check_steps, take_room, training, waiting_is_an_error
from torch import Tensor

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels import ops
from splatstudio.kernels.ops_training import StepGate
from splatstudio.optimization import gradients
from splatstudio.optimization.gradients import apply_gradients, backward, draw
from splatstudio.optimization.losses import photometric
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.strategy.population import trainable

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]

CONFIG = TrainConfig(steps=60, seed=3, eval_steps=(), save_steps=())
GROWING = DensifyConfig(start_step=3, every=8, reset_every=25, grow_grad=1e-5)


def test_a_training_is_the_same_to_the_bit(blob_scene: Scene) -> None:
    config = replace(CONFIG, densify=GROWING, random_background=True)
    check_steps(
        blob_scene, config, config.steps, lambda one, number: take_room(one) if number == 20 else None
    )


def test_no_step_waits_for_the_queue(blob_scene: Scene) -> None:
    with training(blob_scene, CONFIG) as one:
        for _ in range(9):
            one.train_step()
        with waiting_is_an_error():
            stats = [one.train_step() for _ in range(12)]
        assert stats[0].psnr is not None and stats[-1].step == 21


class Step:
    """One and the same step of a model, again and again."""

    def __init__(self, room: int):
        self.gaussians: Gaussians = trainable(blobs(num=400).to("cuda"))
        self.optimizer = SplatAdam.zeros(self.gaussians)
        self.optimizer._columns_in_use(1)  # asks the device, once
        self._room = room
        self._camera = ring_of_cameras()[1]
        generator = torch.Generator().manual_seed(1)
        size = (self._camera.height, self._camera.width, 3)
        self._target = torch.rand(size, generator=generator).cuda()
        self._rates = dict.fromkeys(self.gaussians.tensors(), 1e-3)

    def queue(self) -> Tensor:
        """Queue the first step, with the numbers that it has, and return the loss."""
        self.optimizer.num_steps = 0
        options = RenderOptions(sh_degree=1)
        drawing = draw(
            self.gaussians, self.optimizer, self._camera, options, observed=True, capacity=self._room
        )
        loss = photometric(drawing.rgb, self._target, ssim_weight=0.2)
        assert drawing.num_instances is not None
        gate = StepGate(drawing.num_instances, self._room, loss.detach())
        apply_gradients(drawing, backward(drawing, loss), self.optimizer, self._rates, gate=gate)
        return loss.detach()

    def captured(self) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        """Return the step as a graph, and where its replays leave the loss."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            loss = self.queue()
        return graph, loss


@pytest.mark.parametrize("room", [100_000, 20])
def test_a_step_can_be_captured_as_a_graph_and_replayed(room: int, monkeypatch: pytest.MonkeyPatch) -> None:
    black = torch.zeros(3, device="cuda")  # a copy from the host is no part of a graph
    monkeypatch.setattr(gradients, "to_device", lambda tensor, device: black)
    Step(room).queue()  # loads the kernels
    eager, replayed = Step(room), Step(room)
    before = replayed.gaussians.map(lambda tensor: tensor.detach().clone())
    graph, loss = replayed.captured()
    for _ in range(3):
        expected = eager.queue()
        graph.replay()
        assert float(loss) == float(expected)
    for name, ours in replayed.gaussians.tensors().items():
        assert torch.equal(ours, eager.gaussians.tensors()[name])
    moved = not torch.equal(replayed.gaussians.means, before.means)
    assert moved == (room > 20), "a step without room changes nothing"
