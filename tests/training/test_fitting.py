"""What `--batch-size auto` and `--max-splats` come to, for new trainings and for runs that go on."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from command_line import CommandLine

from splatstudio.distributed.rank_devices import RankDevices
from splatstudio.files.run import Run
from splatstudio.gui.state.project import on_devices, open_project, with_settings
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig, FastConfig, McmcConfig, StrategyName
from splatstudio.training import memory_plan
from splatstudio.training.device_options import DeviceOptions
from splatstudio.training.memory_plan import fitted, plan_memory, splats_wanted
from splatstudio.training.trainer import Trainer

GPU, CPU, TWO = RankDevices((0,)), RankDevices(), RankDevices((None, None))
GIB = 1 << 30
LIMIT = "densify.max_gaussians"


def test_auto_holds_as_many_of_a_steps_photos_as_fit(
    monkeypatch: pytest.MonkeyPatch, blob_scene: Scene
) -> None:
    config = TrainConfig(accumulate=12)
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 100 * GIB)
    whole, sentence = fitted(config, blob_scene, GPU, max_splats=None, fit_batch=True)
    assert (whole.batch_size, whole.accumulate) == (12, 1) and "1 x 12 photos" in sentence
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 5 * GIB)
    part, sentence = fitted(config, blob_scene, GPU, max_splats=None, fit_batch=True)
    assert 1 < part.batch_size < 12 and part.batch_size * part.accumulate == 12
    assert f"{part.accumulate} x {part.batch_size} photos" in sentence
    most = fitted(replace(config, batch_size=64), blob_scene, GPU, max_splats=5000, fit_batch=True)[0]
    assert (most.batch_size, most.accumulate) == (64, 12), "as many at once as a setting allows"
    with pytest.raises(ValueError, match="--accumulate 8 --batch-size auto"):
        fitted(TrainConfig(), blob_scene, GPU, max_splats=None, fit_batch=True)


def test_the_strategys_own_limit_is_planned_with(blob_scene: Scene) -> None:
    few = McmcConfig(max_gaussians=3000)
    assert splats_wanted(TrainConfig(), blob_scene) == 2_000_000
    assert splats_wanted(TrainConfig(strategy="mcmc", mcmc=few), blob_scene) == 3000
    fast = splats_wanted(TrainConfig(strategy="fast"), blob_scene)
    assert len(blob_scene.points) <= fast < 2_000_000
    limited = TrainConfig(strategy="mcmc", mcmc=few, densify=DensifyConfig(max_gaussians=900))
    assert splats_wanted(limited, blob_scene) == 900
    sentence = fitted(
        TrainConfig(strategy="mcmc", mcmc=few), blob_scene, CPU, max_splats=None, fit_batch=False
    )[1]
    assert sentence.startswith("Up to 3,000 splats")


@pytest.mark.parametrize("strategy", ["mcmc", "fast"])
def test_what_they_choose_themselves_follows_the_pixels_and_the_root_of_the_photos(
    blob_scene: Scene, strategy: StrategyName
) -> None:
    config = TrainConfig(steps=2000, strategy=strategy, mcmc=McmcConfig(density=1.0))
    config = replace(config, fast=FastConfig(density=1.0, thin_share=0.0))
    assert splats_wanted(config, blob_scene) == int(48 * 40 * math.sqrt(7))
    fewer = replace(blob_scene, views=blob_scene.views[:5])
    assert splats_wanted(config, fewer) == int(48 * 40 * math.sqrt(len(fewer.train_indices)))


def test_a_limit_that_a_strategy_does_not_come_to_is_told(blob_scene: Scene) -> None:
    def told(config: TrainConfig, most: int) -> str:
        return fitted(config, blob_scene, CPU, max_splats=most, fit_batch=False)[1]

    mcmc, fast = TrainConfig(strategy="mcmc"), TrainConfig(strategy="fast")
    assert told(mcmc, 900_000).count("--mcmc.max-gaussians says how many it has") == 1
    assert told(fast, 900_000).count("a higher --fast.density allows more") == 1
    for config, most in [(mcmc, 1000), (fast, 1000), (TrainConfig(), 900_000)]:
        assert "wants no more" not in told(config, most) and f"Up to {most:,} splats" in told(config, most)
    many = TrainConfig(strategy="mcmc", mcmc=McmcConfig(max_gaussians=900_000))
    assert "wants no more" not in told(many, 900_000)


def test_fast_chooses_no_more_than_fit(monkeypatch: pytest.MonkeyPatch, blob_scene: Scene) -> None:
    config = TrainConfig(strategy="fast", fast=FastConfig(density=90.0))
    wanted, sizes = splats_wanted(config, blob_scene), memory_plan.sizes_of(blob_scene)
    assert wanted > 30_000
    half = int(plan_memory(config, sizes, CPU).bytes_for(wanted // 2) / memory_plan.SPARE) + 1
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: half)
    fewer, sentence = fitted(config, blob_scene, CPU, max_splats=None, fit_batch=False)
    assert splats_wanted(fewer, blob_scene) == pytest.approx(wanted // 2, abs=2)
    assert f"it would be {wanted:,}, but no more fit" in sentence and "auto" not in sentence
    # What the user names is not made smaller, and of other strategies the user chooses the number.
    assert fitted(config, blob_scene, CPU, max_splats=2_000_000, fit_batch=False)[0] == config
    default = TrainConfig()
    assert fitted(default, blob_scene, CPU, max_splats=None, fit_batch=False)[0] == default
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: 4 * half)
    same, sentence = fitted(config, blob_scene, CPU, max_splats=None, fit_batch=False)
    assert same == config and "no more fit" not in sentence


def test_what_fast_asks_of_photos_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_plan, "free_bytes", lambda _: GIB)
    sizes = [(100, 100)]
    default, fast = (plan_memory(TrainConfig(strategy=name), sizes, TWO) for name in ("default", "fast"))
    assert fast.per_splat - default.per_splat == 32, "two views at a time, the largest so far, and the keys"


def test_each_rank_on_the_cpu_keeps_all_photos_that_its_room_holds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_plan, "default_memory_budget", lambda: 8 * GIB)
    small, large = [(1000, 1000)] * 100, [(1000, 1000)] * 10_000
    nothing = plan_memory(TrainConfig(), [], TWO).fixed
    pictures = memory_plan.PIXEL_BYTES * 1_000_000
    assert plan_memory(TrainConfig(), small, TWO).fixed - nothing - pictures == 400_000_000
    assert plan_memory(TrainConfig(), large, TWO).fixed - nothing - pictures == 4 * GIB


@pytest.fixture
def run_dir(blob_scene: Scene, tmp_path: Path) -> Path:
    config = TrainConfig(steps=40, test_every=4)
    run = Run.create(tmp_path / "run", blob_scene.path, config)
    trainer = Trainer(blob_scene, config)
    trainer.train_step()
    trainer.save(run.path)
    trainer.close()
    return run.path


def test_a_run_that_goes_on_takes_the_limit_at_resume(run_dir: Path) -> None:
    opened = open_project(run_dir, TrainConfig(), None, frozenset())
    assert on_devices(opened, DeviceOptions(ranks=1)).resumed_job()[0].settings == ()
    limited = on_devices(opened, DeviceOptions(ranks=1, max_splats=4321, fit_batch=True))
    assert limited.resumed_job()[0].settings == ((LIMIT, 4321),)
    assert any("4,321 splats" in note for note in limited.notes)
    assert any("--batch-size auto is not followed" in note for note in limited.notes)
    assert limited.config.batch_size == opened.config.batch_size
    again = with_settings(limited.with_new_run(), {"downscale": 2})[0]
    assert again.config.densify.max_gaussians == 4321 and again.fit.options.max_splats == 4321
    most = on_devices(opened, DeviceOptions(ranks=1, max_splats="auto")).with_new_run()
    small = with_settings(most, {"downscale": 4})[0]
    assert small.fit.options.max_splats == "auto" and small.config.densify.max_gaussians == small.fit.made
    # What was changed on the page since wins.
    later = replace(limited, config=replace(limited.config, densify=DensifyConfig(max_gaussians=99)))
    assert later.resumed_job()[0].settings == ((LIMIT, 99),)
    new = later.with_new_run().training_job()
    assert new.settings == () and new.config.densify.max_gaussians == 99


def test_a_resumed_run_has_its_own_batches(run_dir: Path, blob_folder: Path, command: CommandLine) -> None:
    code, output = command("train", blob_folder, "--run", run_dir, "--resume", "--batch-size", "auto")
    assert code == 2 and "its own batches" in output


def test_the_studio_has_nothing_to_attach_to(run_dir: Path) -> None:
    opened = open_project(run_dir, TrainConfig(), None, frozenset())
    with pytest.raises(ValueError, match="--attach is for"):
        on_devices(opened, DeviceOptions(attach="127.0.0.1:0"))
