"""A run that comes from elsewhere, with links in it: going on with it harms no file outside of it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from blob_models import blobs, ring_of_cameras
from example_checkpoints import example

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import CameraPath
from splatstudio.checkpoints.checkpoint import checkpoint_folders, remove_checkpoint, save_checkpoint
from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.files.durable import partial_path, write_durably
from splatstudio.files.outputs import make_folder
from splatstudio.files.run import Run, RunLock
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.scene_overlay import PathStore
from splatstudio.models.model import Model
from splatstudio.models.video import write_frames
from splatstudio.runtime.messages import Export
from splatstudio.runtime.process_setup import log_of, redirect_output
from splatstudio.runtime.sentences import error_sentence
from splatstudio.runtime.tasks import Task, _export
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

CONFIG = TrainConfig(steps=6, sh_degree=0, save_steps=(), eval_steps=(2,), seed=1)
OTHER_NAMES = ("lock", "eval/lost", f".run.json.tmp-{os.getpid()}", f".run.json.tmp-{os.getpid() + 1}")


def write_all(run: Path, scene: Scene) -> None:
    """Write, as far as it is possible, every file that the studio writes into the folder of a run."""

    def train() -> None:
        trainer = Trainer(scene, CONFIG)
        with suppress(OSError, ValueError):
            session = Session(trainer, Run.open(run))
            for _ in range(3):
                session.advance()
            session.save_in_background()
            session.settle()
            write_evaluation(run, 5, session.evaluate())
            session.close()
        trainer.close()

    def store_path() -> None:
        store = PathStore(open_project(run, CONFIG, None))
        store.write(CameraPath(()), "orbit", with_frames=False)

    tasks: list[Callable[[], object]] = [
        train,
        store_path,
        lambda: Run.open(run).with_images("elsewhere"),
        lambda: redirect_output(log_of(run)),
        lambda: save_checkpoint(run, example(4)),
        lambda: remove_checkpoint(run / "ckpts" / "step_00000004"),
        lambda: save_checkpoint(run, example(9)),
        lambda: _export(Task(Export(run / "exports" / "a.ply", job=1), lambda _: None, lambda: 1), model()),
        lambda: write_frames(black, ring_of_cameras()[:1], run / "renders" / "frames", fps=10.0),
        lambda: write_frames(black, ring_of_cameras()[:1], run / "renders" / "orbit.mp4", fps=10.0),
    ]
    for task in tasks:
        with suppress(OSError, ValueError):
            task()


def model() -> Model:
    return Model(blobs())


def black(camera: Camera) -> np.ndarray:
    return np.zeros((camera.height, camera.width, 3), np.uint8)


def contents(folder: Path) -> dict[str, bytes | None]:
    """Return what is in a folder: the bytes of each file, and the names of folders and links."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }


def test_no_file_of_a_run_is_written_through_a_link(
    blob_scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "dup2", lambda *_: None)  # the output of the tests stays theirs
    honest = tmp_path / "honest"
    Run.create(honest, blob_scene.path, CONFIG)
    write_all(honest, blob_scene)
    names = {str(path.relative_to(honest)) for path in honest.rglob("*")}
    written = {"metrics.jsonl", "logs/worker.log", "ckpts", "eval/step_00000002.json", "exports/a.ply"}
    written |= {"renders/orbit.mp4", "renders/frames/00000.png", "camera_paths/orbit.json"}
    assert written <= names, names
    partials = [partial_path(Path(name)).as_posix() for name in ("exports/a.ply", "renders/orbit.mp4")]
    linked = {*names, *OTHER_NAMES, *partials} - {"run.json"}
    # What stands in the way of a training hides what else it writes: that is tried by itself.
    alone = {
        name for name in linked if name in ("lock", "metrics.jsonl", "eval/lost") or (honest / name).is_dir()
    }
    for number, together in enumerate([*([name] for name in sorted(alone)), sorted(linked - alone)]):
        outside, run = tmp_path / f"outside{number}", tmp_path / f"run{number}"
        shutil.copytree(honest, run)
        for place, name in enumerate(together):
            put_link(run / name, outside / str(place), to_folder=name == "eval/lost")
        before = contents(outside)
        write_all(run, blob_scene)
        assert contents(outside) == before, together


def put_link(place: Path, outside: Path, *, to_folder: bool) -> None:
    """Put a link to something outside of a run where a file or folder of it is, or is not."""
    outside.mkdir(parents=True)
    target = outside / "file"
    target.write_bytes(b"precious")
    if place.is_dir():
        target = outside / "folder"
        place.rename(target)
    elif to_folder:
        target = outside
    else:
        place.parent.mkdir(exist_ok=True)
        place.unlink(missing_ok=True)
    place.symlink_to(target)


def test_run_json_may_be_replaced_but_not_what_it_is_a_link_to(blob_scene: Scene, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "run", blob_scene.path, CONFIG)
    kept = (run.path / "run.json").rename(tmp_path / "kept.json")
    (run.path / "run.json").symlink_to(kept)
    before = kept.read_bytes()
    run.with_images("elsewhere")
    assert kept.read_bytes() == before and Run.open(run.path).config.images == "elsewhere"


@pytest.mark.parametrize("name", ["lock", "metrics.jsonl"])
def test_a_link_in_place_of_a_file_is_told(blob_scene: Scene, tmp_path: Path, name: str) -> None:
    run = Run.create(tmp_path / "run", blob_scene.path, CONFIG)
    (tmp_path / "precious").write_text("precious")
    (run.path / name).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="it is a link, which a run does not write through: remove it"):
        RunLock(run.path) if name == "lock" else run.append_metrics({"step": 1})
    assert (tmp_path / "precious").read_text() == "precious"
    (run.path / name).unlink()
    os.mkfifo(run.path / name)
    with pytest.raises(OSError, match="it is no regular file: remove it"):
        RunLock(run.path) if name == "lock" else run.append_metrics({"step": 1})


def test_the_run_itself_and_what_stays_inside_may_be_links(blob_scene: Scene, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "disk" / "run", blob_scene.path, CONFIG)
    (tmp_path / "runs").symlink_to(tmp_path / "disk")
    (run.path / "large").mkdir()
    (run.path / "ckpts").symlink_to("large")
    path = save_checkpoint(tmp_path / "runs" / "run", example(3))
    assert [folder.name for folder in checkpoint_folders(run.path)] == [path.name]
    (run.path / "eval").symlink_to(tmp_path)
    with pytest.raises(OSError, match="it is a link out of the run"):
        make_folder(run.path / "eval" / "lost")
    assert not (tmp_path / "lost").exists()


def test_a_name_that_is_taken_by_a_link_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / f".file.tmp-{os.getpid()}").symlink_to(tmp_path / "precious")
    (tmp_path / "file").symlink_to(tmp_path / "precious")
    write_durably(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new" and not (tmp_path / "file").is_symlink()
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", ["ckpts", "eval", "logs"])
def test_a_folder_that_leads_out_is_told_before_anything_is_trained(
    blob_scene: Scene, tmp_path: Path, name: str
) -> None:
    run = Run.create(tmp_path / "run", blob_scene.path, CONFIG)
    (run.path / name).symlink_to(tmp_path)
    trainer = Trainer(blob_scene, CONFIG)
    with pytest.raises(ValueError, match=f"{name} cannot be written: it is a link out of the run") as caught:
        Session(trainer, run)
    trainer.close()
    assert error_sentence(caught.value).endswith("put a folder in its place.")
    assert not (run.path / "lock").exists()
