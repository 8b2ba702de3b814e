"""The camera path that is edited, and its files: no disk keeps who moves a camera waiting."""

from __future__ import annotations

import errno
import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blob_models import blobs
from blob_scenes import write_blob_scene
from gui_parts import wait_until
from path_builder import random_keys

from splatstudio.cameras.camera_path import THROUGH_KEYFRAMES, CameraPath, through
from splatstudio.files.run import Run, new_run_path
from splatstudio.formats.ply import write_ply
from splatstudio.gui.state import scene_overlay
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.scene_overlay import Draft, PathEditor, PathStore, plain_name
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer


def editor_of(num: int) -> PathEditor:
    editor = PathEditor()
    for key in random_keys(1, num):
        editor.add(key)
    return editor


def test_keyframes_come_after_the_chosen_one_and_move() -> None:
    editor = editor_of(3)
    keys = editor.path.keyframes
    assert editor.draft.selected == 2 and len(keys) == 3
    editor.select(0)
    (new,) = random_keys(2, 1)
    editor.add(new)
    assert editor.path.keyframes == (keys[0], new, keys[1], keys[2]) and editor.keyframe is new
    editor.move(1)
    assert editor.path.keyframes == (keys[0], keys[1], new, keys[2]) and editor.keyframe is new
    editor.move(10)
    assert editor.path.keyframes[3] is new
    editor.move(1)  # is at the end already: nothing to take back
    editor.delete()
    assert editor.path.keyframes == keys and editor.keyframe is keys[2]
    editor.select(7)
    assert editor.draft.selected == 2
    for _ in range(4):
        editor.undo()
    assert editor.path.keyframes == keys
    for _ in range(9):
        editor.undo()
    assert editor.path.keyframes == () and editor.keyframe is None and not editor.can_undo
    editor.delete()
    editor.move(1)
    editor.change_keyframe(seconds=1.0)
    assert not editor.can_undo


def test_a_drag_is_one_step_back(monkeypatch: pytest.MonkeyPatch) -> None:
    editor = editor_of(2)
    before = editor.keyframe
    assert before is not None
    clock = iter(range(0, 1000))
    monkeypatch.setattr(scene_overlay.time, "monotonic", lambda: 0.1 * next(clock))
    for fov in np.linspace(0.5, 0.9, 30):
        editor.change_keyframe(control="fov", fov_y=float(fov))
    assert editor.keyframe is not None and editor.keyframe.fov_y == pytest.approx(0.9)
    editor.undo()
    assert editor.keyframe is before
    told: list[Draft] = []
    editor.listen(told.append)
    with pytest.raises(ValueError, match="tension"):
        editor.change_path(tension=2.0)
    with pytest.raises(ValueError, match="field of view"):
        editor.change_keyframe(fov_y=4.0)
    assert told == []
    editor.change_duration(8.0)
    assert editor.path.duration == 8.0 and len(told) == 1


