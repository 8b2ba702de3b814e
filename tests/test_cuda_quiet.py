"""Steps on a real GPU that learn more than Gaussians, or from several photographs: `pytest -m cuda`."""

from __future__ import annotations

import pytest
import torch
from lookahead_trainings import made, training
from quiet_options import OPTIONS, guide_of

from splatstudio import ops
from splatstudio import trainer as trainer_module
from splatstudio.scene.scene import Scene

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or the extension has no CUDA kernels"),
]
# The gradient of a grid is summed by torch in an order of its own each time.
REPEATED = [name for name in OPTIONS if name != "grid"]


@pytest.fixture(autouse=True)
def _points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module.DepthGuide, "of", guide_of)


@pytest.mark.parametrize("option", REPEATED)
def test_the_steps_are_those_of_one_that_waits(option: str, blob_scene: Scene) -> None:
    config = OPTIONS[option]
    with training(blob_scene, config) as one, training(blob_scene, config, waits=True) as other:
        for number in range(20):
            if number == 12:
                assert one._room is not None
                one._lookahead.take_back()
                one._room.size = 7
            assert made(one) == made(other)
        for ours, theirs in zip(
            one.gaussians.tensors().values(), other.gaussians.tensors().values(), strict=True
        ):
            assert torch.equal(ours, theirs)
        ours, theirs = one._corrections.save(), other._corrections.save()
        if ours is not None and theirs is not None:
            assert all(torch.equal(tensor, theirs.tensors[name]) for name, tensor in ours.tensors.items())


@pytest.mark.parametrize("option", OPTIONS)
def test_no_step_waits_for_the_queue(option: str, blob_scene: Scene) -> None:
    with training(blob_scene, OPTIONS[option]) as one:
        for _ in range(5):
            one.train_step()
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            stats = [one.train_step() for _ in range(12)]
        finally:
            torch.cuda.set_sync_debug_mode("default")
        assert stats[-1].step == 17
