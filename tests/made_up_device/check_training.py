"""Trainings on devices that no machine has: the CPU's bits on each, whatever is done late."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import made_up_device
import pytest
import torch
from lookahead_trainings import all_of, same
from training_options import OPTIONS, short_training

from splatstudio.devices import accelerator, transfer
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.rendering.render import RenderOptions, fastest_device, render
from splatstudio.scene import photo_uploads
from splatstudio.scene.photo import Photo
from splatstudio.scene.scene import Scene
from splatstudio.training.step import StepStats
from splatstudio.training.trainer import Trainer

FIRST, SECOND, _ = made_up_device.DEVICES
CPU = torch.device("cpu")
STEPS = 12


def trained(scene: Scene, options: dict[str, Any], device: torch.device, steps: int = STEPS) -> Trainer:
    """Return a training of so many steps on a device."""
    trainer = Trainer(scene, short_training(options, STEPS), device=device)
    for _ in range(steps):
        trainer.train_step()
    return trainer


def learned(trainer: Trainer) -> list[torch.Tensor]:
    """Return copies of all that a training has learned, on the host, and end it."""
    found = [tensor.cpu() for tensor in all_of(trainer)]
    trainer.close()
    return found


@pytest.mark.parametrize("device", [FIRST, SECOND], ids=str)
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS.keys())
def test_a_training_has_the_bits_of_the_cpu(
    blob_scene: Scene, options: dict[str, Any], device: torch.device
) -> None:
    late = made_up_device.num_late_copies()
    ours = trained(blob_scene, options, device)
    assert ours.gaussians.device == device and accelerator.current() == FIRST
    assert same(learned(ours), learned(trained(blob_scene, options, CPU)))
    assert made_up_device.num_late_copies() > late, "photos and numbers are on their way beside the steps"


def test_a_training_goes_on_from_a_checkpoint_and_is_evaluated_on_the_other_device(
    blob_scene: Scene, tmp_path: Path
) -> None:
    whole = trained(blob_scene, {}, CPU)
    half = trained(blob_scene, {}, FIRST, STEPS // 2)
    checkpoint = half.save(tmp_path)
    half.close()
    second = Trainer.resume(blob_scene, checkpoint, device=SECOND)
    while second.step < STEPS:
        second.train_step()
    scores = [evaluate(each.gaussians, blob_scene, options=each.display_options) for each in (second, whole)]
    assert scores[0].psnr == scores[1].psnr and same(learned(second), learned(whole))


def test_the_accelerator_is_taken_where_nothing_is_said(blob_scene: Scene) -> None:
    assert fastest_device() == FIRST
    with torch.inference_mode():
        trainer = Trainer(blob_scene, short_training({}, STEPS))
        drawn = render(trainer.gaussians, blob_scene.cameras[0], RenderOptions()).rgb
    assert drawn.device == FIRST
    trainer.close()


def losses(scene: Scene) -> list[float]:
    """Return the losses of a training on the second device."""
    trainer = Trainer(scene, short_training({}, STEPS), device=SECOND)
    told: list[StepStats] = [trainer.train_step() for _ in range(STEPS)]
    trainer.close()
    return [stats.loss for stats in told]


def test_a_wait_that_is_left_out_shows(blob_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = losses(blob_scene)
    assert losses(blob_scene) == expected

    def unwaited(copy: Any) -> photo_uploads.Pixels:
        return copy.pixels

    for room in (made_up_device.MEMORY, 0):  # all photos stay on the device, or none
        with made_up_device.told_room(room), monkeypatch.context() as patch:
            assert losses(blob_scene) == expected
            patch.setattr(photo_uploads._Copy, "taken", unwaited)
            assert losses(blob_scene) != expected, "a photo was used before it had come"

    def unread(self: Any) -> tuple[float, ...]:
        return self._numbers()

    numbers = torch.arange(3.0, device=SECOND)
    assert transfer.ReadBack(numbers).read() == (0.0, 1.0, 2.0)
    with monkeypatch.context() as patch:
        patch.setattr(transfer.ReadBack, "read", unread)
        assert transfer.ReadBack(numbers).read() != (0.0, 1.0, 2.0), "numbers were read before they had come"


def test_photos_are_made_ready_beside_the_thread_that_trains(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, made = photo_uploads._pinned, list[bool]()

    def noted(photo: Photo) -> photo_uploads.Pixels:
        made.append(threading.current_thread() is threading.main_thread())
        return real(photo)

    monkeypatch.setattr(photo_uploads, "_pinned", noted)
    num_photos = len(blob_scene.train_indices)
    losses(blob_scene)
    assert num_photos <= len(made) <= min(STEPS, num_photos) + 2, (
        "each is made ready once, where all stay there"
    )
    made.clear()
    with made_up_device.told_room(0):
        losses(blob_scene)
    assert len(made) >= STEPS and sum(made) <= 3, "but for the first ones, and such as are decoded too late"


def test_a_device_that_is_left_out_or_mistaken_shows(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = torch.zeros

    def on_host(*size: Any, **options: Any) -> torch.Tensor:
        options.pop("device", None)
        return real(*size, **options)

    def on_first(*size: Any, **options: Any) -> torch.Tensor:
        if str(options.get("device")) == str(SECOND):
            options["device"] = made_up_device.KIND
        return real(*size, **options)

    for wrong in (on_host, on_first):
        with monkeypatch.context() as patch:
            patch.setattr(torch, "zeros", wrong)
            with pytest.raises(RuntimeError, match=r"device|on the CPU|tensors of"):
                losses(blob_scene)
