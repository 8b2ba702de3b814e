"""A run whose scene has photos more, or fewer, than its training had: nothing that was learned is judged."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blob_scenes import write_blob_scene
from gui_parts import Steered
from scene_builder import tiny_scene, write_blender

import splatstudio as ss
from splatstudio.checkpoints.checkpoint import known_photos, newest_checkpoint
from splatstudio.cli.train import train_scene
from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.files.run import Run, RunLock
from splatstudio.gui.state.project import open_project
from splatstudio.models.scoring import EvaluationTask, evaluate_task
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.sentences import joined_sentence
from splatstudio.runtime.training import Training
from splatstudio.scene.load import _called_as_now, load_training_scene
from splatstudio.scene.scene import KnownPhotos, Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=4, test_every=3, sh_degree=0, eval_every=0)
HELD_OUT = ["view_02.png", "view_05.png", "view_08.png", "view_11.png"]  # of eleven, without the first


@pytest.fixture
def scene(tmp_path: Path) -> Path:
    """A scene of eleven photos, of which the first is away."""
    folder = write_blob_scene(tmp_path / "ring", 11)
    (folder / "images" / "view_01.png").rename(tmp_path / "view_01.png")
    return folder


@pytest.fixture
def run(scene: Path, tmp_path: Path) -> Path:
    """A run of it; all photos are there again."""
    ss.train(scene, config=CONFIG, run_dir=tmp_path / "run")
    (tmp_path / "view_01.png").rename(scene / "images" / "view_01.png")
    return tmp_path / "run"


def resumed(run: Path, scene: Path, steps: int) -> Trainer:
    """Train a run on to a step, and save it."""
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    now = load_training_scene(scene, CONFIG, known_photos(checkpoint))
    trainer = Trainer.resume(now, checkpoint, steps=steps)
    while trainer.step < steps:
        trainer.train_step()
    trainer.save(run)
    return trainer


def judged(run: Path) -> list[str]:
    """Return the names of the photos that an evaluation of a run compares with."""
    return sorted(score.name for score in evaluate_task(EvaluationTask(run)).evaluation.images)


def test_what_was_trained_on_is_not_judged_when_photos_have_come(run: Path, scene: Path) -> None:
    now = ss.load_scene(scene, test_every=3)
    assert now.views[now.test_indices[0]].name == "view_01.png", "by itself it is split otherwise"
    assert judged(run) == HELD_OUT
    assert (run / "eval" / "step_00000004.json").exists()


def test_a_run_goes_on_with_photos_that_have_come_once_and_again(run: Path, scene: Path) -> None:
    first = newest_checkpoint(run)
    assert first is not None
    now = load_training_scene(scene, CONFIG, known_photos(first))
    assert "1 more photos" in (joined_sentence(first, now) or "")
    for steps in (6, 8):  # what has joined makes no frame, also not the second time
        trainer = resumed(run, scene, steps)
        assert np.allclose(trainer.scene.transform, ss.load_model(first).transform)
        assert sorted(trainer.scene.views[i].name for i in trainer.scene.test_indices) == HELD_OUT
        assert "view_01.png" in {trainer.scene.views[i].name for i in trainer.scene.train_indices}
        assert judged(run) == HELD_OUT


def test_a_photo_that_is_called_otherwise_keeps_its_lot(run: Path, scene: Path) -> None:
    for picture in (scene / "images").iterdir():
        picture.rename(picture.with_suffix(".PNG"))
    listing = scene / "sparse" / "0" / "images.txt"
    listing.write_text(listing.read_text().replace(".png", ".PNG"))
    assert judged(run) == [name.replace(".png", ".PNG") for name in HELD_OUT]
    trainer = resumed(run, scene, 6)
    learned = {trainer.scene.views[i].name.lower() for i in trainer.scene.train_indices}
    assert learned.isdisjoint(HELD_OUT) and "view_01.png" in learned


def test_another_scene_is_split_by_itself(run: Path, tmp_path: Path) -> None:
    other = write_blob_scene(tmp_path / "other", 6)
    for number, picture in enumerate(sorted((other / "images").iterdir())):
        picture.rename(picture.with_name(f"p{number}.png"))
    listing = other / "sparse" / "0" / "images.txt"
    text = listing.read_text()
    for number in range(6):
        text = text.replace(f"view_{number + 1:02d}.png", f"p{number}.png")
    listing.write_text(text)
    alone = ss.load_scene(other, test_every=3)
    known = load_training_scene(other, CONFIG, known_photos(newest_checkpoint(run)))
    assert known.known is None and known.test_indices == alone.test_indices
    assert np.array_equal(known.transform, alone.transform)


def test_what_was_estimated_later_does_not_move_the_split_of_a_run(blob_scene: Scene) -> None:
    names = tuple(sorted(blob_scene.photos))
    first = KnownPhotos(names[1:4], frozenset(names[2:3]))
    later = replace(blob_scene, in_order=(names[-1], *names[:-1], "gone.png"), known=first, test_every=2)
    held_out = {later.views[i].name for i in later.test_indices}
    assert held_out & set(first.names) == {names[2]}
    assert later.known_names == (*first.names, *sorted(set(names) - set(first.names)))
    assert later.lost_test_photos == (), "what was never in the run is not lost"
    without = replace(later, known=None)
    assert "gone.png" not in without.known_names and without.lost_test_photos == ()


def test_photos_of_one_name_in_two_folders_are_not_taken_for_each_other(run: Path, scene: Path) -> None:
    names = known_photos(newest_checkpoint(run))
    assert names is not None
    # As in transforms.json, where names have a folder as soon as there are two.
    one_more = [f"images/{name}" for name in names.names] + ["extra/view_03.png"]
    now = _called_as_now(names, one_more)
    assert now is not None and now.names == tuple(one_more[:-1])
    assert now.held_out == {f"images/{name}" for name in HELD_OUT} and now.num_framed == 10
    twice = [f"{folder}/{name}" for folder in ("images", "other") for name in names.names]
    both = _called_as_now(names, twice)
    assert both is not None and set(both.names) == set(twice), "none of them is new"
    assert both.held_out == {f"{folder}/{name}" for folder in ("images", "other") for name in HELD_OUT}


def test_files_that_name_learned_photos_for_the_test_do_not_make_them_new(blob_scene: Scene) -> None:
    names = tuple(sorted(blob_scene.photos))
    known = KnownPhotos(names[:4], frozenset(names[:1]))
    moved = replace(blob_scene, known=known, test_names=frozenset((names[0], names[2], names[5])))
    assert {moved.views[i].name for i in moved.test_indices} == {names[0], names[5]}
    asked = replace(moved, test_images=(names[2],), test_names=frozenset(names[2:3]))
    assert [asked.views[i].name for i in asked.test_indices] == [names[2]], "who names them means them"


def test_a_run_begun_beside_another_knows_its_own_photos_alone(blob_scene: Scene) -> None:
    names = tuple(sorted(blob_scene.photos))
    before = KnownPhotos(("gone.png", *names[:4]), frozenset(("gone.png", names[1])))
    trainer = Trainer(replace(blob_scene, known=before), replace(CONFIG, test_every=blob_scene.test_every))
    told = trainer.checkpoint().photos
    assert "gone.png" not in told.names and told.held_out is not None and names[1] in told.held_out
    assert "gone.png" not in told.held_out


def test_a_copy_is_judged_by_what_was_held_out_too(run: Path, scene: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(scene, tmp_path / "copy")
    for place in (copy, scene / "sparse" / "0"):
        images = evaluate_task(EvaluationTask(run, scene=place)).evaluation.images
        assert sorted(image.name for image in images) == HELD_OUT


@pytest.mark.parametrize(("called", "num"), [("view", 5), ("view", 12), ("other", 12)])
def test_scores_by_another_scene_in_the_place_of_the_own_are_not_kept(
    run: Path, scene: Path, called: str, num: int
) -> None:
    judged(run)
    (file,) = (run / "eval").glob("step_*.json")
    before = file.read_bytes()
    shutil.rmtree(scene)
    write_blob_scene(scene, num_views=num)
    for photo in sorted((scene / "images").iterdir()):
        photo.rename(photo.with_name(photo.name.replace("view", called)))
    poses = scene / "sparse" / "0" / "images.txt"
    poses.write_text(poses.read_text().replace("view", called))
    scored = evaluate_task(EvaluationTask(run))
    assert scored.file is None and file.read_bytes() == before
    told = " ".join(scored.evaluation.notes)
    assert "as if another scene were in its place" in told or (
        num == 5 and "view_08.png, view_11.png" in told
    )


def test_scores_are_kept_where_a_photo_that_was_learned_has_gone(run: Path, scene: Path) -> None:
    before = evaluate_task(EvaluationTask(run))
    assert before.file is not None
    (scene / "images" / "view_07.png").unlink()
    assert evaluate_task(EvaluationTask(run)).file == before.file


def test_clearly_worse_scores_of_one_model_are_of_another_scene(run: Path, scene: Path) -> None:
    before = evaluate_task(EvaluationTask(run))
    assert before.file is not None
    good = replace(before.evaluation, psnr=before.evaluation.psnr + 4)
    write_evaluation(run, 4, good)
    kept = before.file.read_bytes()
    (scene / "images" / "view_07.png").unlink()
    scored = evaluate_task(EvaluationTask(run))
    assert scored.file is None and before.file.read_bytes() == kept
    assert "as if another scene were in its place" in " ".join(scored.evaluation.notes)


def test_scores_without_a_photo_that_was_held_out_are_not_the_runs_own(run: Path, scene: Path) -> None:
    before = evaluate_task(EvaluationTask(run))
    assert before.file is not None
    for gone in ("view_05.png", "view_06.png"):
        (scene / "images" / gone).unlink()
    scored = evaluate_task(EvaluationTask(run))
    assert [image.name for image in scored.evaluation.images] == ["view_02.png", "view_08.png", "view_11.png"]
    assert scored.file is None and any("view_05.png is gone" in note for note in scored.evaluation.notes)
    checkpoint = newest_checkpoint(run)
    assert checkpoint is not None
    now = load_training_scene(scene, CONFIG, known_photos(checkpoint))
    assert joined_sentence(checkpoint, now) is None, "it cannot go on with them"
    with pytest.raises(
        ValueError, match=r"2 photos .* no longer has, or has damaged \(view_05\.png, view_06\.png\): put"
    ):
        Trainer.resume(now, checkpoint, steps=9)


def test_a_test_photo_that_files_name_is_missed_when_it_is_gone(tmp_path: Path) -> None:
    folder = write_blender(tmp_path / "blender", tiny_scene())
    ss.train(folder, config=replace(CONFIG, steps=2), run_dir=tmp_path / "named")
    scored = evaluate_task(EvaluationTask(tmp_path / "named"))
    assert scored.file is not None
    lost = scored.evaluation.images[0].name
    (folder / lost).unlink()
    again = evaluate_task(EvaluationTask(tmp_path / "named"))
    assert again.file is None and any(f"{lost} is gone" in note for note in again.evaluation.notes)


def test_all_models_of_a_run_are_judged_by_the_same_photos(run: Path, scene: Path) -> None:
    first = newest_checkpoint(run)
    assert first is not None
    resumed(run, scene, 6)
    newest = {image.name for image in evaluate_task(EvaluationTask(run)).evaluation.images}
    assert {image.name for image in evaluate_task(EvaluationTask(first)).evaluation.images} == newest


def test_a_page_of_a_run_that_has_taken_photos_in_and_its_next_run_have_one_scene(
    run: Path, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = resumed(run, scene, 6)
    project = open_project(scene, CONFIG, run)
    assert project.scene is not None and np.array_equal(project.scene.transform, trainer.scene.transform)
    assert project.scene.test_indices == trainer.scene.test_indices
    anew = project.with_new_run()
    job = anew.training_job()
    later = load_training_scene(scene, CONFIG, Training(job, WorkerContext())._known_photos())
    assert later.test_indices == project.scene.test_indices
    assert np.array_equal(later.transform, project.scene.transform)


def test_the_page_opens_a_run_with_the_split_of_its_training(
    run: Path, scene: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for project in (open_project(run, CONFIG, None), open_project(scene, CONFIG, run)):
        assert project.scene is not None
        names = sorted(project.scene.views[i].name for i in project.scene.test_indices)
        assert names == HELD_OUT, project.path
        assert any("1 more photos" in note for note in project.notes)


def test_a_scene_that_has_moved_is_named_once(
    run: Path, scene: Path, tmp_path: Path, steered: Callable[..., Steered]
) -> None:
    moved = tmp_path / "elsewhere"
    copy = shutil.copytree(scene, tmp_path / "scratch")
    given: dict[str, Any] = {"resume": True, "given": {"steps"}}
    assert train_scene(copy, TrainConfig(steps=5), run, **given).exit_code == 0
    assert Run.open(run).scene_path == scene.resolve(), "a copy, for once"
    shutil.rmtree(copy)
    shutil.move(scene, moved)
    with pytest.raises(ValueError, match="say with --scene where it is now"):
        evaluate_task(EvaluationTask(run))
    assert sorted(
        score.name for score in evaluate_task(EvaluationTask(run, scene=moved)).evaluation.images
    ) == (HELD_OUT)
    assert train_scene(moved, TrainConfig(steps=6), run, **given).exit_code == 0
    assert Run.open(run).scene_path == moved.resolve()
    assert judged(run) == HELD_OUT


def test_nobody_is_told_to_delete_a_run_that_is_being_trained(tmp_path: Path, scene: Path) -> None:
    run = Run.create(tmp_path / "begun", scene, CONFIG)
    given: dict[str, Any] = {"resume": True, "given": set()}
    lock = RunLock(run.path)
    with pytest.raises(ValueError, match="is in use by"):
        train_scene(scene, CONFIG, run.path, **given)
    lock.release()
    with pytest.raises(ValueError, match="delete it to start over there"):
        train_scene(scene, CONFIG, run.path, **given)
    assert not (run.path / "lock").exists()
