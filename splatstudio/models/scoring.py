"""Evaluate what lies on the disk: a run, a checkpoint, a file, or the ranks' parts of one model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from splatstudio.cameras.placement import knows_no_scene
from splatstudio.checkpoints.checkpoint import is_of_scene, known_photos, newest_known_checkpoint
from splatstudio.checkpoints.manifest import SHARD_NAME
from splatstudio.checkpoints.rank_parts import part_of
from splatstudio.error_text import first_of
from splatstudio.evaluation.evaluate import (
    PSNR_AND_SSIM,
    ComparedWith,
    Evaluation,
    ImageScore,
    Measures,
    OnImage,
    write_evaluation,
)
from splatstudio.files.inputs import sha256_of
from splatstudio.files.run import Run, scored_at
from splatstudio.formats.ply import holds_points_alone
from splatstudio.models.merging import merged_parts
from splatstudio.models.model import (
    Model,
    Origin,
    colmap_model_of,
    images_of,
    in_its_scene,
    load_model,
    origin_of,
    remember_images,
    run_folder_of,
    scene_of_origin,
)
from splatstudio.models.other_outputs import GSPLAT_PLY, output_in
from splatstudio.scene.load import load_scene, load_training_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import test_names

BESIDE_THE_SCENE = 13.0  # dB: a model that is not where the cameras look is not above this
OTHER_FRAME = (
    "gsplat's trainer turns and scales the scene unless it is given --no-normalize-world-space, and neither"
    " way do the splats lie at the points of this scene: these scores say nothing about the model"
)
BESIDE = (
    "scores this low mean that the model is not where the cameras look: it may be of another scene, or in"
    " other coordinates than the scene's files, like exports of nerfstudio"
)
CLEARLY_WORSE = 3.0  # dB, for scores of the same model on most of the same photos
ANOTHER_SCENE = (
    "{} has other photos or cameras than at the training, as if another scene were in its place: these scores"
    " say nothing about the model"
)


@dataclass(frozen=True)
class EvaluationTask:
    """What to evaluate against what; None: as in the training where that is known."""

    path: Path  # a run folder, a checkpoint folder, or a file of Gaussians in the scene's coordinates
    scene: Path | None = None
    downscale: int | None = None
    test_every: int = 8  # for a file; a run remembers its own
    merge: bool = False  # join the parts of a model before
    test_images: tuple[str, ...] = ()  # those to compare with; none: as in the training
    images: str = ""  # the scene's folder of photos, where it is another one than in the training
    strict: bool = False  # refuse a file with splats that would be left out


@dataclass(frozen=True)
class Scored:
    """The scores, and where they were written."""

    evaluation: Evaluation
    step: int | None
    file: Path | None  # eval/step_N.json of the run, with a CSV beside it; None: not the run's own scores
    lost: bool = False  # they are the run's own, but could not be written


def evaluate_task(
    task: EvaluationTask,
    measures: Measures = PSNR_AND_SSIM,
    report: Callable[[int, int, ImageScore | None], None] = lambda done, total, score: None,
    on_image: OnImage = lambda *_: None,
) -> Scored:
    """Load the model and the scene, compare, and write the scores where they are a run's own.

    They are where the model is a whole one of a run and was compared as in its training, with the same scene,
    downscale and split. `report` gets the images done, their total, and the newest score.

    Raises ValueError when something cannot be read or there is nothing to compare with.
    """
    if task.merge:
        part = part_of(task.path)
        merged = merged_parts([task.path] if part is None else [part.path, *part.others])
        model = merged.model()
        if merged.checkpoint is None:  # else it knows its frame itself
            model = in_its_scene(model, merged.sources[0], task.scene)
    else:
        model = load_model(task.path, strict=task.strict, scene=task.scene)
    origin = origin_of(task.path)
    if task.scene is None and origin is not None:
        scene_of_origin(origin, task.path)  # it says what to do where that has moved
    against = _against(task, origin)
    files = _files_read(task, origin)
    split: dict[str, Any] = {"test_every": against.test_every, "test_images": against.test_images, **files}
    ours = origin is not None and origin.is_ours
    known = known_photos(_checkpoint_of(task.path)) if ours else None  # also of a copy, or another path
    scene = load_scene(against.scene, downscale=against.downscale, known=known, **split)
    total = len({scene.views[index].whole for index in scene.test_indices})
    if total == 0:
        raise ValueError(
            f"{against.scene} has no test photos: --test-every {against.test_every} holds none out"
        )
    done = 0

    def count(score: ImageScore, render: Tensor, photo: Tensor) -> None:
        nonlocal done
        done += 1
        on_image(score, render, photo)
        report(done, total, score)

    report(0, total, None)
    evaluation = replace(model.evaluate(scene, measures, count), against=against)
    evaluation = replace(evaluation, notes=(*evaluation.notes, *_doubts(task, model, origin, evaluation)))
    own = None if origin is None else _against(EvaluationTask(task.path), origin)
    if own is not None and (own.scene, own.test_every) == (against.scene, against.test_every):
        learned = _trained_on(evaluation, own, {**files, "known": known})
        evaluation = replace(evaluation, notes=(*evaluation.notes, *learned))
    run = run_folder_of(task.path)
    if run is None or own is None or model.step is None or model.part is not None:
        return Scored(evaluation, model.step, None)
    file, lost = None, False
    try:
        file, notes = _keep(run, model.step, evaluation, own, scene, task.images)
    except OSError as error:  # what was measured is told all the same
        lost, why = True, f"the scores could not be written to {run}: {error.strerror or error}"
        notes = [why, *_remembered(run, task.images)]
    return Scored(replace(evaluation, notes=(*evaluation.notes, *notes)), model.step, file, lost)


def _doubts(task: EvaluationTask, model: Model, origin: Origin | None, evaluation: Evaluation) -> list[str]:
    """Return what may be wrong with scores: a model that lies elsewhere, photos of another size."""
    doubts, ours = [], origin is not None and origin.is_ours
    is_file = task.path.is_file() and not SHARD_NAME.fullmatch(task.path.name)
    are_splats = not (is_file and holds_points_alone(task.path))
    if are_splats and (is_file or not ours) and evaluation.psnr < BESIDE_THE_SCENE:
        lies_anywhere = knows_no_scene(model.transform)
        doubts.append(OTHER_FRAME if lies_anywhere and _is_of_gsplat(task.path) else BESIDE)
    against = evaluation.against
    if origin is not None and not ours and task.downscale is None and against and against.downscale > 1:
        doubts.append(
            f"compared at 1/{against.downscale} of the photos' size, as the settings beside it have it"
        )
    return doubts


def _is_of_gsplat(path: Path) -> bool:
    """Return whether a model, or the newest in a folder of another program, is one of gsplat's trainer."""
    other = output_in(path)
    file = path if other is None else other.file
    return file.suffix == ".pt" or GSPLAT_PLY.fullmatch(file.name) is not None


