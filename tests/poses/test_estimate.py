"""Photos in, poses out: exact, kept, gone on with, noticed when they change, and never at a cost."""

from __future__ import annotations

import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from pose_errors import pose_errors
from textured_rooms import FOCAL, UP, ring, table_with_boxes, write_photos, write_video

from splatstudio.gui.state.project import open_project
from splatstudio.poses.estimate import (
    PoseProgress,
    StageDied,
    estimate_poses,
    lacks_poses,
    note_on_changes,
    scene_of,
)
from splatstudio.poses.records import PoseReport
from splatstudio.poses.store import PoseStore
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig

NUM, SHARE = 9, 0.4  # photos, on that part of a ring


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, PoseReport]:
    """Photos of a room whose poses have been estimated, and the report."""
    folder = tmp_path_factory.mktemp("estimate") / "my room"
    write_photos(folder, table_with_boxes(), ring(NUM, share=SHARE))
    assert lacks_poses(folder)
    return folder, estimate_poses(folder)


@dataclass(frozen=True)
class GoneOn:
    """An estimation of four photos that was ended as it had their features, and gone on with."""

    folder: Path
    before: dict[str, bytes]  # the features as it was ended
    lacked: bool  # whether there were no poses then
    told: list[PoseProgress]  # as it went on
    report: PoseReport


@pytest.fixture(scope="module")
def gone_on(tmp_path_factory: pytest.TempPathFactory) -> GoneOn:
    folder = tmp_path_factory.mktemp("gone_on") / "room"
    write_photos(folder, table_with_boxes(), ring(20)[:4])

    def leave(progress: PoseProgress) -> None:
        if progress.stage == "matches" and progress.total:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        estimate_poses(folder, on_progress=leave)
    before, lacked, told = keypoints(folder), lacks_poses(folder), list[PoseProgress]()
    report = estimate_poses(folder, on_progress=told.append)
    return GoneOn(folder, before, lacked, told, report)


@pytest.fixture
def copy(room: tuple[Path, PoseReport], tmp_path: Path) -> Path:
    """Return a copy of that folder to change, links and times as they are."""
    return shutil.copytree(room[0], tmp_path / "copy", symlinks=True)


def test_the_cameras_are_those_that_took_the_photos(room: tuple[Path, PoseReport]) -> None:
    folder, report = room
    assert len(report.posed) == report.num_photos == NUM and not report.left_out and not report.doubtful
    known = {f"room_{i:03d}.jpg": camera for i, camera in enumerate(ring(NUM, share=SHARE))}
    degrees, share = pose_errors(PoseStore(folder).sparse / "0", known)
    assert degrees < 0.1 and share < 0.005, (degrees, share)
    assert report.cameras[0].focal == pytest.approx(FOCAL, rel=0.02) and report.error < 0.6
    assert all(photo.coverage > 0.2 for photo in report.posed)


def test_the_folder_opens_as_a_scene_that_stands_upright(room: tuple[Path, PoseReport]) -> None:
    folder, _ = room
    scene = load_scene(folder)
    assert len(scene.views) == NUM and len(scene.points) > 500 and scene.path == folder
    assert scene.photo(3).rgb.std() > 20
    ups = np.stack(
        [
            view.camera.viewmat[:3, :3].T @ cam[:3, :3] @ UP
            for view, cam in zip(scene.views, ring(NUM, share=SHARE), strict=True)
        ]
    )
    assert (ups[:, 2] > 0.999).all(), "up in the photographed room is up in the scene"


def test_nothing_beside_the_own_folder_is_touched(room: tuple[Path, PoseReport]) -> None:
    folder, report = room
    names = {path.name for path in folder.iterdir()}
    assert names == {f"room_{i:03d}.jpg" for i in range(NUM)} | {".splatstudio"}
    store = Path(report.store)
    assert store == folder / ".splatstudio" / "poses"
    assert all(path.is_symlink() for path in (store / "images").iterdir())
    assert "9 of 9 photos" in (store / "report.txt").read_text()


def test_what_is_finished_is_not_done_again(room: tuple[Path, PoseReport]) -> None:
    folder, report = room
    told: list[PoseProgress] = []
    assert estimate_poses(folder, on_progress=told.append) == report and not told


def keypoints(folder: Path) -> dict[str, bytes]:
    """Return the features of each photo as the database holds them."""
    query = "SELECT name, data FROM keypoints JOIN images USING (image_id)"
    with closing(sqlite3.connect(PoseStore(folder).database)) as database:
        return dict(database.execute(query).fetchall())


def test_ctrl_c_keeps_what_is_finished_and_the_next_call_goes_on(gone_on: GoneOn) -> None:
    assert len(gone_on.before) == 4 and gone_on.lacked
    assert len(gone_on.report.posed) == 4 and keypoints(gone_on.folder) == gone_on.before
    assert [p.done for p in gone_on.told if p.stage == "features"] == [4]


def test_photos_that_come_go_and_change_are_noticed(copy: Path) -> None:
    assert note_on_changes(copy) is None
    (copy / "room_008.jpg").unlink()
    before = keypoints(copy)
    write_photos(copy, table_with_boxes(), ring(NUM, share=0.6)[3:4], prefix="later")
    shutil.move(copy / "later_000.jpg", copy / "room_000.jpg")  # another picture of the same name
    note = note_on_changes(copy)
    assert note is not None and "1 changed, 1 gone" in note and "splatstudio poses" in note
    scene = load_scene(copy)
    assert len(scene.views) == NUM - 1 and "1 listed image" in scene.notes[0], "what is left can be opened"
    report = estimate_poses(copy)
    assert report.num_photos == 8 and note_on_changes(copy) is None
    after = keypoints(copy)
    assert set(after) == {f"room_{i:03d}.jpg" for i in range(8)}
    assert {name for name in after if after[name] != before[name]} == {"room_000.jpg"}


