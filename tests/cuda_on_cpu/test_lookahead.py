"""Steps on an emulated GPU that are queued before the host knows how the last one went: nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blob_models import blobs, ring_of_cameras
from emulated_kernels import native
from fused_steps import (
    NO_WEIGHTS,
    RATES,
    USED,
    camera_of,
    flush,
    nothing_late,
    settings_of,
    state_of,
    step,
)
from lookahead_trainings import all_of, check_steps, decode, made, same, take_room, training
from quiet_options import CONFIG
from torch import Tensor
from waiting_operations import WaitingOperations

from splatstudio.checkpoints.checkpoint import Checkpoint
from splatstudio.devices import transfer
from splatstudio.kernels.ops import camera_numbers
from splatstudio.kernels.ops_training import StepGate
from splatstudio.optimization import train_step as train_step_module
from splatstudio.optimization.gradients import apply_gradients, backward, draw
from splatstudio.optimization.losses import photometric, psnr, psnr_on_device
from splatstudio.optimization.optim import SplatAdam
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ShapeConfig
from splatstudio.settings.strategy_config import DensifyConfig, McmcConfig, StrategyName
from splatstudio.strategy.population import trainable
from splatstudio.training.step import DrawnStep, StepLoss
from splatstudio.training.trainer import Trainer

GROWING = replace(
    CONFIG,
    steps=24,
    densify=DensifyConfig(start_step=3, every=7, reset_every=11, grow_grad=1e-5),
    mcmc=McmcConfig(start_step=3, every=7, max_gaussians=90),
    shapes=ShapeConfig(max_ratio=3.0),
    random_background=True,
)


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, notes: list[str]) -> None:
    real = getattr(owner, name)

    def noted(*args: Any, **options: Any) -> Any:
        notes.append(name)
        return real(*args, **options)

    monkeypatch.setattr(owner, name, noted)


@pytest.mark.parametrize(("strategy", "steps"), [("default", 13), ("absgrad", 9), ("fast", 16), ("mcmc", 9)])
def test_a_training_is_the_same_to_the_bit(strategy: StrategyName, steps: int, blob_scene: Scene) -> None:
    # With places of the rows, after the first change, for the strategy whose every step looks at them.
    config = replace(GROWING, strategy=strategy, order="morton" if strategy == "mcmc" else "insertion")
    born: list[int] = []
    ahead = check_steps(blob_scene, config, steps, lambda one, _: born.append(one.num_gaussians))
    assert ahead > steps // 3 and born[-1] != born[0]


def test_the_next_step_is_queued_before_the_host_asks_for_the_loss(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    with training(blob_scene, CONFIG) as one:
        for _ in range(2):
            one.train_step()
        for owner, name in (
            (transfer.ReadBack, "read"),
            *((train_step_module, n) for n in ("apply_gradients", "draw_as_planned", "backward")),
        ):
            counted(monkeypatch, owner, name, order)
        waits = native.num_waits()
        with WaitingOperations() as watched:
            stats = [one.train_step() for _ in range(8)]
    # All that is asked for in a step was queued in the step before; the tenth has its PSNR, too.
    assert order == ["apply_gradients", "draw_as_planned", "backward", "read"] * 8
    assert native.num_waits() == waits
    assert watched.waiting == [] and stats[-1].step == 10 and stats[-1].psnr is not None


@pytest.mark.parametrize(("number", "strategy"), [(3, "mcmc"), (6, "default")])
def test_a_step_without_room_is_made_again_and_nothing_else_changes(
    number: int, strategy: StrategyName, blob_scene: Scene
) -> None:
    config = replace(CONFIG, random_background=True, strategy=strategy)
    sizes: list[int | None] = []

    def before(one: Trainer, step_number: int) -> None:
        assert one.parts.capacity is not None
        sizes.append(one.parts.capacity.size)
        if step_number == number:
            take_room(one)

    check_steps(blob_scene, config, 9, before)
    assert sizes[0] is None and all(size is not None and size > 7 for size in sizes[1:])


def test_a_loss_that_is_no_number_changes_nothing_and_ends_the_training(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training(blob_scene, CONFIG) as one:
        for _ in range(3):
            one.train_step()
        assert one.lookahead.begun is not None
        one.lookahead.take_back()
        before, loss_of = all_of(one), StepLoss.__call__
        monkeypatch.setattr(StepLoss, "__call__", lambda *args: loss_of(*args) * float("nan"))
        with pytest.raises(FloatingPointError, match="the loss became nan at step 4"):
            one.train_step()
        assert same(all_of(one), before)
        assert one.whole and one.step == 3 and one.parts.population.optimizer.num_steps == 3
        assert one.lookahead.begun is None


def test_who_saves_finds_the_training_between_two_steps(blob_scene: Scene, tmp_path: Path) -> None:
    with training(blob_scene, GROWING) as one, training(blob_scene, GROWING) as other:
        for number in range(6):
            assert made(one) == made(other)
            if one.lookahead.begun is not None:
                saved = one.checkpoint()
                assert isinstance(saved, Checkpoint) and saved.step == number + 1
                assert saved.population.optimizer.num_steps == number + 1
        folder = one.save(tmp_path)
        resumed = Trainer.resume(blob_scene, folder)
        decode(resumed)
        for _ in range(5):
            assert made(resumed) == made(other) == made(one)
        assert same(all_of(one), all_of(other)) and same(all_of(resumed), all_of(other))
        resumed.close()


def test_who_takes_the_model_finds_the_memory_of_what_was_begun_free(blob_scene: Scene) -> None:
    config = replace(CONFIG, random_background=True)
    with training(blob_scene, config) as one, training(blob_scene, config) as other:
        for _ in range(4):
            assert made(one) == made(other)
            one.gaussians  # noqa: B018 - as an evaluation does
            assert one.lookahead.begun is None
        assert other.lookahead.begun is not None and same(all_of(one), all_of(other))


def test_a_setting_holds_from_the_next_step_on(blob_scene: Scene) -> None:
    with training(blob_scene, CONFIG) as one, training(blob_scene, CONFIG, waits=True) as other:
        for number in range(9):
            for each in (one, other):
                if number == 4:
                    each.update_setting("optim.means_lr", 5e-3)
                if number == 7:
                    each.update_setting("ssim_weight", 0.0)
            assert made(one) == made(other)
        assert same(all_of(one), all_of(other))


def test_without_memory_to_look_ahead_the_steps_are_made_all_the_same(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(CONFIG, random_background=True)
    begin = DrawnStep.begin
    short: list[int] = []

    def no_memory(self: DrawnStep, *args: Any, late: bool = False) -> Any:
        begun = begin(self, *args, late=late)
        if late and self.index % 3 == 1:
            short.append(self.index)
            raise torch.OutOfMemoryError("out of memory")
        return begun

    with training(blob_scene, config) as one, training(blob_scene, config, waits=True) as other:
        expected = [made(other) for _ in range(9)]
        monkeypatch.setattr(DrawnStep, "begin", no_memory)
        assert [made(one) for _ in range(9)] == expected
        assert same(all_of(one), all_of(other)) and len(short) >= 3


def test_a_step_whose_counts_had_no_memory_is_followed_by_one_that_tells_of_it(
    blob_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    with training(blob_scene, CONFIG) as one:
        for _ in range(2):
            one.train_step()
        one.parts.population.short = True
        problem = one.train_step().problem
        assert problem is not None and "Memory ran out" in problem and not one.parts.population.short


@pytest.mark.parametrize("visible_only", [False, True])
@pytest.mark.parametrize("device", [0, 2])
def test_a_gate_lets_a_step_through_whole_or_not_at_all(visible_only: bool, device: int) -> None:
    camera, settings = camera_of(), settings_of()
    view = camera_numbers(camera, settings, raw=True)
    start, expected = state_of(camera, settings), state_of(camera, settings)
    step(expected, camera, settings, visible_only=visible_only)
    for count, room, loss, opened in (
        (9, 9, 0.5, True),
        (0, 9, -3.0, True),
        (10, 9, 0.5, False),
        (2**33, 9, 0.5, False),
        (9, 9, float("nan"), False),
        (9, 9, float("inf"), False),
    ):
        s = start.mapped(lambda tensor: native.to_device(tensor, device))
        gate = (
            native.to_device(torch.tensor([count]), device),
            room,
            native.to_device(torch.tensor(loss), device),
        )
        moving = (s.params, s.exp_avg, s.exp_avg_sq, s.radii, s.colors, s.v_projected)
        late = nothing_late(s)
        native.project_adam_within(*moving, *view, RATES, NO_WEIGHTS, 6, *late, 1, USED, visible_only, *gate)
        if opened and not visible_only:
            flush(s, late)
        wanted = expected if opened else start
        for ours, theirs in ((s.params, wanted.params), (s.exp_avg, wanted.exp_avg)):
            assert all(torch.equal(native.to_host(a), b) for a, b in zip(ours, theirs, strict=True))
        seconds = zip(s.exp_avg_sq, wanted.exp_avg_sq, strict=True)
        assert all(torch.equal(native.to_host(a), b) for a, b in seconds)
    assert native.current_device() == 0


def test_a_gate_of_the_wrong_kind_is_refused() -> None:
    camera, settings = camera_of(), settings_of()
    s = state_of(camera, settings, num=10)
    view = camera_numbers(camera, settings, raw=True)
    moving = (s.params, s.exp_avg, s.exp_avg_sq, s.radii, s.colors, s.v_projected)
    arguments = (*moving, *view, RATES, NO_WEIGHTS, 6, *nothing_late(s), 1, USED, False)
    right = (torch.tensor([3]), 4, torch.tensor(0.5))
    torch.library.opcheck(native.project_adam_within.default, (*arguments, *right), test_utils="test_schema")
    with pytest.raises(RuntimeError, match="loss has the wrong data type"):
        native.project_adam_within(*arguments, *right[:2], torch.tensor(0.5, dtype=torch.float64))
    with pytest.raises(RuntimeError, match="num_instances must be on cuda:1"):
        native.project_adam_within(*there(arguments), *right)


@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("opened", [True, False])
def test_what_a_strategy_does_has_the_gate_too(opened: bool, placed: bool) -> None:
    s, random = state_of(camera_of(), settings_of(), num=700), torch.Generator().manual_seed(2)
    gate = (torch.tensor([5]), 5 if opened else 4, torch.tensor(0.5))
    rows = [*s.params[:3], s.params[3] - 3.0]
    seen = (torch.rand(700, 2, generator=random), s.radii, 40, 30)
    counts = [torch.rand(700, generator=random) for _ in range(3)]
    before, total = rows[0].clone(), [count.clone() for count in counts]
    places = torch.randperm(700, generator=random) if placed else None
    if opened:
        native.inject_noise(*rows, 0.5, 0.005, 99, 1, places)
        native.count_seen(*seen, *counts, 1)
    means = before.clone()
    native.inject_noise_within(means, *rows[1:], 0.5, 0.005, 99, *gate, places)
    native.count_seen_within(*seen, *total, *gate)
    assert torch.equal(means, rows[0]) and torch.equal(means, before) != opened
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(total, counts, strict=True))
    arguments = (before, *rows[1:], 0.5, 0.005, 99, *gate, places)
    torch.library.opcheck(native.inject_noise_within.default, arguments, test_utils="test_schema")
    torch.library.opcheck(native.count_seen_within.default, (*seen, *total, *gate), test_utils="test_schema")


def there(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments whose tensors are on device 1, but for a history, which stays in the host's memory."""

    def moved(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], Tensor):
            return [native.to_device(tensor, 1) for tensor in value]
        stays = not isinstance(value, Tensor) or value.shape == (128, 2)
        return value if stays else native.to_device(value, 1)

    return tuple(moved(value) for value in arguments)