def _is_another(scene: Scene, checkpoint: Path | None, psnr: float, before: float | None) -> bool:
    """Return whether what lies where a checkpoint's scene was is another one by now.

    Where photos have gone the frame moves by that alone: then `psnr` dB tells, and what it was `before`.
    """
    known = known_photos(checkpoint)
    if checkpoint is None or known is None:
        return False
    if scene.known is not None and set(scene.known.names) - scene.photos.keys():
        return before is not None and psnr < before - CLEARLY_WORSE
    return not is_of_scene(checkpoint, scene)


def _keep(
    run: Path, step: int, evaluation: Evaluation, own: ComparedWith, scene: Scene, images: str
) -> tuple[Path | None, list[str]]:
    """Write scores that are a run's own; return the file, or why there is none, and what else is to be told.

    `own` is with what its training compares, `scene` with what these were, `images` where its photos lie now.
    """
    against, lost = evaluation.against, scene.lost_test_photos
    assert against is not None, "it was just compared"
    if against != own or (images and _of_other_photos(scene, run)):
        same = (own.scene, own.downscale) == (against.scene, against.downscale)
        what = "other photos" if same else f"{own.scene} at 1/{own.downscale} of its size"
        return None, [f"not written into {run}: its own scores are of {what}"]
    if lost:
        gone = f"of the photos that its training held out {first_of(lost, 3)} is gone"
        return None, [f"not written into {run}: {gone}"]
    before = scored_at(run, step).get("psnr")
    if _is_another(scene, newest_known_checkpoint(run), evaluation.psnr, before):
        return None, [ANOTHER_SCENE.format(scene.path), f"not written into {run}"]
    return write_evaluation(run, step, evaluation), _remembered(run, images)


