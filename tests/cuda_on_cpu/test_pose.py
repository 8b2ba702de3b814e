"""The gradient of a camera's place on emulated GPUs: which of them, and that nobody waits for it."""

from __future__ import annotations

import pytest
import torch
from emulated_kernels import native
from host_watch import HostWatch
from pose_cases import CAMERA, case, check, twist
from torch import Tensor

from splatstudio.kernels import ops_training

VIEW = [*CAMERA.viewmat[:3].reshape(-1).tolist(), *CAMERA.position.tolist()]


def tensors(num: int) -> list[Tensor]:
    gaussians, gradients, radii = case(num)
    named = [gradients[name] for name in ("means", "quats", "sh0")]
    rows = [gaussians.means, gaussians.quats, gaussians.shN, *named, radii]
    return [tensor for tensor in rows if tensor is not None]


@pytest.mark.parametrize("num", [2500, 1024, 1, 0])
@pytest.mark.parametrize("degree", [0, 3])
def test_the_kernel_says_what_plain_torch_does(num: int, degree: int) -> None:
    check(case(num), degree)


@pytest.mark.parametrize("device", [0, 2])
def test_it_runs_where_its_tensors_are(device: int) -> None:
    rows = tensors(700)
    there = [native.to_device(tensor, device) for tensor in rows]
    found = native.pose_gradient(*there, VIEW, 3, 1)
    assert native.device_index(found) == device and native.current_device() == 0
    assert torch.equal(native.to_host(found), native.pose_gradient(*rows, VIEW, 3, 1))


def test_tensors_of_two_devices_are_refused() -> None:
    rows = [native.to_device(tensor, 1) for tensor in tensors(50)]
    rows[4] = native.to_device(tensors(50)[4], 0)
    with pytest.raises(RuntimeError, match="v_quats must be on cuda:1"):
        native.pose_gradient(*rows, VIEW, 3, 1)


def test_nobody_waits_for_it() -> None:
    one, waits = case(700), native.num_waits()
    with HostWatch() as watch:
        twist(ops_training, one)
    assert watch.waits == [] and native.num_waits() == waits
