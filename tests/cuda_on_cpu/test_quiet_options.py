"""What is learned beside the Gaussians, and from several photos, keeps no step on one GPU waiting."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_kernels import native
from host_watch import HostWatch
from lookahead_trainings import all_of, decode, made, same, take_room, training
from quiet_options import OPTIONS, guide_of
from torch import Tensor

from splatstudio.evaluation.evaluate import target_of
from splatstudio.scene.photo_uploads import Pixels
from splatstudio.scene.scene import Scene
from splatstudio.training import trainer as trainer_module
from splatstudio.training.data import train_views
from splatstudio.training.step import DrawnStep, StepLoss, TrainingDiverged
from splatstudio.training.trainer import Trainer

CHANGING = ("grid", "sky", "poses", "batch", "everything")


@pytest.fixture(autouse=True)
def _points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainer_module.DepthGuide, "of", guide_of)


@pytest.mark.parametrize("option", OPTIONS)
def test_no_step_waits_for_the_device(
    option: str, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    if option == "masked":
        monkeypatch.setattr(train_views, "target_of", lambda *args: (target_of(*args)[0], half(*args)))
    if option in ("masked", "transparent"):
        monkeypatch.setattr(train_views, "alpha_of", lambda pixels: half(pixels).float())
    with HostWatch() as watch, training(blob_scene, OPTIONS[option]) as one:
        for _ in range(3):
            one.train_step()
        watch.waits.clear()
        waits, ahead = native.num_waits(), 0
        for _ in range(7):
            stats = one.train_step()
            ahead += one.lookahead.begun is not None
        assert watch.waits == [] and native.num_waits() == waits
    assert stats.psnr is not None
    # Of 8 photos in an epoch the last, and one that comes again, may move the camera of the next.
    assert ahead >= (1 if option == "everything" else 5 if option == "poses" else 7)


def half(pixels: Pixels, *_: Any) -> Tensor:
    return (pixels.rgb[..., 0] > 40) | (pixels.rgb[..., 1] > 60)


@pytest.mark.parametrize("option", CHANGING)
def test_whatever_happens_the_steps_are_those_of_one_that_waits(
    option: str, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config, begin = OPTIONS[option], DrawnStep.begin
    with training(blob_scene, config) as one, training(blob_scene, config, waits=True) as other:
        for number in range(11):
            if number == 4:
                take_room(one)
            if number == 6:
                for each in (one, other):
                    each.update_setting("optim.means_lr", 5e-3)
                    each.update_setting("exposure.lr", 4e-3)
            if number == 7:
                monkeypatch.setattr(DrawnStep, "begin", without_memory_ahead(begin))
            assert made(one) == made(other)
            monkeypatch.setattr(DrawnStep, "begin", begin)
            assert other.lookahead.begun is None and one.parts.population.optimizer.num_steps == number + 1
        assert same(all_of(one), all_of(other)) and one.parts.queue.costs == other.parts.queue.costs
        resumed = Trainer.resume(blob_scene, one.save(tmp_path))
        decode(resumed)
        for _ in range(3):
            assert made(resumed) == made(one) == made(other)
        assert same(all_of(resumed), all_of(one)) and same(all_of(one), all_of(other))
        resumed.close()


def without_memory_ahead(begin: Callable[..., Any]) -> Callable[..., Any]:
    """Return what begins a step, but has no memory to begin one ahead."""

    def begun(*args: Any, late: bool = False) -> Any:
        if late:
            raise torch.OutOfMemoryError("out of memory")
        return begin(*args)

    return begun


def test_a_loss_that_is_no_number_changes_nothing_of_what_is_learned(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training(blob_scene, OPTIONS["everything"]) as one:
        for _ in range(3):
            one.train_step()
        one.lookahead.take_back()
        before, loss_of, asked = all_of(one), StepLoss.__call__, iter(range(100))

        def no_number(*args: Any) -> Tensor:
            # Of the four photos the third.
            return loss_of(*args) * (float("nan") if next(asked) % 4 == 2 else 1.0)

        monkeypatch.setattr(StepLoss, "__call__", no_number)
        name = blob_scene.views[one.parts.queue._upcoming[2]].name
        with pytest.raises(TrainingDiverged, match=f"the loss became nan at step 4, on {name}"):
            one.train_step()
        assert same(all_of(one), before) and one.whole and one.parts.population.optimizer.num_steps == 3


def test_rows_that_a_gate_keeps_out_of_a_step_of_adam() -> None:
    random = torch.Generator().manual_seed(1)
    tensors = [torch.rand(70, 5, 3, generator=random) for _ in range(4)]
    rates, visible = [0.01, 0.9, 0.99, 1e-15], torch.rand(70, generator=random) > 0.5
    wanted = [tensor.clone() for tensor in tensors]
    native.adam_step(*wanted, rates, 3, 1)
    for room, seen in ((4, None), (5, visible), (5, None)):
        gate = (torch.tensor([5]), room, torch.tensor(0.5))
        moved = [tensor.clone() for tensor in tensors]
        native.adam_step_within(*moved, rates, 3, seen, *gate)
        rows = torch.full((70,), room == 5) if seen is None else seen
        for ours, theirs, start in zip(moved, wanted, tensors, strict=True):
            assert torch.equal(ours, torch.where(rows[:, None, None], theirs, start))
    arguments = (*tensors, rates, 3, visible, torch.tensor([5]), 4, torch.tensor(0.5))
    torch.library.opcheck(native.adam_step_within.default, arguments, test_utils="test_schema")
