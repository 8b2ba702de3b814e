"""Steps of a training on an emulated GPU: the host does not wait for it, and nothing is lost by that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from emulated_kernels import native
from lookahead_trainings import all_of, same, take_room
from quiet_options import CONFIG
from waiting_operations import WaitingOperations

from splatstudio.devices import transfer
from splatstudio.kernels.intersection_capacity import IntersectionCapacity
from splatstudio.optimization import train_step as train_step_module
from splatstudio.optimization.gradients import RenderOutput
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import StrategyName
from splatstudio.training.step import StepLoss
from splatstudio.training.trainer import Trainer


def trainer_on(scene: Scene, room: IntersectionCapacity | None, config: TrainConfig = CONFIG) -> Trainer:
    trainer = Trainer(scene, config)
    assert trainer.parts.capacity is not None and trainer.parts.capacity.size is None
    trainer.parts.capacity = room
    return trainer


def test_steps_with_room_wait_for_nothing_and_are_the_same_to_the_bit(blob_scene: Scene) -> None:
    exact, roomy = trainer_on(blob_scene, None), trainer_on(blob_scene, IntersectionCapacity())
    for number in range(5):
        before = native.num_waits()
        expected = exact.train_step()
        assert native.num_waits() > before
        capacity = roomy.parts.capacity
        before, again = native.num_waits(), capacity is not None and capacity.size is None
        assert replace(roomy.train_step(), seconds=0.0) == replace(expected, seconds=0.0)
        assert (native.num_waits() > before) == again == (number == 0)
    assert same(all_of(roomy), all_of(exact))
    exact.close()
    roomy.close()


def test_a_picture_without_room_is_drawn_again_before_the_model_changes(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, short = trainer_on(blob_scene, None), trainer_on(blob_scene, IntersectionCapacity())
    drawn: list[int | None] = []
    draw = train_step_module.draw_as_planned

    def counted(*args: Any, capacity: int | None = None, **options: Any) -> RenderOutput:
        drawn.append(capacity)
        return draw(*args, capacity=capacity, **options)

    monkeypatch.setattr(train_step_module, "draw_as_planned", counted)
    for number in range(3):
        expected = exact.train_step()
        if number == 1:
            take_room(short)
        drawn.clear()
        assert replace(short.train_step(), seconds=0.0) == replace(expected, seconds=0.0)
        if number == 1:
            first, *others = drawn  # the step after it may have been begun, in vain
            assert first == 7 and others[-1] is not None and others[-1] > 7
    assert same(all_of(short), all_of(exact))
    exact.close()
    short.close()


@pytest.mark.parametrize("strategy", ["default", "absgrad", "mcmc", "fast"])
def test_the_way_back_is_queued_before_the_host_asks_for_the_loss(
    strategy: StrategyName, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_on(blob_scene, IntersectionCapacity(), replace(CONFIG, strategy=strategy))
    trainer.lookahead.possible = False  # as in steps in which the strategy changes Gaussians
    trainer.train_step()
    order: list[str] = []

    def noting(owner: Any, name: str) -> None:
        real = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            order.append(name)
            return real(*args, **options)

        monkeypatch.setattr(owner, name, noted)

    for owner, name in (
        (transfer.ReadBack, "read"),
        *((train_step_module, n) for n in ("draw_as_planned", "backward", "apply_gradients")),
    ):
        noting(owner, name)
    # Ranks agree on the host alone.
    monkeypatch.setattr("splatstudio.training.trainer.together", lambda _, work: work())
    with WaitingOperations() as watched:
        trainer.train_step()
    assert order == ["draw_as_planned", "backward", "read", "apply_gradients"]
    assert watched.waiting == []
    trainer.close()


def test_a_loss_that_is_no_number_changes_nothing(blob_scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = trainer_on(blob_scene, IntersectionCapacity())
    trainer.train_step()
    before = all_of(trainer)
    loss_of = StepLoss.__call__
    monkeypatch.setattr(StepLoss, "__call__", lambda *args: loss_of(*args) * float("nan"))
    with pytest.raises(FloatingPointError, match="the loss became nan"):
        trainer.train_step()
    assert same(all_of(trainer), before)
    assert trainer.whole
    trainer.close()
