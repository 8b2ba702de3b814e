"""Steps on a real GPU that learn more than Gaussians, or from several photos: `pytest -m cuda`."""

from __future__ import annotations

import pytest
from lookahead_trainings import check_steps, take_room, training, waiting_is_an_error
from quiet_options import OPTIONS, guide_of

from splatstudio.kernels import ops
from splatstudio.scene.scene import Scene
from splatstudio.training import trainer as trainer_module

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
    check_steps(blob_scene, OPTIONS[option], 20, lambda one, number: take_room(one) if number == 12 else None)


@pytest.mark.parametrize("option", OPTIONS)
def test_no_step_waits_for_the_queue(option: str, blob_scene: Scene) -> None:
    with training(blob_scene, OPTIONS[option]) as one:
        for _ in range(5):
            one.train_step()
        with waiting_is_an_error():
            stats = [one.train_step() for _ in range(12)]
        assert stats[-1].step == 17