def test_masks_that_come_change_and_go_are_noticed(gone_on: GoneOn, tmp_path: Path) -> None:
    copy = shutil.copytree(gone_on.folder, tmp_path / "copy", symlinks=True)
    before, store = keypoints(copy), PoseStore(copy)
    mask = copy / "masks" / "room_002.png"
    mask.parent.mkdir()
    half = np.full((360, 480), 255, np.uint8)
    half[:, :200] = 0
    Image.fromarray(half).save(mask)
    note = note_on_changes(copy)
    assert note is not None and "(1 with another mask)" in note
    estimate_poses(copy)
    assert (store.masks / "room_002.jpg.png").exists() and note_on_changes(copy) is None
    masked = keypoints(copy)
    assert {name for name in masked if masked[name] != before[name]} == {"room_002.jpg"}
    assert len(masked["room_002.jpg"]) < len(before["room_002.jpg"])
    Image.fromarray(255 - half).save(mask)
    estimate_poses(copy)
    assert keypoints(copy)["room_002.jpg"] not in (masked["room_002.jpg"], before["room_002.jpg"])
    shutil.rmtree(mask.parent)
    estimate_poses(copy)
    assert keypoints(copy) == before and not list(store.masks.iterdir())


def test_a_damaged_database_is_made_again(copy: Path) -> None:
    store = PoseStore(copy)
    store.database.write_bytes(b"SQLite format 3\0" + b"\1" * 5000)
    for name in [f"room_{i:03d}.jpg" for i in range(5, NUM)]:
        (copy / name).unlink()
    assert len(estimate_poses(copy).posed) == 5


def test_poses_that_were_good_outlive_a_failure(copy: Path) -> None:
    for number in range(1, NUM):
        (copy / f"room_{number:03d}.jpg").unlink()
    with pytest.raises(ValueError, match="1 photo that can be used"):
        estimate_poses(copy)
    assert PoseStore(copy).has_poses


def test_a_stage_that_dies_is_told_with_its_signal_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(tmp_path / "room", table_with_boxes(), ring(20)[:3])
    dying = tmp_path / "dying"
    dying.write_text("#!/bin/sh\nkill -SEGV $$\n")
    dying.chmod(0o755)
    monkeypatch.setattr("splatstudio.poses.estimate.sys.executable", str(dying))
    with pytest.raises(StageDied, match=r"'Reading the photos' was ended by the signal SIGSEGV.*goes on"):
        estimate_poses(tmp_path / "room")
    assert PoseStore(tmp_path / "room").path.is_dir()


def test_a_full_disk_is_named_and_what_is_finished_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_photos(tmp_path / "room", table_with_boxes(), ring(20)[:3])
    store = PoseStore(tmp_path / "room")
    full = tmp_path / "full"
    code = (
        "import errno, splatstudio.poses.input as i; from splatstudio.poses.worker import run_stage\n"
        "def full(*_): raise OSError(errno.ENOSPC, 'No space left on device')\n"
        f"i.manifest_of = full; run_stage('photos', {str(store.source)!r}, None)"
    )
    full.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{code}"\n')
    full.chmod(0o755)
    monkeypatch.setattr("splatstudio.poses.estimate.sys.executable", str(full))
    with pytest.raises(StageDied, match=r"poses cannot be read or written: No space left.*finished is kept"):
        estimate_poses(tmp_path / "room")
    assert store.path.is_dir()


def test_an_input_that_is_refused_takes_nothing_that_was_there(tmp_path: Path) -> None:
    files = write_photos(tmp_path / "room", table_with_boxes(), ring(20)[:3])
    store = PoseStore(tmp_path / "room")
    features = store.path / "features"  # of a call that was ended
    features.mkdir(parents=True)
    files[0].unlink()
    with pytest.raises(ValueError, match="need at least 3"):
        estimate_poses(tmp_path / "room")
    assert features.exists()


def test_without_pycolmap_one_sentence_says_what_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splatstudio.poses.install.has_colmap", lambda: False)
    with pytest.raises(ValueError, match=r'pip install "splatstudio\[photos\]"'):
        estimate_poses(tmp_path)


def test_a_video_is_trained_with_one_command(
    tmp_path: Path, command: Callable[..., tuple[int, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    video = write_video(tmp_path / "a clip.mp4", table_with_boxes(), ring(40)[:8])
    code, printed = command("train", video, "--steps", "5", "--preset", "preview")
    assert code == 0, printed
    assert "Finding features" in printed and "8 of 8 photos have a pose" in printed
    assert (tmp_path / "runs" / "a clip.mp4" / "ckpts").is_dir() and "PSNR" in printed
    assert {path.name for path in tmp_path.iterdir()} == {"a clip.mp4", ".splatstudio", "runs"}
    on_the_page = open_project(scene_of(video), TrainConfig(), None)
    assert on_the_page.can_train and on_the_page.newest_step == 5 and on_the_page.name == "a clip.mp4"
