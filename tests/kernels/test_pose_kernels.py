"""The gradient of a camera's place on native kernels, against plain torch in double precision."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from pose_cases import CAMERA, case, check, twist

from splatstudio.kernels import ops, ops_training, reference_training

GPU = pytest.param(
    "cuda",
    marks=[
        pytest.mark.cuda,
        pytest.mark.skipif(not ops.has_cuda_kernels(), reason="no GPU, or no CUDA kernels"),
    ],
)
pytestmark = [
    pytest.mark.skipif(not ops.is_available(), reason="the native kernels are not built"),
    pytest.mark.parametrize("device", ["cpu", GPU]),
]


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_the_kernel_says_what_plain_torch_does(degree: int, device: str) -> None:
    found = check(case(device=device), degree)
    assert float(found.abs().min()) > 1e-3
    stored = case(device=device, degree=degree)
    check(stored, degree)


def test_the_result_is_the_same_for_any_number_of_threads(device: str) -> None:
    one, before = case(device=device), torch.get_num_threads()
    try:
        results = []
        for number in (1, 2, 5):
            torch.set_num_threads(number)
            results.append(twist(ops_training, one))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_who_is_not_seen_or_has_no_gradient_says_nothing(device: str) -> None:
    gaussians, gradients, radii = case(600, device)
    nobody = (gaussians, gradients, torch.zeros_like(radii))
    empty = (gaussians[:0], {k: None if v is None else v[:0] for k, v in gradients.items()}, radii[:0])
    unused = (gaussians, {**gradients, "means": None}, radii)
    for one in (nobody, empty, unused):
        assert torch.equal(twist(ops_training, one), torch.zeros(6, dtype=torch.float64, device=device))
        assert torch.equal(twist(reference_training, one), twist(ops_training, one))
    # Without colors that depend on the direction the harmonics do not matter.
    colorless = twist(ops_training, (gaussians, {**gradients, "sh0": None}, radii))
    assert torch.equal(colorless, twist(ops_training, (gaussians, gradients, radii), 0))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_gradients_that_are_no_numbers_are_left_out(bad: float, device: str) -> None:
    gaussians, gradients, radii = case(600, device)
    first, second, third = (radii > 0).all(dim=1).nonzero()[:3, 0].tolist()
    without = radii.clone()
    without[[first, second, third]] = 0
    for name, row in (("means", first), ("quats", second), ("sh0", third)):
        gradient = gradients[name]
        assert gradient is not None
        gradient[row] = bad
    found, expected = (
        check((gaussians, gradients, radii), 3),
        twist(ops_training, (gaussians, gradients, without)),
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_a_gaussian_at_the_cameras_own_place_spoils_nothing(device: str) -> None:
    gaussians, gradients, radii = case(600, device)
    row = int((radii > 0).all(dim=1).nonzero()[0])
    means = gaussians.means.clone()
    means[row] = torch.as_tensor(CAMERA.position, dtype=torch.float32)
    found = check((replace(gaussians, means=means), gradients, radii), 3)
    assert found.isfinite().all()


def test_what_does_not_fit_is_refused(device: str) -> None:
    gaussians, gradients, radii = case(60, device, degree=1)
    with pytest.raises(RuntimeError, match="the active SH degree is not stored"):
        twist(ops_training, (gaussians, gradients, radii), 2)
    with pytest.raises(RuntimeError, match="radii must have size 60"):
        twist(ops_training, (gaussians, gradients, radii[:50]), 1)
    with pytest.raises(RuntimeError, match="v_quats has the wrong data type"):
        quats = gradients["quats"]
        assert quats is not None
        twist(ops_training, (gaussians, {**gradients, "quats": quats.double()}, radii), 1)


def test_the_schema_says_what_the_kernel_does(device: str) -> None:
    gaussians, gradients, radii = case(60, device)
    g, v = gaussians, gradients
    view = [*CAMERA.viewmat[:3].reshape(-1).tolist(), *CAMERA.position.tolist()]
    arguments = (g.means, g.quats, g.shN, v["means"], v["quats"], v["sh0"], radii, view, 3, 1)
    operator = torch.ops.splatstudio.pose_gradient.default
    torch.library.opcheck(operator, arguments, test_utils="test_schema")
