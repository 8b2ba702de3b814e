"""A power cut at any moment of what is written leaves the old or the new whole, and at the end the new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blob_models import blobs, ring_of_cameras
from example_checkpoints import example
from power_loss import Disk, lay_out

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import orbit_of
from splatstudio.cameras.path_file import read_camera_path
from splatstudio.checkpoints.checkpoint import (
    Checkpoint,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    save_checkpoint,
)
from splatstudio.evaluation.evaluate import Evaluation, ImageScore, write_evaluation
from splatstudio.files.durable import write_durably
from splatstudio.files.recent import recent_paths, remember
from splatstudio.files.run import Run
from splatstudio.formats import FORMATS, write_gaussians
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.scene_overlay import PathStore
from splatstudio.models.merging import merge
from splatstudio.models.model import Model
from splatstudio.models.video import write_frames
from splatstudio.runtime.headless_controller import keep_token, kept_token
from splatstudio.runtime.messages import Export
from splatstudio.runtime.tasks import Task, _export
from splatstudio.settings.config import TrainConfig

Cut = Callable[[Callable[[Path], object], Callable[[Path], object]], None]


@pytest.fixture
def cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]
) -> Callable[..., None]:
    """Write in a folder, cut the power at each moment, and compare what is found with before and after."""

    def check(work: Callable[[Path], object], found: Callable[[Path], object]) -> None:
        root = tmp_path / "disk"
        root.mkdir(exist_ok=True)
        before = found(root)
        disk = Disk(root)
        disk.watch(monkeypatch, lambda: work(root))
        after = found(root)
        assert before != after and after is not None
        place, num = tmp_path / "cut", 0
        for state, done in disk.states():
            lay_out(state, place)
            left = found(place)
            assert left == after or (left == before and not done), (done, state)
            num += 1
        assert num > 3
        record_property("cases", num)

    return check


def newest(run: Path) -> tuple[int, int] | None:
    """Return step and seed of the newest checkpoint that is good, by its first number."""
    folder = newest_checkpoint(run, lambda _: None)
    if folder is None:
        return None
    checkpoint = load_checkpoint(folder)
    seed = next(seed for seed in range(9) if same(checkpoint, example(checkpoint.step, seed)))
    return checkpoint.step, seed


def same(a: Checkpoint, b: Checkpoint) -> bool:
    return bool((a.gaussians.means == b.gaussians.means).all()) and a.num_bytes == b.num_bytes


def test_the_first_save_of_a_run(cut: Cut) -> None:
    cut(lambda root: save_checkpoint(root, example(4)), newest)


def test_a_save_that_replaces_one_of_the_same_step(cut: Cut, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "disk", example(4))
    cut(lambda root: save_checkpoint(root, example(4, seed=1), num_shards=2), newest)


def test_a_save_that_deletes_older_ones(cut: Cut, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "disk", example(2))
    save_checkpoint(tmp_path / "disk", replace(example(4), autosave=True))
    cut(lambda root: prune_checkpoints(save_checkpoint(root, example(6)), 1), newest)


def test_a_merge_into_a_new_folder(cut: Cut, tmp_path: Path) -> None:
    parts = save_checkpoint(tmp_path / "parts", example(4), num_shards=2)

    def found(root: Path) -> object:
        folder = root / "new" / "whole"
        return load_checkpoint(folder).gaussians.means.tolist() if folder.exists() else None

    cut(lambda root: merge(parts, root / "new" / "whole"), found)


@pytest.mark.parametrize("ending", [form.endings[0] for form in FORMATS if form.write])
def test_an_export_over_an_older_one(cut: Cut, tmp_path: Path, ending: str) -> None:
    file = tmp_path / "disk" / f"model{ending}"
    file.parent.mkdir()
    write_gaussians(file, blobs(1, num=20))
    other = blobs(2, num=20)
    cut(lambda root: write_gaussians(root / file.name, other), lambda root: content(root / file.name))


def content(file: Path) -> bytes | None:
    return file.read_bytes() if file.exists() else None


def test_an_export_of_the_page_into_a_new_folder(cut: Cut) -> None:
    model = Model(blobs(num=20))

    def export(root: Path) -> None:
        assert _export(Task(Export(root / "exports" / "a.ply", job=1), lambda _: None, lambda: 1), model)

    cut(export, lambda root: content(root / "exports" / "a.ply"))


def test_a_new_run_and_what_is_changed_of_it(cut: Cut, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "disk", tmp_path / "scene", TrainConfig())
    cut(lambda _: run.with_images("elsewhere"), lambda root: Run.open(root).config.images)


def test_the_folder_of_a_new_run(cut: Cut, tmp_path: Path) -> None:
    def found(root: Path) -> object:
        return content(root / "runs" / "a" / "run.json")

    cut(lambda root: Run.create(root / "runs" / "a", tmp_path / "scene", TrainConfig()), found)


def test_a_camera_path_that_is_edited(cut: Cut, tmp_path: Path) -> None:
    run = Run.create(tmp_path / "disk", tmp_path / "scene", TrainConfig())
    save_checkpoint(run.path, replace(example(4), scene_transform=np.eye(4)))
    store = PathStore(open_project(run.path / "ckpts" / "step_00000004", TrainConfig(), None))
    placed = orbit_of(ring_of_cameras())
    file = store.write(placed, "orbit", with_frames=False).relative_to(run.path)
    edited = replace(placed, fps=7.0)
    cut(
        lambda _: store.write(edited, "orbit", with_frames=False),
        lambda root: read_camera_path(root / file, store.transform).fps,
    )


def test_an_evaluation(cut: Cut) -> None:
    image = ImageScore("a.png", 20.0, 0.5)
    scores = Evaluation(20.0, 0.5, num_gaussians=7, images=(image,), seconds_per_image=0.1)
    cut(
        lambda root: write_evaluation(root, 5, scores),
        lambda root: content(root / "eval" / "step_00000005.json"),
    )


def test_frames_of_a_video(cut: Cut) -> None:
    def black(camera: Camera) -> np.ndarray:
        return np.zeros((camera.height, camera.width, 3), np.uint8)

    def found(root: Path) -> object:
        folder = root / "renders" / "frames"
        files = sorted(folder.iterdir()) if folder.exists() else []
        return [(file.name, file.read_bytes()) for file in files]

    cut(lambda root: write_frames(black, ring_of_cameras()[:2], root / "renders" / "frames", fps=10.0), found)


def test_lists_and_secrets_of_the_user(cut: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(root: Path) -> object:
        monkeypatch.setenv("XDG_STATE_HOME", str(root))
        return kept_token(tmp_path), recent_paths()

    found(tmp_path / "disk")
    keep_token(tmp_path, "a" * 16)
    cut(lambda _: keep_token(tmp_path, "b" * 16), found)


def test_a_list_of_what_was_opened(cut: Cut, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def found(root: Path) -> object:
        monkeypatch.setenv("XDG_STATE_HOME", str(root))
        return recent_paths()

    found(tmp_path / "disk")
    cut(lambda _: remember(tmp_path), found)


def test_the_shim_finds_what_is_not_synced(cut: Cut) -> None:
    """Without a sync of the content or of the name a file may be torn, empty or missing."""

    def carelessly(root: Path) -> None:
        (root / "new").write_bytes(b"content")
        (root / "new").rename(root / "file")

    with pytest.raises(AssertionError):
        cut(carelessly, lambda root: content(root / "file"))
    cut(lambda root: write_durably(root / "other", b"content"), lambda root: content(root / "other"))
