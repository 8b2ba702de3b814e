"""Photos in another folder than the scene's: named once with --images, found again by what follows."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from command_line import CommandLine
from scene_builder import tiny_scene, write_blender, write_colmap, write_transforms

from splatstudio.api import train
from splatstudio.cli.train import _to_resume, launched_job
from splatstudio.files.run import Run
from splatstudio.gui.dock import header_html
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Status
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.settings.config import TrainConfig, with_whole_paths
from splatstudio.training.device_options import AS_FOUND
from splatstudio.training.trainer import Trainer

SHORT = TrainConfig(steps=3, sh_degree=0, eval_every=0, eval_steps=(), save_minutes=0, images="photos")


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a COLMAP scene whose photos lie in `photos` of the working folder."""
    monkeypatch.chdir(tmp_path)
    folder = write_colmap(tmp_path / "scene", tiny_scene())
    (folder / "images").rename(tmp_path / "photos")
    return folder


def test_each_command_finds_them_and_says_how(scene: Path, command: CommandLine) -> None:
    code, told = command("info", scene)
    assert code == 2 and "images does not exist" in told and "with --images FOLDER" in told
    code, told = command("info", scene, "--images", "photos")
    assert code == 0 and "Photos 9:" in " ".join(told.split())
    code, told = command("train", scene, "--run", "run", "--images", "elsewhere")
    assert code == 2 and "there is no folder of photos at elsewhere: correct --images" in told
    train(scene, run_dir="run", config=SHORT)
    # The run knows where they are, as seen from any folder.
    saved = json.loads(Path("run/run.json").read_text())["config"]["images"]
    assert saved == str(Path("photos").resolve())
    run, shot = Path("run").resolve(), ("--lpips",)
    Path("other").mkdir()
    os.chdir("other")
    code, told = command("eval", run, *shot)
    assert code == 0 and "PSNR" in told
    video = ("--orbit", "--seconds", 1, "--fps", 1, "--width", 16, "--height", 16)
    assert command("render", run, "-o", "frames", *video)[0] == 0
    export = ("--upright", "--cameras", "cameras.json")
    assert command("export", run, "-o", "model.ply", *export)[0] == 0
    assert len(json.loads(Path("cameras.json").read_text())) == 9
    # They are moved: the run goes on with those of the new place.
    (scene.parent / "photos").rename(scene.parent / "moved")
    code, told = command("eval", run, *shot)
    assert code == 2 and "photos is not there: name another one with --images FOLDER" in told
    assert command("eval", run, *shot, "--images", scene.parent / "moved")[0] == 0
    asked = with_whole_paths(TrainConfig(steps=5, images=str(scene.parent / "moved")), scene)
    config, checkpoint = _to_resume(asked, scene, run, {"steps", "images"})
    trainer = Trainer.resume(load_training_scene(scene, config), checkpoint, steps=5, images=config.images)
    trainer.train_step()
    assert (trainer.step, trainer.config.images) == (4, str(scene.parent / "moved"))
    trainer.close()


def test_a_run_goes_on_with_those_that_were_named_to_another_command(
    scene: Path, command: CommandLine
) -> None:
    train(scene, run_dir="run", config=SHORT)
    shutil.copytree("photos", "others")
    Path("photos").rename("moved")
    moved, run = str(Path("moved").resolve()), Path("run")
    assert command("eval", run, "--lpips", "--images", "moved")[0] == 0
    assert _to_resume(TrainConfig(steps=5), scene, run, {"steps"})[0].images == moved
    for given in ((), ("images",)):
        asked = TrainConfig(images=moved if given else "")
        job, _ = launched_job(scene, asked, run, resume=True, given=given, devices=AS_FOUND)
        assert job.config.images == moved
    asked = TrainConfig(images="others")
    assert _to_resume(asked, scene, run, {"images"})[0].images == "others"
    Path("moved").rename("photos")
    assert _to_resume(TrainConfig(), scene, run, ())[0].images == str(Path("photos").resolve())


def test_the_studio_finds_them_and_says_how(scene: Path) -> None:
    config = TrainConfig(images="photos", steps=5)
    project = open_project(scene, config, None)
    assert project.scene is not None and project.config.images == str(Path("photos").resolve())
    run = Run.create(Path("runs/scene"), scene, project.config)
    shutil.copytree(Path("photos"), "moved")
    # A run without a checkpoint is begun anew, with its photos.
    again = open_project(run.path, TrainConfig(), None)
    assert again.scene is not None and again.scene.views[0].image_path.parent.name == "photos"
    shutil.rmtree("photos")
    with pytest.raises(ValueError, match=r"no checkpoint to show\. .* with --images FOLDER"):
        open_project(run.path, TrainConfig(), None)
    moved = open_project(run.path, TrainConfig(images="moved"), None)
    assert moved.scene is not None and moved.scene.views[0].image_path.parent.name == "moved"


def test_a_run_whose_photos_are_gone_says_so_in_the_page(scene: Path) -> None:
    train(scene, run_dir="run", config=SHORT)
    shutil.move("photos", "moved")
    project = open_project(Path("run"), TrainConfig(), None)
    assert project.scene is None and not project.can_train and project.notes == (project.problem,)
    assert "so only the model is shown" in project.problem and "--images FOLDER" in project.problem
    assert "only the model is shown" in header_html("run", Status(message=project.problem), 1)
    shutil.move("moved", "photos")
    assert open_project(scene, TrainConfig(), Path("run")).can_train, (
        "opened by its scene, it knows them, too"
    )
    shutil.move("photos", "moved")
    found = open_project(Path("run"), TrainConfig(images="moved"), None)
    moved = str(Path("moved").resolve())
    assert found.can_train and found.problem == "" and found.config.images == moved
    # The next time it is known, although the checkpoint is of before.
    for again in (
        open_project(Path("run"), TrainConfig(), None),
        open_project(scene, TrainConfig(), Path("run")),
    ):
        assert again.resumed_job()[0].config.images == moved


def test_a_folder_in_the_scene_goes_before_one_beside_us(scene: Path) -> None:
    shutil.copytree("photos", scene / "photos")
    found = load_scene(scene, images_folder="photos")
    assert {view.image_path.parent for view in found.views} == {scene / "photos"}
    project = open_project(scene, TrainConfig(images="photos"), None)
    assert project.config.images == "photos", "a scene that is moved takes its photos along"


@pytest.mark.parametrize("write", [write_transforms, write_blender])
def test_other_formats_find_the_end_of_what_they_list(write, tmp_path: Path) -> None:
    folder = write(tmp_path / "scene", tiny_scene())
    before = load_scene(folder, test_every=3)
    # Once below folders as listed, once without the first of them.
    for number, kept in enumerate((0, 1)):
        place = tmp_path / f"elsewhere{number}"
        for view in before.views:
            listed = view.image_path.relative_to(folder).parts
            target = place.joinpath(*listed[kept:])
            target.parent.mkdir(parents=True, exist_ok=True)
            # The pictures of a Blender scene have one name in several folders.
            if not target.exists():
                shutil.copy(view.image_path, target)
        if kept and write is write_blender:
            continue
        bare = tmp_path / f"bare{number}"
        shutil.copytree(folder, bare, ignore=shutil.ignore_patterns("*.png"))
        with pytest.raises(ValueError, match="--images FOLDER"):
            load_scene(bare)
        after = load_scene(bare, images_folder=str(place), test_every=3)
        assert [view.name for view in after.views] == [view.name for view in before.views]
        assert after.test_indices == before.test_indices and after.notes == before.notes
        for index in range(len(after.views)):
            assert np.array_equal(after.photo(index).rgb, before.photo(index).rgb)