def test_paths_are_saved_with_the_run_before_it_begins(
    blob_scene: Scene, blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = open_project(blob_folder, TrainConfig(), None)
    told: list[str] = []
    store = PathStore(project, told.append)
    assert store.names() == [] and store.unused("path") == "path"
    path = CameraPath(random_keys(3, 4), tension=0.5)
    store.save_soon(path, "one")
    store.save_soon(CameraPath(()), "empty")  # the one before is written at once
    store.flush()
    assert store.names() == ["one"] and store.unused("one") == "one-2"
    assert store.folder.resolve() == tmp_path / "runs" / "blobs" / "camera_paths"
    for key, other in zip(store.read("one").keyframes, path.keyframes, strict=True):
        assert np.allclose(key.camera_to_world, other.camera_to_world, atol=1e-9)
    # What was drawn before the first step is no hindrance to it, and found again.
    assert new_run_path(blob_folder) == Path("runs/blobs") and not project.run_folder_taken
    assert PathStore(open_project(blob_folder, TrainConfig(), None)).names() == ["one"]
    Run.create(Path("runs/blobs"), blob_folder, TrainConfig())
    assert project.run_folder_taken and new_run_path(blob_folder) == Path("runs/blobs-2")
    (store.folder / "one.json").write_text("{")
    with pytest.raises(ValueError, match=r"one\.json"):
        store.read("one")
    store.folder.rename(tmp_path / "away")
    store.folder.write_text("a file is in the way")
    store.save_soon(path, "two")
    store.flush()
    wait_until(lambda: any("two is not saved" in problem for problem in told))
    # It is tried again until it can be: else that would be in the folder of a later test.
    store.folder.unlink()
    store.close()
    assert store._thread is not None
    store._thread.join(120.0)
    assert not store._thread.is_alive() and store.names() == ["two"]


def test_the_paths_of_a_checkpoint_without_its_scene_are_in_the_files_coordinates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = write_blob_scene(tmp_path / "capture")
    scene = load_scene(folder)
    trainer = Trainer(scene, TrainConfig(steps=1))
    run = Run.create(tmp_path / "run", folder, TrainConfig(steps=1))
    trainer.save(run.path)
    trainer.close()
    shutil.rmtree(folder)
    project = open_project(tmp_path / "run", TrainConfig(), None)
    assert project.scene is None
    transform = PathStore(project).transform
    assert transform is not None and np.allclose(transform, scene.transform)
    assert not np.allclose(transform, np.eye(4))


def test_names_of_files_are_plain() -> None:
    assert plain_name("../../etc/pass wd") == "etc-pass-wd"
    assert plain_name("…") == "path" and len(plain_name("a" * 999)) == 60


def test_a_path_through_the_photos_is_even(blob_scene: Scene) -> None:
    path = through(blob_scene.cameras, seconds=5.0)
    assert len(path.keyframes) == 9 and path.duration == pytest.approx(5.0) and not path.loop
    for key, camera in zip(path.keyframes, blob_scene.cameras, strict=True):
        assert np.allclose(key.camera_to_world, camera.camera_to_world)
    many = through([blob_scene.cameras[i % 9] for i in range(500)])
    assert len(many.keyframes) == THROUGH_KEYFRAMES and many.duration == pytest.approx(12.0)
    assert through([blob_scene.cameras[0]] * 3).duration == pytest.approx(12.0)
    assert through(blob_scene.cameras[:1]).duration == pytest.approx(12.0)
    with pytest.raises(ValueError, match="needs them"):
        through([])


@pytest.fixture
def store(told: list[str], blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PathStore:
    monkeypatch.chdir(tmp_path)
    return PathStore(open_project(blob_folder, TrainConfig(), None), told.append)


@pytest.fixture
def told() -> list[str]:
    return []


def test_changes_do_not_wait_for_the_disk_and_the_newest_is_written(
    store: PathStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, release = threading.Event(), threading.Event()
    write, written = scene_overlay.write_camera_path, []

    def slow(file: Path, path: CameraPath, *rest: Any, **options: Any) -> None:
        writing.set()
        assert release.wait(120)
        written.append((file.stem, len(path.keyframes)))
        write(file, path, *rest, **options)

    monkeypatch.setattr(scene_overlay, "write_camera_path", slow)
    monkeypatch.setattr(scene_overlay, "SAVE_SECONDS", 0.05)
    store.save_soon(CameraPath(random_keys(1, 2)), "one")
    assert writing.wait(120)
    start = time.monotonic()
    for count in range(3, 8):
        store.save_soon(CameraPath(random_keys(1, count)), "one")
    store.save_soon(CameraPath(random_keys(1, 2)), "two")
    assert time.monotonic() - start < 60.0, "a change waited for the disk"
    release.set()
    store.close()
    assert written[0] == ("one", 2) and sorted(written[1:]) == [("one", 7), ("two", 2)]
    assert len(store.read("one").keyframes) == 7 and sorted(store.names()) == ["one", "two"]


def test_what_is_not_on_the_disk_yet_is_there_for_who_asks(
    store: PathStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    writing, release = threading.Event(), threading.Event()
    write = scene_overlay.write_camera_path

    def slow(*arguments: Any, **options: Any) -> None:
        writing.set()
        assert release.wait(120)
        write(*arguments, **options)

    store.write(CameraPath(random_keys(1, 2)), "one", with_frames=False)
    monkeypatch.setattr(scene_overlay, "write_camera_path", slow)
    monkeypatch.setattr(scene_overlay, "SAVE_SECONDS", 0.1)
    store.save_soon(CameraPath(random_keys(1, 3)), "one")
    store.save_soon(CameraPath(random_keys(1, 4)), "two")
    store.save_soon(CameraPath(()), "three")  # is not kept

    def all_there() -> None:
        assert sorted(store.names()) == ["one", "two"] and store.unused("two") == "two-2"
        assert len(store.read("one").keyframes) == 3 and len(store.read("two").keyframes) == 4

    all_there()
    assert writing.wait(120)
    all_there()
    store.save_soon(CameraPath(random_keys(1, 5)), "two")
    assert len(store.read("two").keyframes) == 5 and store.unused("three") == "three"
    release.set()
    store.close()
    assert len(store.read("two").keyframes) == 5 and sorted(store.names()) == ["one", "two"]


def test_what_a_full_disk_did_not_take_is_told_and_tried_again(
    store: PathStore, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write = scene_overlay.write_camera_path

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(scene_overlay, "write_camera_path", full)
    monkeypatch.setattr(scene_overlay, "RETRY_SECONDS", 0.1)
    store.save_soon(CameraPath(random_keys(1, 3)), "one")
    store.flush()
    wait_until(lambda: told == ["The camera path one is not saved: No space left on device."])
    time.sleep(0.5)
    assert len(told) == 1, "once, however often it is tried"
    monkeypatch.setattr(scene_overlay, "write_camera_path", write)
    wait_until((store.folder / "one.json").exists, "it is written")
    assert store.names() == ["one"]
    store.close()
    assert store._thread is not None
    store._thread.join(120.0)
    assert not store._thread.is_alive()


def test_the_path_stays_with_the_run_that_is_started_over(
    blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    project = open_project(blob_folder, TrainConfig(), None)
    assert project.run_dir is not None
    store, editor = (
        PathStore(project),
        PathEditor(Draft(CameraPath(random_keys(3, 4), width=1920, height=1080))),
    )
    store.save_soon(editor.path, "mine")
    another = replace(project, run_dir=project.run_dir.with_name("another"))
    assert not store.follow(project) and store.follow(another)
    editor.begin_anew()
    assert store.names() == [] and PathStore(project).names() == ["mine"]
    assert editor.path.keyframes == () and (editor.path.width, editor.path.height) == (1920, 1080)
    assert not editor.can_undo
    store.close()


def test_each_model_without_a_run_keeps_its_own_path(tmp_path: Path) -> None:
    """Another model may be opened on the page, whose paths are not written over."""
    projects = []
    for name in ("a.ply", "b.ply"):
        write_ply(tmp_path / name, blobs())
        projects.append(open_project(tmp_path / name, TrainConfig(), None))
    first, second = projects
    PathStore(second).write(CameraPath(random_keys(1, 5)), "path", with_frames=False)
    store = PathStore(first)
    store.save_soon(CameraPath(random_keys(2, 3)), "path")
    assert store.follow(second) and not store.follow(second)
    assert len(PathStore(first).read("path").keyframes) == 3, "what was unsaved is with its own model"
    assert len(store.read("path").keyframes) == 5
    store.close()
