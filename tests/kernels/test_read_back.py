"""Numbers that come late to the host, and the room that is taken before they are there."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from splatstudio.devices.transfer import ReadBack, to_device
from splatstudio.kernels import ops
from splatstudio.kernels.intersection_capacity import (
    LARGEST,
    MARGIN,
    IntersectionCapacity,
    intersection_capacity_for,
)
from splatstudio.optimization import gradients
from splatstudio.optimization import train_step as train_step_module
from splatstudio.rendering.render import RenderOptions, project
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer


def test_the_first_picture_sets_the_room_and_larger_ones_raise_it() -> None:
    room = IntersectionCapacity()
    assert room.size is None and room.held(1000) and room.size == math.ceil(1000 * MARGIN)
    assert room.held(1100) and room.size == 1250
    # Before it is full there is more, so that the next picture need not be drawn twice.
    assert room.held(1200) and room.size == 1500
    assert not room.held(1501) and room.size == math.ceil(1501 * MARGIN)
    assert room.held(0) and room.size == math.ceil(1501 * MARGIN)


def test_what_no_room_would_do_for_is_counted_first() -> None:
    room = IntersectionCapacity()
    room.held(LARGEST)
    assert room.size == LARGEST and room.held(LARGEST)
    assert not room.held(LARGEST + 1) and room.size is None


def test_room_that_is_no_longer_needed_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splatstudio.kernels.intersection_capacity.LOOK_BACK", 10)
    room = IntersectionCapacity()
    sizes = []
    for needed in [9000, *[100] * 29]:
        assert room.held(needed)
        sizes.append(room.size)
    assert sizes == [*[math.ceil(9000 * MARGIN)] * 29, 125]
    assert not room.held(126) and room.size == math.ceil(126 * MARGIN)


@pytest.mark.cpu_kernels
def test_a_cpu_needs_no_room() -> None:
    assert intersection_capacity_for(torch.device("cpu")) is None


def test_numbers_come_with_the_precision_of_their_types() -> None:
    numbers = ReadBack(torch.tensor(0.1), torch.tensor([2**52 + 1]), torch.tensor([[float("nan")]]))
    loss, count, nothing = numbers.read()
    assert loss == float(torch.tensor(0.1)) and count == 2**52 + 1 and math.isnan(nothing)


def test_room_that_takes_too_much_memory_goes_with_the_step(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(blob_scene, TrainConfig(), device="cpu")
    room = trainer.parts.capacity = IntersectionCapacity()
    assert room.held(10**9)
    rooms: list[int | None] = []
    draw = gradients.draw_as_planned

    def drawn(*args: Any, capacity: int | None = None, **options: Any) -> gradients.RenderOutput:
        rooms.append(capacity)
        if capacity is not None:
            raise MemoryError("a GPU is full")
        return draw(*args, **options)

    monkeypatch.setattr(train_step_module, "draw_as_planned", drawn)
    monkeypatch.setattr(train_step_module, "has_step_gates", lambda _: True)
    stats = trainer.train_step()
    assert rooms == [math.ceil(MARGIN * 10**9), None] and stats.step == 1 and stats.problem is not None
    assert room.size is not None and room.size < 10**6
    trainer.close()


def test_what_is_sent_to_the_cpu_is_there() -> None:
    values = torch.arange(3)
    assert to_device(values, torch.device("cpu")) is values


def test_pictures_tell_how_many_instances_they_have(blob_scene: Scene) -> None:
    trainer = Trainer(blob_scene, TrainConfig(), device="cpu")
    camera = blob_scene.views[1].camera
    drawing = gradients.draw(
        trainer.parts.population.gaussians,
        trainer.parts.population.optimizer,
        camera,
        RenderOptions(),
        observed=True,
    )
    assert drawing.projected is not None and drawing.num_instances is not None
    p = project(trainer.gaussians, camera, drawing.settings)
    rows = [t.detach() for t in (p.means2d, p.conics, p.depths, p.opacities, p.colors)]
    lists = ops._native().bin(*rows, p.radii, camera.width, camera.height, 1)
    assert int(drawing.num_instances) == len(lists[4]) > 0
    trainer.close()
