"""The Python interface as the README shows it."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import CommandLine

import splatstudio as ss
from splatstudio import api
from splatstudio.checkpoints import saver
from splatstudio.cli import train as cli_train
from splatstudio.files.run import Run
from splatstudio.scene.load import load_training_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import OptimConfig, TrainConfig
from splatstudio.settings.presets import PRESETS
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

WRONG: Any = "2"
NOTHING: Any = None
DEMO = Path(__file__).parent.parent / "assets" / "demo"


@pytest.fixture(scope="module")
def scene() -> Scene:
    return ss.load_scene(DEMO, downscale=8)


def test_the_readme_example(scene: Scene, tmp_path: Path) -> None:
    steps: list[int] = []
    model = ss.train(scene, steps=80, on_step=lambda advance: steps.append(advance.stats.step))
    assert steps == list(range(1, 81))

    camera = scene.cameras[1]
    image = ss.render(model, camera)
    assert image.shape == (camera.height, camera.width, 3) and image.dtype == np.uint8
    photo = scene.photo(1).rgb
    error = np.abs(image.astype(float) - photo).mean()
    assert error < 0.8 * np.abs(photo.mean(axis=(0, 1)) - photo).mean(), "not better than the mean color"

    path = model.save_ply(tmp_path / "demo.ply")
    again = ss.load_model(path)
    assert len(again) == len(model)
    # The PLY lies in the files' coordinates; evaluating brings it back into the scene's frame.
    assert again.evaluate(scene).psnr == pytest.approx(model.evaluate(scene).psnr, abs=0.01)


def test_settings_are_named_and_checked(scene: Scene) -> None:
    with pytest.raises(ValueError, match="unknown setting"):
        ss.train(scene, stepz=3)
    with pytest.raises(ValueError, match="setting steps is 0"):
        ss.train(scene, steps=0)


def test_a_preset_is_named_and_what_is_given_beside_it_wins(scene: Scene, tmp_path: Path) -> None:
    config = TrainConfig(seed=7)
    ss.train(scene, preset="preview", steps=1, sh_photos=0.0, config=config, run_dir=tmp_path / "run")
    expected = PRESETS["preview"].apply(replace(config, steps=1, downscale=8), {"steps", "sh_photos"})
    assert Run.open(tmp_path / "run").config == expected
    with pytest.raises(ValueError, match="no preset 'slow': it is one of preview, default"):
        ss.train(scene, preset="slow")  # type: ignore[arg-type]


def test_a_run_says_how_its_scene_was_loaded(tmp_path: Path) -> None:
    names = [view.name for view in ss.load_scene(DEMO).views]
    scene = ss.load_scene(DEMO, downscale=8, test_images=names[:2], images_folder="images")
    ss.train(scene, steps=1, run_dir=tmp_path / "run")
    kept = Run.open(tmp_path / "run").config
    assert (kept.downscale, kept.test_images, kept.images) == (8, tuple(names[:2]), "images")
    assert load_training_scene(DEMO, kept).test_indices == scene.test_indices
    others: dict[str, Any] = {"downscale": 2, "test_every": 4, "test_images": (names[2],), "images": "other"}
    for name, other in others.items():
        with pytest.raises(ValueError, match=f"the scene was loaded with {name}="):
            ss.train(scene, steps=1, **{name: other})


def test_settings_of_a_group_are_given_together(scene: Scene, tmp_path: Path) -> None:
    groups: dict[str, Any] = {"optim": OptimConfig(means_lr=1e-4), "densify": {"every": 50}}
    ss.train(scene, steps=1, run_dir=tmp_path / "run", preset="fast", **groups)
    kept = Run.open(tmp_path / "run").config
    assert kept.optim == OptimConfig(means_lr=1e-4) and kept.densify.every == 50
    with pytest.raises(ValueError, match=r"unknown setting 'densify\.often'"):
        ss.train(scene, steps=1, densify={"often": 50})


def test_a_run_folder_can_be_kept(scene: Scene, tmp_path: Path) -> None:
    model = ss.train(scene, steps=3, run_dir=tmp_path / "run")
    assert np.array_equal(ss.load_model(tmp_path / "run").gaussians.means, model.gaussians.means)


def test_a_path_may_begin_with_the_home_folder_and_numbers_may_be_those_of_numpy(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    monkeypatch.chdir(tmp_path)
    rate = np.float32(1e-4)
    model = ss.train(scene, steps=np.int64(3), run_dir="~/runs/a", optim__means_lr=rate)
    saved = model.save("~/a.ply")
    assert saved == tmp_path / "home/a.ply" and ss.load_model("~/runs/a").step == 3
    assert Run.open(tmp_path / "home/runs/a").config.optim.means_lr == float(rate)
    assert len(ss.merge("~/runs/a", "~/whole.ply")) == len(ss.load_model("~/whole.ply")) == len(model)
    assert [path.name for path in tmp_path.iterdir()] == ["home"], "no folder is called ~"
    ss.train(scene, steps=1, init=Path("~/a.ply"))


def test_settings_that_do_nothing_are_told(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    ss.train(scene, steps=1, stop_when_flat=True, mcmc__noise=1.0)
    assert "stop_when_flat needs a run_dir" in caplog.text and "mcmc.noise" in caplog.text


@pytest.mark.parametrize(
    "end", [KeyboardInterrupt, ZeroDivisionError, SystemExit, asyncio.CancelledError, GeneratorExit]
)
def test_what_is_interrupted_is_saved(scene: Scene, tmp_path: Path, end: type[BaseException]) -> None:
    def stop(advance: Any) -> None:
        if advance.stats.step == 3:
            raise end

    with pytest.raises(end):
        ss.train(scene, steps=50, run_dir=tmp_path / "run", on_step=stop)
    assert ss.load_model(tmp_path / "run").step == 3


def test_ctrl_c_amid_a_step_or_an_evaluation_waits_for_its_end(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pressed_before(real: Any, at: int) -> Any:
        def call(self: Any, *arguments: Any) -> Any:
            trainer = getattr(self, "trainer", self)
            if trainer.step == at:
                os.kill(os.getpid(), signal.SIGINT)
            return real(self, *arguments)

        return call

    for owner, name, at, run in (
        (Trainer, "train_step", 2, tmp_path / "step"),
        (Session, "evaluate", 3, tmp_path / "evaluation"),
    ):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(owner, name, pressed_before(getattr(owner, name), at))
            ss.train(scene, steps=50, eval_steps=(3,), run_dir=run)
        assert ss.load_model(run).step == 3
        assert not list(run.glob("eval/*.json")), "it made way"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_ends_at_once_and_says_what_that_costs(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def impatient(*_: Any) -> None:  # amid what a step changes
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_learn_from", impatient)
    with pytest.raises(KeyboardInterrupt):
        ss.train(scene, steps=50, run_dir=tmp_path / "run")
    assert "a step was torn" in caplog.text
    assert not list(tmp_path.glob("run/ckpts/step_*"))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_trains_all_the_same(scene: Scene, mode: Any) -> None:
    with mode():
        model = ss.train(scene, steps=2)
    assert torch.equal(model.gaussians.means, ss.train(scene, steps=2).gaussians.means)


def test_what_cannot_be_trained_in_or_kept_is_told_before_the_first_step(
    scene: Scene, tmp_path: Path
) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        with pytest.raises(ValueError, match="float32"):
            ss.train(scene, steps=1)
    finally:
        torch.set_default_dtype(torch.float32)
    with pytest.raises(ValueError, match="not empty"):
        ss.train(scene, steps=1, run_dir="")  # as of a variable that is not set: the working folder
    for downscale in (1.5, 100_000, 0):
        with pytest.raises(ValueError, match="whole number from 1 to 64"):
            ss.load_scene(scene.path, downscale=downscale)  # type: ignore[arg-type]


def test_a_step_that_cannot_be_saved_is_told_and_the_model_comes_back(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(saver, "save_checkpoint", full)
    model = ss.train(scene, steps=3, run_dir=tmp_path / "run")
    assert model.step == 3 and "No space left on device" in caplog.text


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: ss.train(DEMO, optim=5), "optim is a group of settings: name one of it, means_lr"),
        (lambda: ss.train(DEMO, config=WRONG), "config is to be a TrainConfig, not '2'"),
        (lambda: ss.load_scene(DEMO, downscale=WRONG), "downscale is '2', but must be a whole number"),
        (lambda: ss.mesh("a", "a.ply", resolutio=64), "a mesh has no option resolutio; its options are"),
        (lambda: ss.mesh("a", "a.ply", resolution="x"), "resolution must be a number, not 'x'"),
        (lambda: ss.train(NOTHING), "the path of a file or folder, not None"),
        (lambda: ss.load_model("nowhere"), "nowhere does not exist; name a file of splats"),
        (lambda: ss.load_model("https://a.org/b.ply"), "an address of the network: download"),
        (lambda: ss.render(WRONG, NOTHING), "render draws a Model"),
        (lambda: ss.show(DEMO, height=WRONG), "height is '2': it must be from"),
    ],
)
def test_what_cannot_be_meant_is_a_sentence(call: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call()


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, splatstudio; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_process_that_is_forked_from_a_training_trains(blob_folder: Path) -> None:
    code = f"""
