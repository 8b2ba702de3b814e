"""The parts of a step that keep no GPU waiting, on the CPU: gated rows, numbers on their way."""

from __future__ import annotations

import pytest
import torch
from host_watch import HostWatch, watched

from splatstudio.corrections.corrections import LearntRows
from splatstudio.devices.transfer import ReadBack, to_device
from splatstudio.kernels.ops_training import StepGate

GPU = torch.device("cpu")  # a device that is named counts as one


@pytest.mark.parametrize("loss", [0.5, float("nan"), float("inf")])
@pytest.mark.parametrize("room", [7, 6])
def test_a_gate_lets_rows_make_their_step_whole_or_not_at_all(room: int, loss: float) -> None:
    random = torch.Generator().manual_seed(1)
    tables = [LearntRows.starting_at(torch.rand(5, 3, 4, generator=random)) for _ in range(2)]
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
