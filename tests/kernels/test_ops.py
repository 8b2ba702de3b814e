"""The native kernels against the plain-torch reference, torch's own optimizer, and themselves."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace

import pytest
import torch
from op_cases import (
    MODELS,
    PROJECTED,
    camera_of,
    gaussians_of,
    leaves_of,
    random_like,
    relative_error,
    with_kernels,
)
from torch import Tensor

from splatstudio.cameras.camera import Camera, CameraModel
from splatstudio.kernels import ops, reference
from splatstudio.kernels.stages import Projected, ProjectSettings, RasterSettings


def projected_of(num: int, camera: Camera, seed: int = 0) -> Projected:
    with torch.no_grad():
        return reference.project(*gaussians_of(num, seed), camera=camera, settings=ProjectSettings())


def with_leaves(projected: Projected) -> Projected:
    return Projected(
        *(getattr(projected, name).clone().requires_grad_() for name in PROJECTED), radii=projected.radii
    )


@pytest.mark.parametrize("size", [(75, 50), (16, 16), (1, 1), (17, 1), (8, 33)])
@pytest.mark.parametrize("max_alpha", [0.999, 0.99])
def test_rasterize_equals_the_reference(size: tuple[int, int], max_alpha: float) -> None:
    width, height = size
    projected = projected_of(400, camera_of(width=width, height=height), seed=3)
    settings = RasterSettings(width, height, torch.tensor([0.2, 0.5, 0.9]), max_alpha)
    images, gradients = [], []
    for backend in (ops, reference):
        leaves = with_leaves(projected)
        raster = backend.rasterize(leaves, settings)
        outputs = [raster.rgb, raster.alpha, raster.depth_sum]
        loss = sum((value * random_like(value, i)).sum() for i, value in enumerate(outputs))
        loss.backward()  # type: ignore[union-attr]
        images.append(outputs)
        gradients.append([getattr(leaves, name).grad for name in PROJECTED])
    for ours, theirs in zip(*images, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    for name, ours, theirs in zip(PROJECTED, *gradients, strict=True):
        assert relative_error(ours, theirs) < 2e-4, name


@pytest.mark.parametrize("output", ["rgb", "alpha", "depth_sum"])
def test_each_output_alone_has_the_reference_gradient(output: str) -> None:
    camera = camera_of()
    projected = projected_of(300, camera, seed=4)
    settings = RasterSettings(camera.width, camera.height, torch.tensor([0.3, 0.1, 0.7]))
    gradients = []
    for backend in (ops, reference):
        leaves = with_leaves(projected)
        value = getattr(backend.rasterize(leaves, settings), output)
        (value * random_like(value, 7)).sum().backward()
        gradients.append([getattr(leaves, name).grad for name in PROJECTED])
    for name, ours, theirs in zip(PROJECTED, *gradients, strict=True):
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        assert torch.allclose(ours, theirs, rtol=1e-3, atol=2e-5 * float(theirs.abs().max())), name


@pytest.mark.parametrize("name", ["rasterize", "rasterize_absgrad"])
def test_the_probe_collects_what_the_reference_collects(name: str) -> None:
    camera = camera_of()
    settings = RasterSettings(camera.width, camera.height, torch.zeros(3))
    projected = projected_of(300, camera, seed=5)
    collected = []
    for backend in (ops, reference):
        probe = torch.zeros(300, 2, requires_grad=True)
        leaves = with_leaves(projected)
        rgb = getattr(backend, name)(leaves, settings, probe).rgb
        (rgb * random_like(rgb, 1)).sum().backward()
        assert probe.grad is not None and leaves.means2d.grad is not None
        assert torch.equal(probe.grad, leaves.means2d.grad) == (name == "rasterize")
        collected.append(probe.grad)
    assert relative_error(*collected) < 1e-4


def train_once(num_threads: int) -> list[Tensor]:
    """Return image, gradients and updated parameters of one step on `num_threads` threads."""
    camera = camera_of(width=150, height=101)
    leaves = leaves_of(gaussians_of(5000, seed=6))
    with ops.limited_threads(num_threads):
        projected = ops.project(*leaves, camera=camera, settings=ProjectSettings(antialiased=True))
        probe = torch.zeros(5000, 2, requires_grad=True)
        settings = RasterSettings(camera.width, camera.height, torch.zeros(3))
        raster = ops.rasterize_absgrad(projected, settings, probe)
        target = random_like(raster.rgb, 8).sigmoid()
        loss = ops.l1_ssim(raster.rgb, target, ssim_weight=0.2)
        (loss + 0.1 * raster.alpha.mean() + 0.01 * raster.depth_sum.mean()).backward()
        gradients = [leaf.grad for leaf in leaves]
        moments = [torch.zeros_like(leaf) for leaf in leaves], [torch.zeros_like(leaf) for leaf in leaves]
        for leaf, grad, m, v in zip(leaves, gradients, *moments, strict=True):
            assert grad is not None
            ops.adam_step(leaf, grad, m, v, lr=1e-2, beta1=0.9, beta2=0.999, eps=1e-8, step=1)
    assert probe.grad is not None
    return [raster.rgb, raster.depth_sum, loss, probe.grad, *gradients, *leaves]  # type: ignore[list-item]


@pytest.mark.cpu_kernels
def test_any_number_of_threads_gives_the_same_bits() -> None:
    expected = train_once(1)
    for num_threads in (2, 3, 8, 2):
        for ours, theirs in zip(train_once(num_threads), expected, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.cpu_kernels
def test_the_portable_kernels_agree_with_those_of_this_machine(tmp_path) -> None:
    (portable,) = with_kernels("portable", ["test_ops.train_once(2)"], tmp_path / "portable.pt").values()
    for ours, theirs in zip(portable[:-6], train_once(2)[:-6], strict=True):
        assert relative_error(ours, theirs.detach()) < 1e-3


@pytest.mark.cpu_kernels
def test_calls_from_two_threads_do_not_disturb_each_other() -> None:
    """A viewer renders while a training step runs."""
    expected = train_once(2)
    results: list[list[Tensor]] = []

    def view() -> None:
        for _ in range(5):
            results.append(train_once(2))

    viewers = [threading.Thread(target=view) for _ in range(3)]
    for viewer in viewers:
        viewer.start()
    for _ in range(5):
        results.append(train_once(2))
    for viewer in viewers:
        viewer.join(timeout=200)
        assert not viewer.is_alive()
    assert len(results) == 20
    for result in results:
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(result, expected, strict=True))


@pytest.mark.cpu_kernels
def test_a_running_kernel_does_not_hold_the_interpreter() -> None:
    size = 40_000_000
    tensors = [torch.zeros(size) for _ in range(4)]
    ticks: list[float] = []
    finished = threading.Event()

    def tick() -> None:
        while not finished.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    time.sleep(0.01)
    started = time.perf_counter()
    for step in range(1, 4):
        ops.adam_step(*tensors, lr=1e-3, beta1=0.9, beta2=0.999, eps=1e-8, step=step)
    ended = time.perf_counter()
    finished.set()
    ticker.join()
    # Three calls that held the interpreter would let the other thread run twice, between them.
    assert len([moment for moment in ticks if started < moment < ended]) > 5


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_makes_its_own_threads() -> None:
    tensors = [torch.ones(200_000) for _ in range(4)]
    settings = {"lr": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "step": 1}
    with ops.limited_threads(2):
        ops.adam_step(*tensors, **settings)
        child = os.fork()
        if child == 0:
            ops.adam_step(*tensors, **settings)
            os._exit(17)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            assert os.waitstatus_to_exitcode(status) == 17
            return
        time.sleep(0.01)
    os.kill(child, 9)
    os.waitpid(child, 0)
    pytest.fail("the forked process hangs")


def test_the_number_of_threads_follows_torch_and_the_limit() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        assert ops.num_threads() == 3
        with ops.limited_threads(1):
            assert ops.num_threads() == 1
            with ops.limited_threads(5):
                assert ops.num_threads() == 5
            assert ops.num_threads() == 1
        assert ops.num_threads() == 3
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("wanted", "policy"), [(None, "passive"), ("active", "active")])
def test_torchs_idle_threads_leave_the_cores_to_the_kernels(wanted: str | None, policy: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
    if wanted is not None:
        environment["OMP_WAIT_POLICY"] = wanted
    script = "import sys, os, splatstudio; print(os.environ['OMP_WAIT_POLICY'], 'torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert result.stdout.split() == [policy, "False"], result.stderr


@pytest.mark.parametrize("eps", [1e-8, 1e-15])
def test_adam_equals_torch(eps: float) -> None:
    generator = torch.Generator().manual_seed(0)
    ours = torch.randn(777, 3, generator=generator)
    theirs = ours.clone().requires_grad_()
    optimizer = torch.optim.Adam([theirs], lr=3e-3, betas=(0.8, 0.99), eps=eps)
    exp_avg, exp_avg_sq = torch.zeros_like(ours), torch.zeros_like(ours)
    for step in range(1, 30):
        grad = torch.randn(777, 3, generator=generator) * 10.0 ** (step % 7 - 5)
        grad[::5] = 0.0
        theirs.grad = grad
        optimizer.step()
        ops.adam_step(ours, grad, exp_avg, exp_avg_sq, lr=3e-3, beta1=0.8, beta2=0.99, eps=eps, step=step)
        assert torch.allclose(ours, theirs.detach(), rtol=2e-6, atol=1e-7)


def masks(height: int, width: int) -> dict[str, Tensor | None]:
    half = torch.zeros(height, width, dtype=torch.bool)
    half[: height // 2] = True
    spots = torch.rand(height, width, generator=torch.Generator().manual_seed(1)) > 0.6
    return {"none": None, "half": half, "spots": spots, "empty": torch.zeros_like(half)}


@pytest.mark.parametrize("mask_name", ["none", "half", "spots", "empty"])
@pytest.mark.parametrize("ssim_weight", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("shape", [(41, 57, 3), (11, 11, 1), (12, 90, 4), (75, 333, 3)])
def test_l1_ssim_equals_the_reference(
    mask_name: str, ssim_weight: float, shape: tuple[int, int, int]
) -> None:
    image = random_like(torch.empty(shape), 0).sigmoid()
    target = (image + 0.1 * random_like(image, 1)).clamp(0, 1)
    target[0, 0] = image[0, 0]  # |0| has gradient 0
    mask = masks(*shape[:2])[mask_name]
    values, gradients = [], []
    for backend in (ops, reference):
        leaf = image.clone().requires_grad_()
        value = backend.l1_ssim(leaf, target, ssim_weight=ssim_weight, mask=mask)
        (3.0 * value).backward()
        values.append(value.detach())
        gradients.append(torch.zeros_like(image) if leaf.grad is None else leaf.grad)
    assert torch.allclose(*values, rtol=1e-4, atol=1e-6)
    assert relative_error(*gradients) < 1e-3 or float(gradients[0].abs().max()) < 1e-9
    if mask is not None:
        assert float(gradients[0][~mask].abs().sum()) == 0.0


@pytest.mark.parametrize("shape", [(40, 30, 3), (7, 5, 3), (64, 33, 4)])
def test_ssim_with_zero_padding_equals_the_reference(shape: tuple[int, int, int]) -> None:
    image, target = random_like(torch.empty(shape), 0).sigmoid(), random_like(torch.empty(shape), 1).sigmoid()
    gradients = []
    for backend in (ops, reference):
        leaf = image.clone().requires_grad_()
        value = backend.ssim(leaf, target, padding="same")
        value.backward()
        gradients.append((value.detach(), leaf.grad))
    assert abs(gradients[0][0] - gradients[1][0]) < 1e-5
    assert relative_error(gradients[0][1], gradients[1][1]) < 1e-4


def test_small_images_are_refused_by_a_valid_window() -> None:
    image = torch.zeros(10, 40, 3)
    with pytest.raises(ValueError, match="40 x 10 pixels is too small"):
        ops.ssim(image, image, padding="valid")
    with pytest.raises(ValueError, match="too small"):
        ops.l1_ssim(image, image, ssim_weight=0.2)
    assert float(ops.l1_ssim(image, image + 0.5, ssim_weight=0.0)) == 0.5


def test_gradients_that_are_expanded_views_are_taken() -> None:
    camera = camera_of()
    leaves = leaves_of(gaussians_of(100))
    projected = ops.project(*leaves, camera=camera, settings=ProjectSettings())
    raster = ops.rasterize(projected, RasterSettings(camera.width, camera.height, torch.zeros(3)))
    raster.rgb.sum().backward()  # an expanded scalar
    assert leaves[0].grad is not None and float(leaves[0].grad.abs().sum()) > 0


def test_inputs_that_do_not_fit_are_refused() -> None:
    means, *rest = gaussians_of(10)
    with pytest.raises(RuntimeError, match="quats must have size 10"):
        ops.project(means, rest[0][:9], *rest[1:], camera=camera_of(), settings=ProjectSettings())
    with pytest.raises(RuntimeError, match="SH degree is not stored"):
        ops.project(*gaussians_of(10, sh_degree=1), camera=camera_of(), settings=ProjectSettings(2))
    with pytest.raises(RuntimeError, match="data type"):
        ops.project(means.double(), *rest, camera=camera_of(), settings=ProjectSettings())


def test_wide_images_are_drawn_to_the_last_column() -> None:
    camera = replace(camera_of(), width=8192, height=20)
    K = camera.K.copy()
    K[0, 2] = 8190.0
    projected = projected_of(200, replace(camera, K=K))
    raster = ops.rasterize(projected, RasterSettings(8192, 20, torch.zeros(3)))
    expected = reference.rasterize(projected, RasterSettings(8192, 20, torch.zeros(3)))
    assert float(raster.alpha[:, -20:].sum()) > 1.0
    assert torch.allclose(raster.rgb, expected.rgb, rtol=1e-3, atol=1e-4)


def test_the_operators_say_truly_what_they_change() -> None:
    tensors = [torch.ones(20) for _ in range(4)]
    assert ops.native_version()  # loaded
    native = torch.ops.splatstudio
    arguments = (*tensors, [1e-3, 0.9, 0.999, 1e-8], 1, 1)
    torch.library.opcheck(native.adam_step.default, arguments, test_utils="test_schema")
    image = torch.rand(20, 20, 3)
    arguments = (image, image, None, 0.8, 0.2, False, True, 1)
    torch.library.opcheck(native.image_loss.default, arguments, test_utils="test_schema")


def test_a_missing_extension_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.delenv("SPLATSTUDIO_EXTENSION", raising=False)
    ops._native.cache_clear()
    try:
        assert not ops.is_available()
        with pytest.raises(RuntimeError, match="not built; run `pip install"):
            ops.ssim(torch.zeros(20, 20, 3), torch.zeros(20, 20, 3), padding="same")
    finally:
        ops._native.cache_clear()


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("sh_degree", [0, 1, 2, 3])
def test_project_equals_the_reference(model: CameraModel, antialiased: bool, sh_degree: int) -> None:
    settings = ProjectSettings(sh_degree, antialiased)
    gradients = []
    outputs = []
    for backend in (ops, reference):
        leaves = leaves_of(gaussians_of(203))  # no multiple of the eight lanes
        projected = backend.project(*leaves, camera=camera_of(model), settings=settings)
        values = [getattr(projected, name) for name in PROJECTED]
        loss = sum((value * random_like(value, i)).sum() for i, value in enumerate(values))
        loss.backward()  # type: ignore[union-attr]
        outputs.append([*values, projected.radii])
        gradients.append([leaf.grad for leaf in leaves])
    assert torch.equal(outputs[0][-1], outputs[1][-1])
    assert int((outputs[0][-1] > 0).all(dim=1).sum()) > 50
    for name, ours, theirs in zip(PROJECTED, *outputs, strict=False):
        assert relative_error(ours, theirs) < 2e-5, name
    for ours, theirs in zip(*gradients, strict=True):
        if ours is None:  # coefficients that are not in use
            assert sh_degree == 0 and not theirs.any()
        else:
            assert relative_error(ours, theirs) < 1e-4


@pytest.mark.parametrize("antialiased", [False, True])
@pytest.mark.parametrize("sh_degree", [0, 1, 3])
def test_projecting_raw_parameters_equals_activating_them_before(antialiased: bool, sh_degree: int) -> None:
    settings = ProjectSettings(sh_degree, antialiased)
    values, gradients = [], []
    for raw in (True, False):
        means, quats, scales, opacities, *sh = gaussians_of(1203)
        leaves = leaves_of([means, quats, scales.log(), opacities.logit(), *sh])
        if raw:
            projected = ops.project_raw(*leaves, camera=camera_of(), settings=settings)
        else:
            rows = (*leaves[:2], leaves[2].exp(), leaves[3].sigmoid(), *leaves[4:])
            projected = ops.project(*rows, camera=camera_of(), settings=settings)
        outputs = [getattr(projected, name) for name in PROJECTED]
        sum((value * random_like(value, i)).sum() for i, value in enumerate(outputs)).backward()  # type: ignore[union-attr]
        values.append(outputs)
        gradients.append([leaf.grad for leaf in leaves if leaf.grad is not None])
    for name, ours, theirs in zip(PROJECTED, *values, strict=True):
        assert relative_error(ours, theirs) < 2e-6, name
    for ours, theirs in zip(*gradients, strict=True):
        assert relative_error(ours, theirs) < 1e-5
        assert torch.equal(ours == 0, theirs == 0)  # the same rows are left out


def test_raw_parameters_that_are_no_numbers_or_too_large_are_culled() -> None:
    means, quats, scales, opacities, *sh = gaussians_of(64)
    scales, opacities = scales.log(), opacities.logit() + 5.0
    odd = torch.tensor([float("nan"), float("inf"), 89.0, 200.0])
    scales[:4, 1], opacities[8:10] = odd, torch.tensor([float("nan"), float("-inf")])
    leaves = leaves_of([means, quats, scales, opacities, *sh])
    projected = ops.project_raw(*leaves, camera=camera_of(), settings=ProjectSettings())
    visible = (projected.radii > 0).all(dim=1)
    assert not visible[:4].any() and not visible[8:10].any() and int(visible.sum()) > 20
    (projected.conics.sum() + projected.opacities.sum()).backward()
    for leaf in leaves[:5]:
        assert leaf.grad is not None and leaf.grad.isfinite().all()
        assert not leaf.grad[:4].any() and not leaf.grad[8:10].any()
