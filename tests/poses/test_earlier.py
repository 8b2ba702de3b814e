"""Photos that join: the coordinates stay, so do those of the test, and a run goes on with more."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from textured_rooms import ring, table_with_boxes, write_photos

from splatstudio.poses.estimate import estimate_poses
from splatstudio.poses.store import PoseStore
from splatstudio.scene.load import load_scene
from splatstudio.scene.normalize import KEPT_FRAME
from splatstudio.scene.scene import Scene

NUM, FIRST = 12, 8
CAMERAS = ring(NUM, share=0.5)


@pytest.fixture(scope="module")
def joined(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Scene]:
    """A folder to which photos have come, a run on those of before, and the scene of before."""
    folder = tmp_path_factory.mktemp("joined") / "room"
    files = write_photos(folder, table_with_boxes(), CAMERAS, scale=0.75)
    # One that comes first by name, too: the order by name is not that of the coming.
    for file in (files[0], *files[FIRST + 1 :]):
        file.rename(folder.parent / file.name)
    estimate_poses(folder)
    before = load_scene(folder, test_every=4)
    return folder, folder.parent, before


def come(folder: Path, waiting: Path) -> None:
    for file in waiting.glob("room_*.jpg"):
        shutil.move(file, folder / file.name)


def test_a_run_goes_on_with_the_photos_that_have_joined(
    joined: tuple[Path, Path, Scene],
    tmp_path: Path,
    command: Callable[..., tuple[int, str]],
) -> None:
    folder, waiting, before = joined
    run = tmp_path / "run"
    few = ("--test-every", "4", "--preset", "preview")
    code, printed = command("train", folder, "--run", run, "--steps", "4", *few)
    assert code == 0, printed
    come(folder, waiting)
    report = estimate_poses(folder)
    assert len(report.posed) == NUM and any("4 photos have joined" in note for note in report.notes)
    after = load_scene(folder, test_every=4)
    np.testing.assert_allclose(after.transform, before.transform, rtol=1e-9, atol=1e-9)
    places = {view.name: view.camera.position for view in after.views}
    errors = [np.linalg.norm(places[view.name] - view.camera.position) for view in before.views]
    assert len(errors) == FIRST and max(errors) < 0.02, "in units of the cameras' radius"
    tests = {after.views[i].name for i in after.test_indices}
    assert {before.views[i].name for i in before.test_indices} <= tests
    trained = {before.views[i].name for i in before.train_indices}
    assert not trained & tests and len(tests) == 3
    code, printed = command("train", run, "--resume", "--steps", "8")
    assert code == 0 and "4 more photos have a pose now" in printed, printed
    assert "4 more photos" not in command("train", run, "--resume", "--steps", "9")[1]


def test_other_poses_are_told_and_get_a_frame_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "room"
    write_photos(folder, table_with_boxes(), ring(20)[:5], scale=0.75)
    estimate_poses(folder)
    shutil.rmtree(folder / ".splatstudio" / "poses" / "images")
    # Another room under the same names.
    write_photos(folder, table_with_boxes(500), ring(20)[4:9], scale=0.75)
    report = estimate_poses(folder)
    assert any("differ from those of before" in note for note in report.notes)
    assert not (PoseStore(folder).sparse / "0" / KEPT_FRAME).exists()


def test_a_damaged_frame_is_named(joined: tuple[Path, Path, Scene], tmp_path: Path) -> None:
    folder = shutil.copytree(joined[0], tmp_path / "copy", symlinks=True)
    for damage in (b"{", b'{"transform": [[1]], "batches": []}', b'{"transform": 3, "batches": [["a"]]}'):
        (PoseStore(folder).sparse / "0" / KEPT_FRAME).write_bytes(damage)
        with pytest.raises(ValueError, match=r"frame\.json is damaged: delete it"):
            load_scene(folder)


def test_poses_of_a_mapping_that_had_not_ended_may_differ_by_more(joined: tuple[Path, Path, Scene]) -> None:
    import pycolmap

    from splatstudio.poses.earlier import earlier_poses, joined_frame

    earlier = earlier_poses(PoseStore(joined[0]))
    assert earlier is not None
    model = pycolmap.Reconstruction(earlier.model)
    model.transform(pycolmap.Sim3d(2.0, pycolmap.Rotation3d(np.array([0.0, 0.0, 0.6, 0.8])), np.ones(3)))
    # Every camera a tenth of the radius aside, as of poses that were rough.
    centers = np.stack([model.image(number).projection_center() for number in model.reg_image_ids()])
    radius = np.linalg.norm(centers - centers.mean(axis=0), axis=1).max()
    for number in model.reg_frame_ids():
        pose = model.frame(number).rig_from_world
        assert pose is not None
        pose.translation = pose.translation + np.array([0.1 * radius, 0.0, 0.0])
        model.frame(number).rig_from_world = pose
    before = model.image(1).projection_center()
    assert joined_frame(model, earlier) is None
    np.testing.assert_array_equal(model.image(1).projection_center(), before)
    frame = joined_frame(model, earlier, so_far=True)
    assert frame is not None and frame.batches == earlier.frame.batches