def test_a_psnr_that_waits_for_nothing_is_the_same() -> None:
    image, target = torch.rand(20, 30, 3), torch.rand(20, 30, 3) * 1.1
    mask = torch.rand(20, 30) > 0.4
    assert float(psnr_on_device(image, target)) == psnr(image, target)
    assert float(psnr_on_device(image, target, mask)) == pytest.approx(psnr(image, target, mask), abs=1e-6)
    assert psnr_on_device(image, target, torch.zeros(20, 30, dtype=torch.bool)).isnan()
    with WaitingOperations() as watched:
        psnr_on_device(image, target, mask)
    assert watched.waiting == []


def test_what_is_launched_follows_from_the_room_and_the_size_alone() -> None:
    gaussians = trainable(blobs(num=300))
    optimizer = SplatAdam.zeros(gaussians)
    rates = dict.fromkeys(gaussians.tensors(), 1e-3)
    launched: list[str] = []
    counts: list[int] = []
    for camera in ring_of_cameras()[:4]:
        native.record_launches(True)
        drawing = draw(gaussians, optimizer, camera, RenderOptions(sh_degree=1), observed=True, capacity=5000)
        assert drawing.num_instances is not None
        target = torch.full((camera.height, camera.width, 3), 0.4)
        loss = photometric(drawing.rgb, target, ssim_weight=0.2)
        gate = StepGate(drawing.num_instances, 5000, loss)
        apply_gradients(drawing, backward(drawing, loss), optimizer, rates, gate=gate)
        native.record_launches(False)
        launched.append(native.recorded_launches())
        counts.append(int(drawing.num_instances))
    # So a step can be captured as a graph once, and of the next ones only the arguments change: not
    # of the first, before which no row is late.
    assert "project_lazy" in launched[1] and "project_lazy" not in launched.pop(0)
    assert launched[0] == launched[1] == launched[2] and len(set(counts)) > 1
    names = [line.split()[0] for line in launched[0].splitlines()]
    assert {"project_lazy", "emit", "raster_fwd", "raster_bwd", "gather", "project_adam"} <= set(names)
