"""Steps for which one process has no memory: left out before the model changes, told as torn behind that."""

from __future__ import annotations

import pytest
import torch
from host_watch import HostWatch, watched
from lookahead_trainings import all_of, same

from splatstudio.corrections.corrections import LearnedRows
from splatstudio.devices.transfer import ReadBack, to_device
from splatstudio.kernels.ops_training import StepGate
from splatstudio.optimization import gradients, train_step
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import PoseConfig
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=20, poses=PoseConfig(enabled=True, start_step=0))


def without_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("out of memory")


@pytest.mark.parametrize("part", ["draw", "backward", "gradient_of_pose"])
def test_a_step_is_left_out_wherever_its_pictures_have_no_memory(
    part: str, blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = gradients if part == "draw" else train_step
    real, asked = getattr(owner, part), iter(range(100))

    def short_once(*args: object, **options: object) -> object:
        return without_memory() if next(asked) == 0 else real(*args, **options)

    trainer = Trainer(blob_scene, CONFIG)
    monkeypatch.setattr(owner, part, short_once)
    stats = trainer.train_step()
    assert stats.problem is not None and "the photos of a step were left out" in stats.problem
    assert stats.step == 1 and trainer.parts.population.optimizer.num_steps == 1
    trainer.close()


def test_a_step_that_is_always_short_ends_the_training_and_changes_nothing(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(blob_scene, CONFIG)
    before = all_of(trainer)
    monkeypatch.setattr(train_step, "backward", without_memory)
    with pytest.raises(MemoryError, match="no memory for a step, 3 times in a row"):
        trainer.train_step()
    assert trainer.whole and same(all_of(trainer), before)
    trainer.close()


def test_a_model_whose_change_had_no_memory_counts_as_torn(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(blob_scene, CONFIG)
    monkeypatch.setattr(train_step, "apply_gradients", without_memory)
    with pytest.raises(torch.OutOfMemoryError):
        trainer.train_step()
    assert not trainer.whole
    trainer.close()


GPU = torch.device("cpu")  # a device that is named counts as one


@pytest.mark.parametrize("loss", [0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("room", [7, 6])
def test_a_gate_lets_rows_make_their_step_whole_or_not_at_all(room: int, loss: float) -> None:
    random = torch.Generator().manual_seed(1)
    tables = [LearnedRows.starting_at(torch.rand(5, 3, 4, generator=random)) for _ in range(2)]
    for name, tensor in tables[1].tensors().items():
        tensor.copy_(tables[0].tensors()[name])
    gate = StepGate(torch.tensor([7]), room, torch.tensor(loss))
    before = tables[1].values.clone()
    for _ in range(3):
        gradient = torch.rand(2, 3, 4, generator=random)
        if room == 7 and loss == 0.5:
            tables[0].step([1, 4], gradient, 0.1)
            tables[0].center()
        tables[1].step([1, 4], gradient, 0.1, gate=gate)
        tables[1].center(gate)
    for name, tensor in tables[1].tensors().items():
        assert torch.equal(tensor, tables[0].tensors()[name])
    assert torch.equal(tables[1].values, before) != (room == 7 and loss == 0.5)


def test_numbers_come_back_in_their_order() -> None:
    numbers = ReadBack(torch.tensor(0.5), torch.tensor([3, 4]), torch.tensor([[1.5]], dtype=torch.float64))
    assert numbers.read() == (0.5, 3.0, 4.0, 1.5)


def test_the_watch_tells_what_a_gpu_would_make_the_host_wait_for() -> None:
    tensor = torch.rand(6, device=GPU)
    host = torch.rand(3, 3, device="cpu")
    waiting = {
        "item": lambda: tensor.sum().item(),
        "__bool__": lambda: bool((tensor > 0).any()),
        "tolist": lambda: tensor.tolist(),
        "nonzero": lambda: tensor.nonzero(),
        "an index that is a mask": lambda: tensor[tensor > 0.5],
        "an index that the host has": lambda: tensor[[0, 2]],
        "a copy to the host": lambda: tensor.cpu(),
        "new_tensor": lambda: tensor.new_tensor([1.0]),
        "tensor on a device": lambda: torch.tensor([1.0], device=GPU),
        "a copy to a device": lambda: torch.tensor([1.0]).to(GPU),
    }
    for reason, work in waiting.items():
        (told,) = watched(work)
        assert told.startswith(reason)
    assert watched(lambda: tensor * to_device(torch.tensor([2.0]), GPU) + tensor.sum()) == []
    with HostWatch() as watch:
        own = torch.zeros(3, device="cpu") + torch.eye(3)
        assert int(own.sum()) == 3 and host is not own
    assert watch.waits == []