def _checkpoint_of(model: Path) -> Path | None:
    """Return the checkpoint that tells which photos a training had, None where there is none."""
    run = run_folder_of(model)
    # Of all models of a run the newest: what has joined after an older one is judged alike.
    if run is not None:
        return newest_known_checkpoint(run)
    return model.parent if SHARD_NAME.fullmatch(model.name) else model


def _files_read(task: EvaluationTask, origin: Origin | None) -> dict[str, Any]:
    """Return which of the scene's files are read: as the task says, else as in the training."""
    images = images_of(task.images, task.scene, origin)
    return {"images_folder": images, "model": colmap_model_of(task.scene, origin)}


def _of_other_photos(scene: Scene, run: Path) -> bool:
    """Return whether a scene's test photos are others than those of a run's training, where these still are.

    Copies of them are the same.
    """
    try:
        origin = Run.open(run)
        own = load_training_scene(origin.scene_path, origin.config)
    except ValueError:
        return False  # they have moved: these were named in their place
    known = {view.name: view.image_path for view in own.views}
    tested = {view.name: view.image_path for view in (scene.views[index] for index in scene.test_indices)}
    return any(
        name not in known or (path != known[name] and sha256_of(path) != sha256_of(known[name]))
        for name, path in tested.items()
    )


def _remembered(run: Path, images: str) -> list[str]:
    """Note in a run where its photos were said to be; return a sentence where that fails."""
    try:
        if images:
            remember_images(Run.open(run), images)
    except OSError as error:
        why = error.strerror or error
        return [f"{run} cannot keep where its photos are ({why}): name --images again"]
    return []


def _trained_on(evaluation: Evaluation, own: ComparedWith, files: dict[str, Any]) -> list[str]:
    """Return a sentence where the training, whose split is that of `own`, has learned from what is judged."""
    if evaluation.against is None or evaluation.against.test_images == own.test_images:
        return []
    split: dict[str, Any] = {"test_every": own.test_every, "test_images": own.test_images, **files}
    scene = load_scene(own.scene, downscale=own.downscale, **split)
    held_out = {scene.views[index].whole for index in scene.test_indices}
    learned = [score.name for score in evaluation.images if score.name not in held_out]
    if not learned:
        return []
    return [
        f"the training has learned from {len(learned)} of these {len(evaluation.images)} photos"
        f" ({first_of(learned, 3)}): their scores do not tell how well it shows what it has not seen"
    ]


def _against(task: EvaluationTask, origin: Origin | None) -> ComparedWith:
    """Return what to compare with: what the task says, else as in the training."""
    scene, downscale = task.scene, task.downscale
    test_every, test_images = task.test_every, task.test_images
    if origin is not None:
        scene = scene or origin.scene_path
        downscale = downscale or origin.config.downscale
        test_every = origin.config.test_every if origin.is_ours else test_every
        own = origin.config.test_images
        test_images = own if test_names(test_images) in (frozenset(), test_names(own)) else test_images
    if scene is None:
        raise ValueError(f"{task.path} does not say which scene it shows; name it with --scene FOLDER")
    return ComparedWith(scene.resolve(), downscale or 1, test_every, test_images)
