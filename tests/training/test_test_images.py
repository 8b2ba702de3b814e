"""The photos that a user names are held out, and no others, in training and in evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from splatstudio.files.run import Run
from splatstudio.models.scoring import EvaluationTask, evaluate_task
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer


def names_of(folder: Path) -> list[str]:
    return [view.name for view in load_scene(folder).views]


def test_the_named_photos_are_held_out_and_no_others(blob_folder: Path) -> None:
    names = names_of(blob_folder)
    for given in ((names[1], names[3]), (f"{names[3]}, {names[1]}",)):
        scene = load_scene(blob_folder, test_images=given)
        assert scene.test_indices == (1, 3)
        assert 0 in scene.train_indices and not {1, 3} & set(scene.train_indices)


def test_names_that_are_not_there_are_told(blob_folder: Path) -> None:
    with pytest.raises(ValueError, match=r"no photo none\.png to hold out; its names are as "):
        load_scene(blob_folder, test_images=("none.png",))
    with pytest.raises(ValueError, match="none is left to train on"):
        load_scene(blob_folder, test_images=tuple(names_of(blob_folder)))


def test_a_run_remembers_them(blob_folder: Path, tmp_path: Path) -> None:
    names = names_of(blob_folder)
    config = TrainConfig(steps=2, sh_degree=0, test_images=(names[2],))
    scene = load_training_scene(blob_folder, config)
    trainer = Trainer(scene, config)
    session = Session(trainer, Run.create(tmp_path / "run", scene.path, config))
    session.advance()
    evaluation = session.advance().evaluation
    session.close()
    trainer.close()
    assert evaluation is not None and [score.name for score in evaluation.images] == [names[2]]
    scored = evaluate_task(EvaluationTask(tmp_path / "run"))
    assert [score.name for score in scored.evaluation.images] == [names[2]] and scored.file is not None
    other = evaluate_task(EvaluationTask(tmp_path / "run", test_images=(names[3],)))
    assert [score.name for score in other.evaluation.images] == [names[3]] and other.file is None
    learned, unwritten = other.evaluation.notes
    assert learned.startswith(f"the training has learned from 1 of these 1 photos ({names[3]})")
    assert unwritten.endswith("its own scores are of other photos")
    assert scored.evaluation.notes == ()
    checkpoint = tmp_path / "run" / "ckpts" / "step_00000002"
    with pytest.raises(ValueError, match=rf"was trained with test_images {names[2]}, but .* test_every 8"):
        Trainer.resume(load_scene(blob_folder), checkpoint)
    resumed = Trainer.resume(scene, checkpoint)
    assert resumed.config == replace(config, init="")
    resumed.close()
