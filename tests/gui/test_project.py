"""What is opened: a scene, a run, a checkpoint, a file; and what is said where that cannot be."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from blob_models import blobs
from blob_scenes import write_blob_scene
from gui_parts import MANY, Steered, trained_run
from poses_of_programs import write_metashape

from splatstudio.checkpoints.rank_parts import files_to_merge
from splatstudio.cli.info import contents_of
from splatstudio.files.run import Run
from splatstudio.formats.ply import write_ply
from splatstudio.gui.state.project import open_project
from splatstudio.gui.tabs.compare_runs import of_another_scene
from splatstudio.models.model import load_model
from splatstudio.models.scoring import EvaluationTask, evaluate_task
from splatstudio.poses.records import Manifest, write_record
from splatstudio.poses.store import PoseStore
from splatstudio.runtime.messages import ModelLoaded, StateChanged, TrainJob, ViewJob
from splatstudio.runtime.sentences import failure_sentence
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, value_of
from splatstudio.settings.presets import PRESETS
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

pytestmark = pytest.mark.usefixtures("own_folder")


def test_a_scene_folder_waits_for_start_in_a_new_run(own_folder: Path, blob_folder: Path) -> None:
    project = open_project(blob_folder, MANY, None)
    assert project.can_train and project.name == "blobs" and project.resume_step is None
    assert project.run_dir == Path("runs/blobs") and not Path("runs").exists()
    job = project.first_job()
    assert isinstance(job, TrainJob) and job.checkpoint is None


def test_a_scene_with_a_run_offers_to_go_on_and_to_begin_anew(
    own_folder: Path, blob_scene: Scene, blob_folder: Path
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    project = open_project(blob_folder, TrainConfig(), None)
    assert project.resume_step == 3 and project.config == MANY, "a run goes on with its own settings"
    assert project.first_job() == ViewJob(checkpoint)
    assert project.resumed_job()[0].checkpoint == checkpoint
    again = project.with_new_run()
    assert again.run_dir == Path("runs/blobs-2") and again.resume_step is None
    assert [each.title for each in (project, again)] == ["blobs", "blobs-2"]
    assert replace(again, run_dir=Path("runs/mine")).title == "blobs · mine"
    assert isinstance(again.first_job(), TrainJob)
    assert open_project(blob_folder, TrainConfig(steps=3), None).resume_step is None, "all steps are done"


def test_a_run_whose_only_checkpoint_is_deleted_is_not_begun_over(
    own_folder: Path, blob_scene: Scene, blob_folder: Path
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    studio = Steered.of(blob_folder)
    controller = studio.controller
    controller._worker.receive(ModelLoaded(3, 60, (0.0, 0.0, 0.0), 1.0))
    controller._worker.receive(StateChanged("viewing"))
    controller.change_settings({"steps": 3})
    assert controller.can_train_more
    shutil.rmtree(checkpoint)
    with pytest.raises(ValueError, match=r"runs/blobs has no checkpoint any more.*export it"):
        controller.train_more(5)
    assert controller.status.has_model and controller.status.state == "viewing"
    assert controller.project.config.steps == 3, "nothing is changed"
    controller.kill()


def test_a_model_of_another_run_is_exported_as_that_one(
    own_folder: Path, blob_scene: Scene, blob_folder: Path, tmp_path: Path
) -> None:
    own = trained_run(blob_scene, Path("runs/blobs"))
    other = trained_run(blob_scene, Path("runs/other"))
    project = open_project(blob_folder, TrainConfig(), Path("runs/blobs"))
    assert project.holds(own) and not project.holds(other) and not project.holds(tmp_path / "a.spz")
    assert project.export_path(3, own) == project.export_path(3) == Path("runs/blobs/exports/blobs-3.ply")
    assert project.export_path(3, other) == Path("runs/other/exports/other-3.ply").absolute()
    assert project.export_path(3, tmp_path / "a.spz") == Path("runs/blobs/exports/a.ply")
    assert of_another_scene(blob_scene, Path("runs/other")) is None
    Run.create(tmp_path / "fox", tmp_path / "foxes", TrainConfig())
    told = of_another_scene(blob_scene, tmp_path / "fox")
    assert told is not None and "fox shows foxes" in told.text


def test_a_run_folder_a_checkpoint_and_a_ply(own_folder: Path, tmp_path: Path) -> None:
    folder = write_blob_scene(tmp_path / "capture")
    checkpoint = trained_run(load_scene(folder), Path("elsewhere/one"))
    opened = open_project(Path("elsewhere/one"), TrainConfig(), None)
    assert opened.scene is not None and opened.resume_step == 3 and opened.model_path == checkpoint
    assert open_project(checkpoint, TrainConfig(), None).model_path == checkpoint
    (folder / "sparse" / "0" / "cameras.txt").unlink()
    without = open_project(Path("elsewhere/one"), TrainConfig(), None)
    assert without.scene is None and not without.can_train and without.model_path == checkpoint
    assert "only the model is shown" in without.notes[0]
    write_ply(tmp_path / "a.PLY", blobs())
    ply = open_project(tmp_path / "a.PLY", TrainConfig(), None)
    assert ply.first_job() == ViewJob(tmp_path / "a.PLY") and not ply.can_train


def test_estimated_poses_are_a_scene_to_train(own_folder: Path, tmp_path: Path) -> None:
    """Those of a video are opened where they lie, beside the manifest of its pictures."""
    store = PoseStore(tmp_path / "clip.mp4")
    write_blob_scene(store.path)
    write_record(store.manifest_file, Manifest(source=str(store.source), photos=()))
    project = open_project(store.path, MANY, None)
    assert project.can_train and project.scene is not None and project.model_path is None
    assert contents_of(store.path, images="").scene is not None
    with pytest.raises(ValueError, match="neither a checkpoint nor files named"):
        files_to_merge([store.path])


def test_what_cannot_be_opened_is_said_in_a_sentence(
    own_folder: Path, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    (tmp_path / "page.html").write_text("<html>")
    with pytest.raises(ValueError, match=r"page\.html cannot be read: .* only written"):
        open_project(tmp_path / "page.html", TrainConfig(), None)
    with pytest.raises(ValueError, match="does not exist"):
        open_project(tmp_path / "nothing", MANY, None)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="empty"):
        open_project(tmp_path / "empty", MANY, None)
    trained_run(load_scene(write_blob_scene(tmp_path / "other", num_views=5)), Path("taken"))
    with pytest.raises(ValueError, match=r"belongs to .*other, and .* has other cameras"):
        open_project(blob_folder, MANY, Path("taken"))
    Run.create(Path("new"), blob_folder, MANY)
    with pytest.raises(ValueError, match="has no checkpoint to go on from"):
        open_project(blob_folder, MANY, Path("new"))


def test_a_run_goes_on_with_a_copy_of_its_scene(
    own_folder: Path, blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    checkpoint = trained_run(blob_scene, Path("run"))
    copy = tmp_path / "copy"
    shutil.copytree(blob_folder, copy)
    project = open_project(copy, MANY, Path("run"))
    assert project.model_path == checkpoint and project.run_dir == Path("run")
    assert project.resumed_job()[0].scene_path == copy
    # Its photos may lie in another folder than the scene's own, which the run knows.
    photos, other = tmp_path / "photos", tmp_path / "other"
    (copy / "images").rename(photos)
    read = load_training_scene(copy, TrainConfig(images=str(photos)))
    trained_run(read, Path("of photos"), config=replace(MANY, images=str(photos)))
    shutil.copytree(copy, other)
    assert open_project(other, MANY, Path("of photos")).run_dir == Path("of photos")


def test_a_scene_that_is_opened_by_one_of_two_files_goes_on_with_the_run_of_that_file(tmp_path: Path) -> None:
    folder = write_metashape(tmp_path / "statue")
    shutil.copy(folder / "cameras.xml", folder / "other.xml")
    runs = {}
    for named in (folder, folder / "other.xml"):
        project = open_project(named, MANY, None)
        assert project.scene is not None and project.run_dir is not None and project.resume_step is None
        trained_run(project.scene, project.run_dir)
        runs[named] = project.run_dir
    assert list(runs.values()) == [Path("runs/statue"), Path("runs/statue-other")]
    for named, run in {**runs, folder / "cameras.xml": runs[folder]}.items():
        project = open_project(named, MANY, None)
        assert (project.run_dir, project.resume_step) == (run, 3)
        scene = open_project(run, MANY, None).scene
        assert scene is not None and scene.path == (folder if run == runs[folder] else named)


def test_a_run_without_a_good_model_is_left_aside_with_a_note(
    own_folder: Path, blob_folder: Path, blob_scene: Scene
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    (checkpoint / "manifest.json").write_text("{}")
    project = open_project(blob_folder, TrainConfig(), None)
    assert project.run_dir != Path("runs/blobs")
    assert any("runs/blobs is left aside: splatstudio info runs/blobs says" in note for note in project.notes)


def test_an_unreadable_run_of_another_is_left_aside_with_a_note(
    own_folder: Path, blob_folder: Path, blob_scene: Scene
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    Path("runs/blobs-9").mkdir()
    Path("runs/blobs-9/run.json").write_text("{cut off")
    Path("runs/blobs-8").symlink_to("/of/a/disk/that/is/away")
    project = open_project(blob_folder, TrainConfig(), None)
    assert project.model_path == checkpoint and any("blobs-9 is left aside" in n for n in project.notes)
    with pytest.raises(ValueError, match="damaged"):
        open_project(blob_folder, TrainConfig(), Path("runs/blobs-9"))


def test_brackets_in_a_scenes_name_are_no_pattern(own_folder: Path, tmp_path: Path) -> None:
    folder = write_blob_scene(tmp_path / "room [1]")
    checkpoint = trained_run(load_scene(folder), Path("runs/room [1]"))
    assert open_project(folder, TrainConfig(), None).model_path == checkpoint


def test_given_settings_are_followed_or_it_is_said_that_they_are_not(
    own_folder: Path, blob_folder: Path, blob_scene: Scene
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    steps = TrainConfig(steps=77)
    for path in (blob_folder, Path("runs/blobs")):
        longer = open_project(path, steps, None)
        assert longer.config == replace(MANY, steps=77) and longer.run_dir is not None
        assert longer.run_dir.name == "blobs" and not any("own settings" in note for note in longer.notes)
    asked = open_project(blob_folder, steps, None, {"steps"})
    assert asked.notes[-1] == "runs/blobs goes on, with what was asked for; New training begins another run."
    other = TrainConfig(sh_degree=2)
    anew = open_project(blob_folder, other, None)
    assert anew.run_dir == Path("runs/blobs-2") and anew.config == other and anew.model_path is None
    assert any("sh_degree" in note and "blobs-2" in note for note in anew.notes)
    for kept in (
        open_project(Path("runs/blobs"), other, None),
        open_project(blob_folder, other, Path("runs/blobs")),
    ):
        assert kept.config == MANY and kept.model_path == checkpoint
        assert any("own settings; sh_degree is not changed" in note for note in kept.notes)


def test_of_the_many_settings_of_another_preset_the_first_are_named(
    own_folder: Path, blob_folder: Path, blob_scene: Scene
) -> None:
    trained_run(blob_scene, Path("runs/blobs"))
    fast = PRESETS["fast"].apply(MANY)
    num = sum(value_of(fast, name) != value_of(MANY, name) for name in PRESETS["fast"].settings)
    anew = open_project(blob_folder, fast, None)
    (note,) = (note for note in anew.notes if "other settings" in note)
    assert "(strategy, " in note and f" and {num - 3} more)" in note and note.count(",") == 4, note
    kept = open_project(Path("runs/blobs"), fast, None)
    assert any(f" and {num - 3} more are not changed" in note for note in kept.notes)


def test_a_run_remembers_where_its_photos_were_found(blob_folder: Path, tmp_path: Path) -> None:
    config = TrainConfig(steps=1, test_every=4, eval_steps=(), save_steps=(), sh_degree=0)
    copy, run_dir, moved = tmp_path / "scene", tmp_path / "run", tmp_path / "moved"
    shutil.copytree(blob_folder, copy)
    scene = load_training_scene(copy, config)
    trainer = Trainer(scene, config)
    session = Session(trainer, Run.create(run_dir, copy, config))
    session.advance()
    session.close()
    (copy / "copied").mkdir()
    for file in (copy / "images").iterdir():
        shutil.copy(file, copy / "copied" / file.name)
    assert evaluate_task(EvaluationTask(run_dir, images="copied")).file is not None
    assert Run.open(run_dir).config.images == "", "for once: those of the training are still there"
    (copy / "images").rename(moved)
    with pytest.raises(ValueError, match="images"):
        evaluate_task(EvaluationTask(run_dir))
    assert "only the model is shown" in open_project(run_dir, TrainConfig(), None).problem
    evaluate_task(EvaluationTask(run_dir, images=str(moved)))
    assert evaluate_task(EvaluationTask(run_dir)).file is not None
    moved.rename(tmp_path / "again")
    project = open_project(run_dir, TrainConfig(images=str(tmp_path / "again")), None)
    assert project.scene is not None and project.run_dir == run_dir
    assert open_project(run_dir, TrainConfig(), None).scene is not None


def test_a_new_run_that_fails_says_that_the_old_one_is_as_it_was(blob_folder: Path, flat_run: Run) -> None:
    project = open_project(blob_folder, TrainConfig(), None)
    assert "The run before" not in failure_sentence("It died.", project.training_job())
    again = project.with_new_run()
    sentence = failure_sentence("It died.", again.training_job())
    assert sentence.endswith(
        f"Nothing was saved yet; press Start to begin again. The run before, {flat_run.path}, is as it was."
    )
    Path("runs/blobs-2").mkdir()
    assert again.with_new_run().before == flat_run.path, "what holds nothing is not spoken of"


def test_a_preset_is_left_again_but_not_what_was_typed_beside_it(blob_folder: Path, tmp_path: Path) -> None:
    typed = {"densify.max_gaussians"}
    config = PRESETS["preview"].apply(TrainConfig(densify=DensifyConfig(max_gaussians=99)), typed)
    project = open_project(blob_folder, config, tmp_path / "run", typed)
    assert project.given == typed
    assert PRESETS["default"].apply(project.config, project.given) == TrainConfig(densify=config.densify)


def test_who_names_the_scene_in_place_of_its_run_is_told_so(blob_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this is a scene, and its models are in the run folders"):
        load_model(blob_folder)
    with pytest.raises(ValueError, match=r"a run with checkpoints$"):
        load_model(tmp_path)
