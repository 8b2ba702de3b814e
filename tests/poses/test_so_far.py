"""Training begins with the photographs that have a pose; the others join when they have one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from estimations import SECONDS, kept_so_far
from textured_rooms import ring, table_with_boxes, write_photographs

from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.estimate import lacks_poses, note_on_changes
from splatstudio.poses.store import PoseStore
from splatstudio.scene.load import load_scene

NUM = 14


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    write_photographs(tmp_path / "room", table_with_boxes(), ring(NUM, share=0.6))
    return tmp_path / "room"


def test_what_has_a_pose_is_a_scene_while_the_mapping_goes_on(photos: Path) -> None:
    estimation, so_far, scene = kept_so_far(photos)
    assert so_far.so_far and 5 <= len(so_far.posed) == len(scene.views) < NUM
    assert {photo.reason for photo in so_far.left_out} == {"no pose yet"}
    assert estimation.wait(SECONDS) and estimation.error is None and estimation.report is not None
    assert not estimation.report.so_far and len(estimation.report.posed) == NUM
    after = load_scene(photos)
    np.testing.assert_allclose(after.transform, scene.transform, rtol=1e-9, atol=1e-9)
    places = {view.name: view.camera.position for view in after.views}
    errors = [np.linalg.norm(places[view.name] - view.camera.position) for view in scene.views]
    assert np.median(errors) < 0.05, "in units of the cameras' radius"


def test_where_it_is_ended_the_rest_can_be_found_later(photos: Path) -> None:
    estimation, so_far, _ = kept_so_far(photos)
    estimation.end()
    assert estimation.report is None and estimation.error is None and not lacks_poses(photos)
    note, num = note_on_changes(photos), NUM - len(so_far.posed)
    assert note is not None and f"{num} photos have no pose yet" in note and "goes on with it" in note
    again = BackgroundEstimation(photos)
    assert again.wait(SECONDS) and again.report is not None and len(again.report.posed) == NUM
    assert note_on_changes(photos) is None


def test_a_model_tells_whose_poses_it_is(tmp_path: Path) -> None:
    video = tmp_path / "clip.mp4"
    video.write_bytes(b"")
    for source in (tmp_path / "photos", video):
        store = PoseStore.of_model(PoseStore(source).sparse / "0")
        assert store is not None and store.source == source and store.path == PoseStore(source).path
    assert PoseStore.of_model(None) is PoseStore.of_model(tmp_path / "sparse" / "0") is None
    assert PoseStore.of_model(Path("/0")) is PoseStore.of_model(Path("0")) is None
