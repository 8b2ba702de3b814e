"""Lists with room for more or fewer instances than there are, for which the host does not wait."""

from __future__ import annotations

import pytest
import torch
from emulated_kernels import HEIGHT, NUM, OPTIONS, VIEW, WIDTH, gaussians, native
from torch import Tensor

from splatstudio.distributed.failures import is_out_of_memory


def projected() -> list[Tensor]:
    return list(native.project_fwd(*gaussians(), VIEW, OPTIONS, 1))


def raster_and_back(lists: list[Tensor], with_absgrad: bool = True) -> list[Tensor]:
    """Return a picture of the lists and what its way back gives for a gradient of ones."""
    rgb, alpha, depth_sum, *state = native.raster_fwd(*lists, torch.full((3,), 0.3), WIDTH, HEIGHT, 0.999, 1)
    v = [torch.ones_like(picture) for picture in (rgb, alpha, depth_sum)]
    gradients = native.raster_bwd(
        *lists, *state, rgb, alpha, depth_sum, *v, NUM, 0.999, with_absgrad, True, 1
    )
    return [rgb, alpha, depth_sum, *gradients]


@pytest.mark.parametrize("more", [0, 1, 33, 5000])
@pytest.mark.parametrize("seed", [-1, 1])
def test_room_that_is_left_changes_no_bit(more: int, seed: int) -> None:
    native.set_order_seed(seed)
    rows = projected()
    exact = native.bin(*rows, WIDTH, HEIGHT, 1)
    num = len(exact[4])
    assert num > 100
    roomy = native.bin_within(*rows, WIDTH, HEIGHT, num + more)
    assert int(roomy[2][-1]) == num and len(roomy[4]) == num + more
    for ours, expected in zip(raster_and_back(roomy), raster_and_back(exact), strict=True):
        assert torch.equal(ours, expected)
    native.set_order_seed(-1)


@pytest.mark.parametrize("share", [0.0, 0.4, 0.99])
def test_without_room_for_all_the_nearest_are_drawn_and_the_number_is_told(share: float) -> None:
    rows = projected()
    exact = native.bin(*rows, WIDTH, HEIGHT, 1)
    num = len(exact[4])
    room = int(share * num)
    short = native.bin_within(*rows, WIDTH, HEIGHT, room)
    assert torch.equal(short[2], exact[2]) and int(short[3][-1]) == room
    outputs = raster_and_back(short)
    assert all(torch.isfinite(output).all() for output in outputs)
    # A splat is in the lists while its first slot is: the picture is that of the nearest alone.
    whole = (exact[2][1:] <= room) & (exact[2][1:] > exact[2][:-1])
    nearest = exact[1][whole].long()
    v_colors = outputs[7]
    assert (v_colors[nearest].abs().sum(dim=1) > 0).float().mean() > 0.5 or share == 0.0
    beyond = exact[1][exact[2][:-1] >= room].long()
    assert torch.equal(v_colors[beyond], torch.zeros(len(beyond), 3)) and len(beyond) > 0


def test_only_lists_of_unknown_size_wait_for_the_device() -> None:
    rows = [native.to_device(tensor, 1) for tensor in projected()]
    waits = native.num_waits()
    lists = native.bin_within(*rows, WIDTH, HEIGHT, 4000)
    background = native.to_device(torch.zeros(3), 1)
    native.raster_fwd(*lists, background, WIDTH, HEIGHT, 0.999, 1)
    assert native.num_waits() == waits
    native.bin(*rows, WIDTH, HEIGHT, 1)
    assert native.num_waits() > waits


def test_a_room_that_no_list_can_have_is_refused() -> None:
    rows = projected()
    for room in (-1, 2**31):
        with pytest.raises(RuntimeError, match=f"no such room: {room}"):
            native.bin_within(*rows, WIDTH, HEIGHT, room)


def test_memory_that_a_device_has_not_is_told_as_torch_tells_it() -> None:
    rows = [native.to_device(tensor, 1) for tensor in projected()]
    for room in (2**29, 2**31 - 2):
        with pytest.raises(
            RuntimeError, match=f"can't allocate memory on cuda:1 for {room} numbers"
        ) as caught:
            native.bin_within(*rows, WIDTH, HEIGHT, room)
        assert is_out_of_memory(caught.value)


def test_a_launch_without_memory_is_survived_as_any_lack_of_it() -> None:
    native.lack_memory()
    with pytest.raises(
        RuntimeError, match="project_fwd failed on cuda:0: CUDA error: out of memory"
    ) as caught:
        native.project_fwd(*gaussians(), VIEW, OPTIONS, 1)
    assert is_out_of_memory(caught.value)
    native.project_fwd(*gaussians(), VIEW, OPTIONS, 1)