import multiprocessing, sys, splatstudio as ss

scene = ss.load_scene({str(blob_folder)!r})
ss.train(scene, steps=1)
child = multiprocessing.get_context("fork").Process(target=ss.train, args=(scene,), kwargs=dict(steps=1))
child.start()
child.join(60)
child.kill()
child.join()
sys.exit(child.exitcode != 0)
"""
    threads = {**os.environ, "OMP_NUM_THREADS": "2"}
    assert subprocess.run([sys.executable, "-c", code], env=threads, timeout=120).returncode == 0


def test_a_run_goes_on_as_if_it_had_never_stopped(scene: Scene, tmp_path: Path) -> None:
    whole = ss.train(scene, steps=6, seed=3)

    def stop(advance: Any) -> None:
        if advance.stats.step == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ss.train(scene, steps=6, seed=3, run_dir=tmp_path / "run", max_splats=20_000, on_step=stop)
    assert Run.open(tmp_path / "run").config.densify.max_gaussians == 20_000
    steps: list[int] = []
    again = ss.train(
        scene,
        run_dir=tmp_path / "run",
        resume=True,
        on_step=lambda advance: steps.append(advance.stats.step),
    )
    assert steps == [4, 5, 6] and ss.load_model(tmp_path / "run").step == 6
    assert torch.equal(again.gaussians.means, whole.gaussians.means)
    by_path = ss.train(DEMO, run_dir=tmp_path / "run", resume=True, steps=7)
    assert by_path.step == 7, "the scene is read as the run has it"


def test_a_run_that_another_process_trains_on_meanwhile_is_not_trained_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: CommandLine
) -> None:
    ss.train(DEMO, steps=3, downscale=8, run_dir=tmp_path / "run")
    later = tmp_path / "run/ckpts/step_00000009"
    read = load_training_scene

    def read_while_another_saves(*given: Any, **named: Any) -> Scene:
        later.mkdir(exist_ok=True)
        return read(*given, **named)

    for module in (api, cli_train):
        monkeypatch.setattr(module, "load_training_scene", read_while_another_saves)
    with pytest.raises(ValueError, match="meanwhile and is at step 9: resume it again"):
        ss.train(DEMO, run_dir=tmp_path / "run", resume=True, steps=20)
    later.rmdir()
    code, output = command("train", tmp_path / "run", "--resume", "--steps", "20")
    assert code == 2 and "meanwhile and is at step 9: resume it again" in output
    assert not (tmp_path / "run/lock").exists()


def test_a_run_that_has_its_steps_says_so_and_gives_its_model(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    ss.train(scene, steps=3, run_dir=tmp_path / "run")
    assert ss.train(scene, steps=2, run_dir=tmp_path / "run", resume=True).step == 3
    assert "nothing to do: the run is at step 3, and it is to have 2" in caplog.text


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"run_dir": None}, "needs run_dir"),
        ({"preset": "fast"}, "omit preset"),
        ({"seed": 4}, "seed would change"),
        ({"scene": "larger"}, "loaded with downscale=4, and the run was trained with downscale=8"),
        ({"run_dir": "empty"}, "no checkpoint to resume from"),
        ({"run_dir": "nowhere"}, "is no run folder"),
    ],
)
def test_what_cannot_be_resumed_is_told(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ss.train(scene, steps=1, run_dir="run")
    Run.create(Path("empty"), scene.path, TrainConfig())
    if asked.get("scene") == "larger":
        asked = {"scene": ss.load_scene(DEMO, downscale=4)}
    with pytest.raises(ValueError, match=told):
        ss.train(**{"scene": scene, "run_dir": "run", "resume": True, "steps": 2, **asked})
    assert ss.load_model("run").step == 1


def test_an_interrupted_training_says_what_is_kept(
    scene: Scene, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def stop(advance: Any) -> None:
        raise KeyboardInterrupt

    for run_dir, told in ((None, "nothing is kept of the 1 steps"), (tmp_path / "run", "saved in ")):
        with pytest.raises(KeyboardInterrupt):
            ss.train(scene, steps=5, run_dir=run_dir, on_step=stop)
        assert told in caplog.text
