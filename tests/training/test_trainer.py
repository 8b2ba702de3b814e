"""Training: it learns, repeats bit for bit, goes on bit for bit, and says what went wrong."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from blob_models import NUM_VIEWS

from splatstudio.evaluation.evaluate import evaluate
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization import train_step
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.step import TrainingDiverged
from splatstudio.training.trainer import Trainer

# Densifies at steps 20, 30, 40 and resets at 35: everything happens within a few steps.
BUSY = DensifyConfig(start_step=15, every=10, reset_every=35, grow_grad=1e-5, stop_step=50)
CONFIG = TrainConfig(steps=200, sh_degree=1, sh_degree_every=20, densify=BUSY)


@pytest.fixture(autouse=True)
def trainers() -> Iterator[list[Trainer]]:
    """The trainers a test makes, closed at its end."""
    made: list[Trainer] = []
    yield made
    for one in made:
        one.close()


@pytest.fixture
def start(blob_scene: Scene, trainers: list[Trainer]):
    """A function that makes a Trainer on the blobs, or on another scene."""

    def make(config: TrainConfig = CONFIG, scene: Scene = blob_scene) -> Trainer:
        trainers.append(Trainer(scene, config))
        return trainers[-1]

    return make


def run(trainer: Trainer, num_steps: int) -> list[float]:
    return [trainer.train_step().loss for _ in range(num_steps)]


def assert_same(ours: Gaussians, theirs: Gaussians) -> None:
    for name, tensor in ours.tensors().items():
        assert torch.equal(tensor, theirs.tensors()[name]), name


def test_training_improves_the_test_photos(start: Any, blob_scene: Scene) -> None:
    trainer = start(TrainConfig(steps=300))
    before = evaluate(trainer.gaussians, blob_scene)
    losses = run(trainer, 300)
    after = evaluate(trainer.gaussians, blob_scene)
    assert after.psnr > before.psnr + 1.0 and after.ssim > before.ssim + 0.2
    assert np.mean(losses[-20:]) < 0.6 * np.mean(losses[:20])


def test_the_first_gaussians_stand_at_the_points(start: Any, blob_scene: Scene) -> None:
    gaussians = start(replace(CONFIG, sh_degree=2, init_opacity=0.3)).gaussians
    np.testing.assert_allclose(gaussians.means.numpy(), blob_scene.points, rtol=1e-6)
    torch.testing.assert_close(torch.sigmoid(gaussians.opacities), torch.full((60,), 0.3))
    assert gaussians.sh_degree == 2


def test_a_scene_without_points_starts_at_random_and_learns(start: Any, blob_scene: Scene) -> None:
    scene = replace(blob_scene, points=np.zeros((0, 3), np.float32), colors=np.zeros((0, 3), np.uint8))
    trainer = start(TrainConfig(steps=200, init_random=300), scene)
    assert len(trainer.gaussians) == 300
    losses = run(trainer, 120)
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])


@pytest.mark.parametrize("random_background", [False, True])
@pytest.mark.parametrize("saved_at", [8, 25, 36])  # before the first densification, after it, after the reset
def test_a_resumed_training_goes_on_bit_for_bit(
    start: Any,
    trainers: list[Trainer],
    tmp_path: Path,
    saved_at: int,
    random_background: bool,
) -> None:
    config = replace(CONFIG, random_background=random_background)
    straight = start(config)
    run(straight, saved_at)
    folder = straight.save(tmp_path)
    losses = run(straight, 20)
    resumed = Trainer.resume(straight.scene, folder)
    trainers.append(resumed)
    assert (resumed.step, resumed.config) == (saved_at, config)
    assert run(resumed, 20) == losses
    assert_same(resumed.gaussians, straight.gaussians)
    assert resumed.step == saved_at + 20
    assert len(resumed.gaussians) > 60  # a densification took place


def test_overrides_change_what_may_change(start: Any, trainers: list[Trainer], tmp_path: Path) -> None:
    trainer = start()
    run(trainer, 3)
    folder = trainer.save(tmp_path)
    overrides: dict[str, Any] = {"steps": 5000, "optim.means_lr": 1e-3, "sh_degree": 1}
    resumed = Trainer.resume(trainer.scene, folder, **overrides)
    trainers.append(resumed)
    assert (resumed.config.steps, resumed.config.optim.means_lr) == (5000, 1e-3)
    refusals: list[tuple[dict[str, Any], str]] = [
        ({"sh_degree": 3}, "sh_degree cannot be changed"),
        ({"stepz": 3}, "unknown"),
    ]
    for refused, sentence in refusals:
        with pytest.raises(ValueError, match=sentence):
            Trainer.resume(trainer.scene, folder, **refused)


def test_a_checkpoint_of_another_scene_is_refused(start: Any, tmp_path: Path) -> None:
    trainer = start()
    moved = np.eye(4)
    moved[0, 3] = 0.5
    scene = replace(trainer.scene, transform=moved @ trainer.scene.transform)
    with pytest.raises(ValueError, match="is another scene, or its cameras have changed"):
        Trainer.resume(scene, trainer.save(tmp_path))


def test_every_training_photo_is_used_once_an_epoch_and_no_test_photo(start: Any) -> None:
    trainer = start()
    names = [trainer.train_step().view for _ in range(28)]
    training = {trainer.scene.views[index].name for index in trainer.scene.train_indices}
    assert len(training) == NUM_VIEWS - 2
    epochs = [tuple(names[i : i + 7]) for i in range(0, 28, 7)]
    assert all(set(epoch) == training for epoch in epochs)
    assert len(set(epochs)) > 1  # each in an order of its own


def test_the_degree_of_the_harmonics_rises_with_the_steps(start: Any) -> None:
    trainer = start(replace(CONFIG, sh_degree=2, sh_degree_every=5, densify=DensifyConfig(enabled=False)))
    degrees = [trainer.train_step().sh_degree for _ in range(12)]
    assert degrees == [0] * 5 + [1] * 5 + [2] * 2
    assert trainer.gaussians.shN[:, :3].any() and trainer.gaussians.shN[:, 3:].any()
    first = start(replace(CONFIG, sh_degree=2, sh_degree_every=5))
    run(first, 5)
    assert not first.gaussians.shN.any()


def test_a_live_setting_takes_effect_at_the_next_step(start: Any) -> None:
    trainer = start()
    run(trainer, 2)
    for name in ("means", "scales", "quats", "opacities", "sh0", "shN"):
        trainer.update_setting(f"optim.{name}_lr", 0.0)
    before = trainer.gaussians.map(torch.clone)
    run(trainer, 3)
    assert_same(trainer.gaussians, before)
    trainer.update_setting("optim.sh0_lr", 0.01)
    run(trainer, 1)
    assert not torch.equal(trainer.gaussians.sh0, before.sh0)
    assert torch.equal(trainer.gaussians.means, before.means)


@pytest.mark.parametrize(
    ("path", "value", "sentence"),
    [
        ("sh_degree", 1, "cannot be changed while training"),
        ("strategy", "absgrad", "cannot be changed while training"),
        ("optim.means_lr", -1.0, "must be at least 0"),
        ("optim.momentum", 1.0, "unknown setting"),
    ],
)
def test_other_settings_are_refused(start: Any, path: str, value: Any, sentence: str) -> None:
    trainer = start()
    with pytest.raises(ValueError, match=sentence):
        trainer.update_setting(path, value)
    assert trainer.config == CONFIG


def test_steps_that_are_done_cannot_be_fewer(start: Any) -> None:
    trainer = start()
    run(trainer, 4)
    with pytest.raises(ValueError, match="4 steps are done"):
        trainer.update_setting("steps", 3)
    trainer.update_setting("steps", 4)


def test_densification_is_told_and_counted(start: Any) -> None:
    trainer = start()
    told = {}
    for _ in range(50):
        stats = trainer.train_step()
        assert stats.num_gaussians == len(trainer.gaussians) and stats.seconds > 0
        if stats.change:
            told[stats.step] = str(stats.change)
    # Steps are counted from 1 here and from 0 in the rules, as in gsplat.
    assert sorted(told) == [21, 31, 36, 41]
    assert "cloned" in told[21] and told[36] == "opacities reset"
    assert trainer.gaussians.opacities.sigmoid().max() < 0.5


def test_absolute_gradients_are_counted_when_asked_for(start: Any) -> None:
    quiet = replace(CONFIG.densify, start_step=1000)
    sums = []
    for absgrad in (False, True):
        trainer = start(replace(CONFIG, densify=quiet, strategy="absgrad" if absgrad else "default"))
        run(trainer, 7)
        sums.append(trainer.parts.population.counts["grad2d"].clone())
    # A sum of absolute values is never below the absolute value of the sum.
    assert (sums[1] >= sums[0] * 0.99).all() and sums[1].sum() > 1.5 * sums[0].sum()


def test_what_is_counted_is_the_gradient_of_the_projected_means(
    start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = start(replace(CONFIG, ssim_weight=0.0))
    observed = []
    monkeypatch.setattr(trainer.parts.strategy, "after_step", lambda _, seen, __: observed.extend(seen))
    gaussians = trainer.gaussians.map(torch.Tensor.double)
    stats = trainer.train_step()
    index = [view.name for view in trainer.scene.views].index(stats.view)
    target = torch.from_numpy(trainer.scene.photo(index).rgb).double() / 255
    probe = torch.zeros(60, 2, dtype=torch.float64, requires_grad=True)
    options = RenderOptions(sh_degree=0)
    image = render(gaussians, trainer.scene.cameras[index], options, probe).rgb
    (image - target).abs().mean().backward()
    assert probe.grad is not None
    torch.testing.assert_close(observed[0].gradients2d.double(), probe.grad, rtol=0.02, atol=1e-6)
    assert probe.grad.abs().max() > 1e-4
    assert (observed[0].width, observed[0].height) == (48, 40)


def test_a_random_background_leaves_nothing_transparent_to_hide(start: Any, blob_scene: Scene) -> None:
    config = TrainConfig(steps=400, random_background=True)
    trainer = start(config)
    plain = start(replace(config, random_background=False))
    run(trainer, 100)
    run(plain, 100)
    with torch.no_grad():
        with_random = render(trainer.gaussians, blob_scene.cameras[1]).alpha.mean()
        without = render(plain.gaussians, blob_scene.cameras[1]).alpha.mean()
    # The photos show black where nothing is: only opaque black looks right over every background.
    assert with_random > without + 0.02


def masked_copy(folder: Path, destination: Path) -> Scene:
    """Return the blobs with the left third of each photo spoilt and masked."""
    for part in ("images", "sparse/0", "masks"):
        (destination / part).mkdir(parents=True)
    for file in (folder / "sparse" / "0").iterdir():
        (destination / "sparse" / "0" / file.name).write_bytes(file.read_bytes())
    mask = np.full((40, 48), 255, np.uint8)
    mask[:, :16] = 0
    for file in (folder / "images").iterdir():
        image = np.asarray(cv2.imread(str(file)))
        image[:, :16] = (0, 255, 0)
        cv2.imwrite(str(destination / "images" / file.name), image)
        cv2.imwrite(str(destination / "masks" / file.name), mask)
    return load_scene(destination)


def test_masked_pixels_teach_nothing(start: Any, blob_folder: Path, tmp_path: Path) -> None:
    scene = masked_copy(blob_folder, tmp_path / "masked")
    trainer = start(TrainConfig(steps=300), scene)
    run(trainer, 100)
    unmasked = replace(scene, views=tuple(replace(view, mask_path=None) for view in scene.views))
    spoilt = start(TrainConfig(steps=300), unmasked)
    run(spoilt, 100)

    def green(gaussians: Gaussians) -> float:
        with torch.no_grad():
            left = render(gaussians, scene.cameras[1]).rgb[:, :16]
        return float((left[..., 1] - left[..., [0, 2]].mean(dim=-1)).mean())

    assert green(spoilt.gaussians) > 0.15 > 0.08 > green(trainer.gaussians)


def test_a_loss_that_is_not_a_number_is_told_with_step_and_photo(start: Any) -> None:
    trainer = start()
    run(trainer, 4)
    trainer.gaussians.sh0.fill_(1e38)
    with pytest.raises(
        TrainingDiverged, match=r"the loss became (inf|nan) at step 5, on view_0\d\.png"
    ) as caught:
        trainer.train_step()
    assert isinstance(caught.value, FloatingPointError) and trainer.step == 4


def test_a_model_that_dies_out_is_told(start: Any) -> None:
    trainer = start(replace(CONFIG, init_opacity=0.002))
    with pytest.raises(TrainingDiverged, match="all splats became transparent"):
        run(trainer, 45)


def test_a_scene_with_nothing_to_train_on_is_refused(blob_scene: Scene) -> None:
    with pytest.raises(ValueError, match="has no photos to train on"):
        Trainer(replace(blob_scene, views=()), CONFIG)
    with pytest.raises(ValueError, match="setting steps is 0"):
        Trainer(blob_scene, TrainConfig(steps=0))


def test_another_thread_always_sees_six_tensors_of_one_length(start: Any) -> None:
    trainer = start(replace(CONFIG, densify=replace(BUSY, every=1, start_step=0, max_gaussians=2000)))
    seen: list[tuple[int, ...]] = []
    stop = threading.Event()

    def read() -> None:
        while not stop.wait(0.0002):
            seen.append(tuple(len(tensor) for tensor in trainer.live_gaussians.tensors().values()))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for _ in range(40):
            run(trainer, 1)
            read_so_far = len(seen)
            while len(seen) == read_so_far and reader.is_alive():  # on a busy machine it might miss steps
                time.sleep(0.0002)
    finally:
        stop.set()
        reader.join()
    assert len(set(seen)) > 3 and all(len(set(one)) == 1 for one in seen)


@pytest.mark.parametrize(("stage", "whole"), [("draw_as_planned", True), ("apply_gradients", False)])
def test_it_knows_whether_an_error_has_torn_the_model(
    stage: str, whole: bool, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    trainer = start()
    run(trainer, 2)
    monkeypatch.setattr(train_step, stage, fail)
    with pytest.raises(MemoryError):
        trainer.train_step()
    assert trainer.whole is whole and trainer.step == 2
