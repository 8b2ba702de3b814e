"""The page of an estimation: it comes between the start page and the studio, at one address, and shows it."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from studio_page import TIMEOUT
from textured_rooms import ring, table_with_boxes, write_photos

from splatstudio.cli import start
from splatstudio.gui.estimation import EstimationPage, in_frame_of_scene
from splatstudio.gui.server.access import Listen
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.photos import PhotosPanel
from splatstudio.poses import estimate
from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.estimate import lacks_poses
from splatstudio.poses.growing import GrowingModel, GrowthWriter, read_growing
from splatstudio.poses.store import PoseStore
from splatstudio.scene.load import load_scene

ANY_PORT = Listen(port=0)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos whose poses are not known."""
    folder = tmp_path_factory.mktemp("estimation") / "photos"
    write_photos(folder, table_with_boxes(), ring(8, share=0.35))
    return folder


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Hold the last stage at its end until the event is set: cameras and points can be looked at."""
    go_on = threading.Event()
    follow = estimate._follow

    def held(stage: str, *given: Any) -> Any:
        last = follow(stage, *given)
        if stage == "poses":
            assert go_on.wait(TIMEOUT)
        return last

    monkeypatch.setattr(estimate, "_follow", held)
    return go_on


def watched(photos: Path, tmp_path: Path) -> tuple[Path, list[GrowingModel]]:
    """Return all snapshots that were to be seen while the poses of a copy of the photos were found."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in photos.iterdir():
        if file.is_file():
            (copy / file.name).write_bytes(file.read_bytes())
    seen: list[GrowingModel] = []
    estimation = BackgroundEstimation(copy)
    while not estimation.wait(0.02):
        snapshot = estimation.growing()
        if snapshot is not None and (not seen or snapshot.num_posed != seen[-1].num_posed):
            seen.append(snapshot)
    assert estimation.error is None and estimation.report is not None
    return copy, seen


def test_cameras_and_points_can_be_seen_while_they_are_found(photos: Path, tmp_path: Path) -> None:
    copy, seen = watched(photos, tmp_path)
    assert seen and seen[0].num_photos == 8 and 2 <= seen[0].num_posed < 8, "before the end"
    first = seen[0]
    assert len(first.viewmats) == first.num_posed and len(first.points) > 100 and first.colors.std() > 5
    frustums, points = in_frame_of_scene(first)
    assert len(frustums.positions) == first.num_posed
    distances = np.linalg.norm(frustums.positions - frustums.positions.mean(axis=0), axis=1)
    assert distances.max() == pytest.approx(1.0, abs=1e-6) and np.abs(np.median(points, axis=0)).max() < 2
    assert not PoseStore(copy).growing_file.exists(), "the model itself is there"


@pytest.mark.parametrize(
    ("left_out", "so_far", "told"), [(2, False, True), (0, False, False), (2, True, False)]
)
def test_photos_that_were_left_out_are_told_once_when_the_scene_is_opened(
    left_out: int, so_far: bool, told: bool
) -> None:
    notices: list[Notice] = []
    panel: Any = object.__new__(PhotosPanel)
    report = SimpleNamespace(doubtful=(), left_out=("a",) * left_out, num_photos=16, so_far=so_far)
    panel._report, panel.estimation, panel._store = None, None, SimpleNamespace(report=lambda: report)
    panel.page = SimpleNamespace(notify=notices.append)
    panel.look()
    panel.look()
    assert [notice.title for notice in notices] == ["2 of 16 photos left out"] * told


def test_a_damaged_snapshot_is_none(tmp_path: Path) -> None:
    file = tmp_path / "growing.npz"
    assert read_growing(file) is None
    for damage in (b"", b"PK\3\4 cut off", b"no archive"):
        file.write_bytes(damage)
        assert read_growing(file) is None
    np.savez(file, viewmats=np.full((1, 4, 4), np.nan), points=np.zeros((0, 3)))
    assert read_growing(file) is None


def test_snapshots_come_as_seldom_as_they_cost(tmp_path: Path) -> None:
    class Model(SimpleNamespace):
        def image(self, number: int) -> Any:
            pose = SimpleNamespace(matrix=lambda: np.eye(3, 4))
            return SimpleNamespace(cam_from_world=lambda: pose, camera_id=1)

        def camera(self, number: int) -> Any:
            return SimpleNamespace(width=4, height=2, mean_focal_length=lambda: 2.0)

    model: Any = Model(num_reg_images=lambda: 1, reg_image_ids=lambda: [1], point3D_ids=set)
    writer = GrowthWriter(tmp_path / "growing.npz", 5)
    writer.write(model, 1)
    written = read_growing(tmp_path / "growing.npz")
    assert written is not None and (written.num_posed, written.num_photos) == (1, 5)
    assert written.half_sizes.tolist() == [[1.0, 0.5]]
    writer.write(model, 2)
    again = read_growing(tmp_path / "growing.npz")
    assert again is not None and again.num_posed == 1, "the second came too soon"


def test_the_page_is_between_start_page_and_studio_at_one_address(
    photos: Path, slow: threading.Event, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pages: list[EstimationPage] = []

    class NotedPage(EstimationPage):
        def __init__(self, *given: Any):
            super().__init__(*given)
            pages.append(self)
            slow.set()

    def opened(path: Path, *, network: Listen, **_: Any) -> SimpleNamespace:
        assert not lacks_poses(path)
        listener = network.take_port()
        port = listener.getsockname()[1]
        listener.close()
        return SimpleNamespace(path=path, port=port, token=network.new_token())

    monkeypatch.setattr("splatstudio.gui.estimation.EstimationPage", NotedPage)
    monkeypatch.setattr("splatstudio.gui.app.open_studio", opened)
    studio: Any = start.studio_of_choice(ANY_PORT, browser=False, train=False, chosen=photos)
    (page,) = pages
    assert page.handed_over and (studio.port, studio.token) == (page.port, page.token)


def test_the_studio_opens_with_the_photos_so_far_and_the_mapping_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_photos(tmp_path / "room", table_with_boxes(), ring(16, share=0.6))
    followed: list[BackgroundEstimation] = []

    class HastyPage(EstimationPage):
        def __init__(self, listen: Listen, estimation: BackgroundEstimation):
            super().__init__(listen, estimation)
            estimation.want_so_far()

    def opened(path: Path, **_: Any) -> SimpleNamespace:
        return SimpleNamespace(num=len(load_scene(path).views), follow_estimation=followed.append)

    monkeypatch.setattr("splatstudio.gui.estimation.EstimationPage", HastyPage)
    monkeypatch.setattr("splatstudio.gui.app.open_studio", opened)
    studio: Any = start.studio_of_choice(ANY_PORT, browser=False, train=False, chosen=tmp_path / "room")
    (estimation,) = followed
    assert 3 <= studio.num < 16 and not estimation.is_over
    assert estimation.wait(TIMEOUT) and estimation.report is not None and len(estimation.report.posed) == 16


def test_photos_that_give_no_poses_lead_back_to_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    write_photos(tmp_path / "two", table_with_boxes(), ring(20)[:2])
    with pytest.raises(ValueError, match="2 photos that can be used"):
        start.studio_of_choice(ANY_PORT, browser=False, train=False, chosen=tmp_path / "two")
