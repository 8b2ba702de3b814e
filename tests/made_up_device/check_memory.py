"""No memory at any allocation, one after the other: the training goes on or says why not; nothing leaks."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made_up_device
import pytest
import torch
from lookahead_trainings import all_of, same
from training_options import OPTIONS, short_training

from splatstudio.distributed.failures import is_out_of_memory
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.scene import Scene
from splatstudio.training.trainer import Trainer

DEVICE = made_up_device.DEVICES[1]
STEPS = 12
MOST = 400  # allocations of one piece of work


def trained(scene: Scene, options: dict[str, Any], steps: int) -> Trainer:
    trainer = Trainer(scene, short_training(options, 1000), device=DEVICE)
    for _ in range(steps):
        trainer.train_step()
    return trainer


def held(*trainers: Trainer) -> int:
    """Return the bytes that tensors hold on the devices, without what was begun of the next steps.

    Nor are photos counted that stay there.
    """
    for trainer in trainers:
        trainer.lookahead.take_back()
    gc.collect()
    kept = [pixels for trainer in trainers for pixels in trainer.parts.views._uploads._kept.values()]
    tensors = [tensor for pixels in kept for tensor in (pixels.rgb, pixels.mask, pixels.alpha)]
    return made_up_device.live_bytes() - sum(tensor.nbytes for tensor in tensors if tensor is not None)


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_step_without_memory_at_any_allocation_harms_nothing(
    blob_scene: Scene, options: dict[str, Any]
) -> None:
    """Each allocation of some steps fails once, those of a densification among them."""
    trainer = trained(blob_scene, options, 0)
    assert failed_in_turn(trainer, every=7) >= STEPS // 2
    trainer.close()


def failed_in_turn(trainer: Trainer, every: int) -> int:
    """Train to the end; in each step an allocation fails, each time a later one. Return how many did."""
    failed, number = 0, 0
    while trainer.step < STEPS:
        made_up_device.fail_allocation(number)
        before = made_up_device.num_allocations()
        stats = trainer.train_step()
        made_up_device.fail_allocation(-1)
        taken = made_up_device.num_allocations() - before
        assert trainer.whole and stats.step == trainer.step
        failed += number < taken
        number = number + every if number < taken else 0
        assert all(torch.isfinite(tensor).all() for tensor in trainer.live_gaussians.tensors().values())
    return failed


def test_each_allocation_of_a_quiet_step_fails_once_and_nothing_is_lost_or_left(blob_scene: Scene) -> None:
    trainer, undisturbed = trained(blob_scene, {}, 3), trained(blob_scene, {}, 3)
    before = made_up_device.num_allocations()
    trainer.train_step()
    num = made_up_device.num_allocations() - before
    undisturbed.train_step()
    bytes_held = held(trainer, undisturbed)
    left_out = 0
    for number in range(num + 2):
        made_up_device.fail_allocation(number)
        stats = trainer.train_step()
        made_up_device.fail_allocation(-1)
        left_out += stats.problem is not None
        undisturbed.train_step()
    assert num > 10
    # A photo may have been on its way before.
    assert held(trainer, undisturbed) <= bytes_held
    assert left_out == 0 and same(all_of(trainer), all_of(undisturbed)), "each was made again, to the bit"
    trainer.close()
    undisturbed.close()


LEARNED = {"sky.enabled": True, "exposure.enabled": True, "poses.enabled": True, "poses.start_step": 1}


def test_a_step_that_learns_sky_exposures_and_poses_survives_any_allocation_that_fails(
    blob_scene: Scene,
) -> None:
    trainer = trained(blob_scene, LEARNED, 2)
    # The first ones are those of what is learned.
    assert failed_in_turn(trainer, every=1) == STEPS - 2
    assert all(torch.isfinite(each).all() for each in all_of(trainer))
    trainer.close()


def fails_everywhere(work: Callable[[], object]) -> list[BaseException]:
    """Let each allocation of some work fail in turn; return what was raised."""
    raised: list[BaseException] = []
    for number in range(MOST):
        before = made_up_device.num_allocations()
        made_up_device.fail_allocation(number)
        try:
            work()
        except (MemoryError, RuntimeError, ValueError, OSError) as error:
            raised.append(error)
        made_up_device.fail_allocation(-1)
        if made_up_device.num_allocations() - before <= number:
            return raised
    raise AssertionError(f"it takes memory more than {MOST} times")


def test_pictures_evaluations_and_checkpoints_without_memory_harm_no_model(
    blob_scene: Scene, tmp_path: Path
) -> None:
    trainer = trained(blob_scene, {}, 4)
    expected, camera = all_of(trainer), blob_scene.cameras[0]
    options = trainer.display_options
    evaluated = evaluate(trainer.gaussians, blob_scene, options=options).psnr
    bytes_held = held(trainer)
    for work in (
        lambda: render(trainer.gaussians, camera, RenderOptions()),
        lambda: evaluate(trainer.gaussians, blob_scene, options=options),
        lambda: trainer.save(tmp_path),
    ):
        raised = fails_everywhere(work)
        assert all(is_out_of_memory(error) for error in raised), raised
        raised.clear()  # whose tracebacks hold tensors
        assert held(trainer) <= bytes_held and same(all_of(trainer), expected)
    assert evaluate(trainer.gaussians, blob_scene, options=options).psnr == evaluated
    trainer.close()


def test_a_training_that_has_no_memory_for_a_step_says_so(blob_scene: Scene) -> None:
    trainer = trained(blob_scene, {}, 3)
    words = "there is no memory for a step, 3 times in a row"
    with made_up_device.capacity(held(trainer) + 1000), pytest.raises(MemoryError, match=words):
        for _ in range(3):
            trainer.train_step()
    assert trainer.whole
    trainer.train_step()
    trainer.close()
