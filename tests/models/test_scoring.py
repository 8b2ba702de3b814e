"""Evaluating what lies on the disk: models of other programs, in their frames."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import pytest
import torch
from blob_models import blobs

from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.evaluation.evaluate import ComparedWith, evaluation_from_json
from splatstudio.files.run import Run
from splatstudio.formats.ply import write_ply
from splatstudio.formats.torch_file import write_gsplat_checkpoint
from splatstudio.models import scoring
from splatstudio.models.model import Model, load_model, origin_of
from splatstudio.models.scoring import BESIDE, OTHER_FRAME, EvaluationTask, evaluate_task
from splatstudio.rendering.render import render
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

SHARED = Path(__file__).parents[3] / "shared"
PLY = SHARED / "bench" / "banana_114k.ply"


@pytest.mark.skipif(not PLY.exists(), reason="needs the shared workloads")
def test_another_trainers_model_opens_renders_and_evaluates_on_its_scene() -> None:
    banana = SHARED / "scenes" / "banana"
    scored = evaluate_task(EvaluationTask(PLY, banana, downscale=4))
    evaluation = scored.evaluation
    assert evaluation.num_gaussians == 113_684 and len(evaluation.images) == 2
    # Its program sorts wrongly and was judged at 19.6 dB before it was split: no pretty model, but the scene.
    assert 16.5 < evaluation.psnr < 20.0 and scored.file is None
    scene = load_scene(banana, downscale=4)
    with torch.no_grad():
        picture = render(load_model(PLY).in_frame_of(scene).gaussians, scene.cameras[0])
    assert float(picture.alpha.mean()) > 0.9


def test_a_run_s_own_scores_are_of_its_own_photos(blob_folder: Path, tmp_path: Path) -> None:
    scene = shutil.copytree(blob_folder, tmp_path / "scene")
    shutil.copytree(scene / "images", scene / "others")
    for photo in (scene / "others").iterdir():
        cv2.imwrite(str(photo), 255 - cv2.imread(str(photo)))  # type: ignore[operator]
    config = TrainConfig(steps=2, sh_degree=0, images="others")
    trained = load_scene(scene, images_folder="others")
    run = Run.create(tmp_path / "run", scene, config)
    session = Session(Trainer(trained, config), run)
    while not session.finished:
        session.advance()
    session.close()
    session.trainer.close()
    own = evaluate_task(EvaluationTask(run.path, scene))
    assert own.file is not None, "the scene is the same one"
    assert own.evaluation.psnr == evaluate_task(EvaluationTask(run.path)).evaluation.psnr
    other = evaluate_task(EvaluationTask(run.path, images="images"))
    assert other.file is None and any(
        "its own scores are of other photos" in n for n in other.evaluation.notes
    )


def test_of_another_programs_result_the_split_is_as_asked_for(blob_folder: Path, tmp_path: Path) -> None:
    moved = blobs()
    moved.means[:] = moved.means * 0.3 + 40.0
    write_ply(tmp_path / "point_cloud.ply", moved)
    (tmp_path / "cfg_args").write_text(f"Namespace(source_path={str(blob_folder)!r}, images='images')")
    assert origin_of(tmp_path / "point_cloud.ply") is not None
    scored = evaluate_task(EvaluationTask(tmp_path / "point_cloud.ply", test_every=3))
    scene = load_scene(blob_folder, test_every=3)
    assert (
        len(scored.evaluation.images) == len(scene.test_indices) != len(load_scene(blob_folder).test_indices)
    )
    assert scored.evaluation.notes == (BESIDE,)


def test_a_model_in_a_frame_of_its_own_is_told(blob_folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "ckpt_29_rank0.pt"
    write_gsplat_checkpoint(file, blobs(), step=29)
    right = evaluate_task(EvaluationTask(file, blob_folder))
    assert right.evaluation.psnr > 50.0 and right.evaluation.notes == () and right.step is None
    moved = blobs()
    moved.means[:] = moved.means * 0.3 + 40.0
    write_gsplat_checkpoint(file, moved, step=29)
    beside = evaluate_task(EvaluationTask(file, blob_folder))
    assert beside.evaluation.notes == (OTHER_FRAME,)
    write_ply(tmp_path / "of_nerfstudio.ply", moved)
    assert evaluate_task(EvaluationTask(tmp_path / "of_nerfstudio.ply", blob_folder)).evaluation.notes == (
        BESIDE,
    )


def test_an_evaluation_of_another_size_or_scene_leaves_the_runs_own_scores(
    blob_scene: Scene, blob_folder: Path, tmp_path: Path
) -> None:
    config = TrainConfig(steps=1, sh_degree=0, eval_steps=(), save_steps=())
    run = Run.create(tmp_path / "run", blob_scene.path, config)
    trainer = Trainer(blob_scene, config)
    session = Session(trainer, run)
    session.advance()
    session.close()
    trainer.close()
    file = run.path / "eval" / "step_00000001.json"
    own = file.read_bytes()
    against = ComparedWith(blob_scene.path.resolve(), 1, 8)
    assert evaluation_from_json(json.loads(own)).against == against
    for other in (EvaluationTask(run.path, downscale=2), EvaluationTask(run.path, scene=tmp_path / "copy")):
        if other.scene is not None:
            shutil.copytree(blob_folder, other.scene)
        scored = evaluate_task(other)
        assert scored.file is None and file.read_bytes() == own
        assert scored.evaluation.against != against
        assert "its own scores are of" in scored.evaluation.notes[-1]
    scored = evaluate_task(EvaluationTask(run.path, downscale=1))
    assert scored.file is not None and scored.file.samefile(file) and scored.evaluation.against == against
    assert file.read_bytes() != own, "its time per image is another"


def test_a_file_of_a_run_in_other_coordinates_is_told(blob_scene: Scene, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", blob_scene.path, TrainConfig(steps=1, sh_degree=0))
    own = Model(blobs()).in_frame_of(blob_scene)
    for name, moved, told in (("own", 0.0, False), ("moved", 50.0, True)):
        away = replace(own, gaussians=replace(own.gaussians, means=own.gaussians.means + moved))
        away.save(run.path / f"{name}.spz")
        notes = evaluate_task(EvaluationTask(run.path / f"{name}.spz")).evaluation.notes
        assert (BESIDE in notes) == told, notes


def test_scores_of_a_run_that_may_not_be_written_are_told_all_the_same(
    blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.create(tmp_path / "run", blob_scene.path, TrainConfig(steps=1, sh_degree=0))
    trainer = Trainer(blob_scene, run.config)
    save_checkpoint(run.path, trainer.checkpoint())
    trainer.close()

    def refuse(*_: object) -> Path:
        raise PermissionError(13, "Permission denied", "x.tmp-1")

    monkeypatch.setattr(scoring, "write_evaluation", refuse)
    scored = evaluate_task(EvaluationTask(run.path))
    assert scored.file is None and scored.lost and scored.evaluation.psnr > 0
    assert scored.evaluation.notes[-1] == f"the scores could not be written to {run.path}: Permission denied"
    monkeypatch.undo()
    monkeypatch.setattr(scoring, "remember_images", refuse)
    scored = evaluate_task(EvaluationTask(run.path, images=str(blob_scene.views[0].image_path.parent)))
    told = f"{run.path} cannot keep where its photos are (Permission denied): name --images again"
    assert scored.file is not None and scored.evaluation.notes == (told,)
