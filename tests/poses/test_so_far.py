"""Training begins with the photos that have a pose; the others join when they have one."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from estimations import SECONDS, kept_so_far, wait_until_it_maps
from textured_rooms import ring, table_with_boxes, write_photos

from splatstudio.checkpoints.checkpoint import newest_checkpoint
from splatstudio.cli.start import run_until_closed
from splatstudio.gui.app import Studio, open_studio
from splatstudio.gui.server.access import Listen
from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.estimate import lacks_poses, note_on_changes
from splatstudio.poses.store import PoseStore
from splatstudio.runtime.sentences import checkpoint_step
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import AS_FOUND

NUM = 14


@pytest.fixture(scope="module")
def matched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos whose matches are found and kept, as they are where a mapping was ended."""
    folder = tmp_path_factory.mktemp("so_far") / "room"
    write_photos(folder, table_with_boxes(), ring(NUM, share=0.6))
    estimation = BackgroundEstimation(folder)
    wait_until_it_maps(estimation)
    estimation.end()
    return folder


@pytest.fixture
def photos(matched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(matched, tmp_path / "room"))


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


def test_photos_join_in_the_middle_of_a_running_training(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    estimation, so_far, _ = kept_so_far(photos)
    config = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), downscale=4)
    opened = [Studio(photos, network=Listen(port=0), config=config)]
    monkeypatch.setattr(
        "splatstudio.gui.app.open_studio",
        lambda *path, **asked: opened.append(open_studio(*path, **asked)) or opened[-1],
    )
    left_at: list[int] = []

    def use() -> None:
        end = time.monotonic() + 100.0
        try:
            assert estimation.wait(60.0) and estimation.report is not None
            trains(opened[0], 20, end)
            left_at.append(opened[0].controller.status.step)
            opened[0].open_again()
            while len(opened) < 2:
                assert time.monotonic() < end
                time.sleep(0.05)
            trains(opened[1], left_at[0] + 20, end)
        finally:
            opened[-1].go_home()

    opened[0].start_training()
    with ThreadPoolExecutor(1) as pool:
        used = pool.submit(use)
        assert run_until_closed(opened[0], AS_FOUND) is not None
        used.result()
    first, second = (one.controller.project for one in opened)
    assert first.scene is not None and second.scene is not None and second.run_dir is not None
    assert second.run_dir == first.run_dir, "the same run goes on"
    assert (len(first.scene.views), len(second.scene.views)) == (len(so_far.posed), NUM)
    saved = newest_checkpoint(second.run_dir)
    assert saved is not None and checkpoint_step(saved) >= left_at[0] + 20


def trains(studio: Studio, step: int, end: float) -> None:
    """Wait until a studio trains and is at a step."""
    while studio.controller.status.state != "training" or studio.controller.status.step < step:
        assert time.monotonic() < end and studio.controller.status.state != "failed", studio.controller.status
        time.sleep(0.05)
