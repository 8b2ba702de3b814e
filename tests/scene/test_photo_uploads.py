"""Which photos are on a device: those of a step and of the next one, and what fits of all."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from splatstudio.scene import photo_uploads
from splatstudio.scene.photo import Photo
from splatstudio.scene.photo_uploads import PhotoUploads, Pixels, pixels_of
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.trainer import Trainer

CPU = torch.device("cpu")
STILL = TrainConfig(steps=40, sh_degree=0, test_every=0, densify=DensifyConfig(enabled=False))


def photo(level: int) -> Photo:
    return Photo(np.full((4, 5, 3), level, np.uint8), np.ones((4, 5), bool), None)


class Device:
    """Counts the photos that it holds."""

    def __init__(self) -> None:
        self.held: weakref.WeakSet[Pixels] = weakref.WeakSet()
        self.num_copies = 0
        self.most = 0

    def copy(self, one: Photo, device: torch.device) -> Pixels:
        pixels = pixels_of(one, device)
        self.held.add(pixels)
        self.num_copies += 1
        gc.collect(0)
        self.most = max(self.most, len(self.held))
        return pixels


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    counting = Device()
    monkeypatch.setattr(photo_uploads, "pixels_of", counting.copy)
    return counting


def test_what_was_copied_ahead_is_taken_and_what_was_in_vain_goes(device: Device) -> None:
    uploads = PhotoUploads(CPU, ahead=True)
    uploads.send({3: photo(3), 5: photo(5)})
    assert device.num_copies == 2
    taken = uploads.take(3, photo(99))
    assert int(taken.rgb[0, 0, 0]) == 3 and device.num_copies == 2
    uploads.send({5: photo(99), 7: photo(7)})
    assert device.num_copies == 3, "5 was there"
    uploads.send({8: photo(8)})
    del taken
    gc.collect()
    assert len(device.held) == 1
    assert int(uploads.take(5, photo(55)).rgb[0, 0, 0]) == 55, "copied now"


def test_without_memory_ahead_a_photo_is_copied_in_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any) -> Pixels:
        raise torch.OutOfMemoryError("there is no room left")

    uploads = PhotoUploads(CPU, ahead=True)
    with monkeypatch.context() as patch:
        patch.setattr(photo_uploads, "pixels_of", no_memory)
        uploads.send({1: photo(1)})
    assert int(uploads.take(1, photo(2)).rgb[0, 0, 0]) == 2


def test_the_first_that_fit_are_kept_until_their_memory_is_needed(device: Device) -> None:
    each = photo(0).num_bytes
    uploads = PhotoUploads(CPU, ahead=True, keep_bytes=2 * each + 1)
    for index in (1, 2, 3, 2, 1):
        uploads.send({index: photo(index)})
        assert int(uploads.take(index, photo(99)).rgb[0, 0, 0]) == index
    assert device.num_copies == 3
    uploads.send({3: photo(33)})
    assert int(uploads.take(3, photo(99)).rgb[0, 0, 0]) == 33, "there was no room for a third"
    uploads.keep_none()
    gc.collect()
    assert len(device.held) == 0
    assert int(uploads.take(1, photo(11)).rgb[0, 0, 0]) == 11
    gc.collect()
    assert len(device.held) == 0, "none is kept from now on"


def test_a_training_copies_each_photo_once_where_all_fit(blob_scene: Scene, device: Device) -> None:
    losses = []
    for keep in (0, 1 << 30):
        trainer = Trainer(blob_scene, STILL)
        trainer.parts.views._uploads = PhotoUploads(CPU, ahead=True, keep_bytes=keep)
        device.num_copies = 0
        losses.append([trainer.train_step().loss for _ in range(30)])
        trainer.close()
    assert losses[0] == losses[1]
    assert device.num_copies == len(blob_scene.train_indices)


@pytest.mark.parametrize(("batch_size", "accumulate"), [(1, 1), (2, 1), (1, 3)])
def test_a_training_has_no_more_photos_on_its_device_than_two_steps_need(
    blob_scene: Scene, device: Device, batch_size: int, accumulate: int
) -> None:
    config = replace(STILL, batch_size=batch_size, accumulate=accumulate)
    steps, each = 12, batch_size * accumulate
    losses = []
    for ahead in (True, False):
        trainer = Trainer(blob_scene, config)
        trainer.parts.views._uploads = PhotoUploads(CPU, ahead=ahead)
        device.most = device.num_copies = 0
        losses.append([trainer.train_step().loss for _ in range(steps)])
        trainer.close()
        assert device.num_copies >= steps * each, "each is copied, and again in the next epoch"
        assert device.most <= (2 * each if ahead else 1)
    assert losses[0] == losses[1]
    assert steps * each > len(blob_scene.train_indices), "more than an epoch"


def test_photos_are_copied_ahead_once_they_are_decoded(blob_scene: Scene, device: Device) -> None:
    trainer = Trainer(blob_scene, STILL)
    trainer.parts.views._uploads = PhotoUploads(CPU, ahead=True)
    num = len(blob_scene.train_indices)
    for index in blob_scene.train_indices:
        trainer.parts.queue.photo(index)  # decoded, and kept
    for _ in range(num):
        trainer.train_step()
        (waiting,) = trainer.parts.views._uploads._copies
        assert waiting == trainer.parts.queue._upcoming[0]
    assert device.num_copies == num + 1, "none was copied twice"
    trainer.close()


def test_on_the_cpu_nothing_is_copied_ahead(device: Device) -> None:
    uploads = PhotoUploads(CPU)
    uploads.send({1: photo(1)})
    assert device.num_copies == 0
