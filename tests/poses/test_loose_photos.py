"""Photos that a mapping has put where their own matches do not fit are placed anew, or left out and named."""

from __future__ import annotations

import numpy as np
import pycolmap
import pytest
from pose_errors import pose_errors
from textured_rooms import ring, table_with_boxes, write_photos

from splatstudio.poses import mapping
from splatstudio.poses.estimate import estimate_poses
from splatstudio.poses.records import PoseReport
from splatstudio.poses.store import PoseStore

NUM, SHARE = 9, 0.4
KNOWN = {f"room_{i:03d}.jpg": camera for i, camera in enumerate(ring(NUM, share=SHARE))}
ASTRAY, FAR, POINTS_LEFT = "room_004.jpg", 100.0, 8


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> PoseStore:
    folder = tmp_path_factory.mktemp("loose") / "room"
    write_photos(folder, table_with_boxes(), ring(NUM, share=SHARE))
    estimate_poses(folder)
    return PoseStore(folder)


def mapped_with(store: PoseStore, monkeypatch: pytest.MonkeyPatch, spoilt: int) -> PoseReport:
    """Map again; a photo goes astray in the first `spoilt` runs of COLMAP's mapping, as it may by itself."""
    runs: list[pycolmap.ReconstructionManager] = []

    class Astray(pycolmap.IncrementalPipeline):
        def run(self) -> None:
            super().run()
            runs.append(self.reconstruction_manager)
            if len(runs) <= spoilt:
                send_astray(self.reconstruction_manager.get(0))

    monkeypatch.setattr(pycolmap, "IncrementalPipeline", Astray)
    manifest = store.manifest()
    assert manifest is not None
    mapping.estimate(store, manifest, lambda *_: None)
    assert len(runs) == min(spoilt + 1, 2)
    report = store.report()
    assert report is not None
    return report


def send_astray(model: pycolmap.Reconstruction) -> None:
    (number,) = (number for number in model.reg_image_ids() if model.image(number).name == ASTRAY)
    seen = [i for i, point in enumerate(model.image(number).points2D) if point.has_point3D()]
    for place in seen[POINTS_LEFT:]:
        model.delete_observation(number, place)
    frame = model.frame(model.image(number).frame_id)
    frame.rig_from_world = pycolmap.Rigid3d(
        pycolmap.Rotation3d(np.array([0.0, 1.0, 0.0, 0.0])), np.array([0.0, 0.0, FAR])
    )


def test_a_photo_that_stands_where_its_matches_do_not_fit_is_placed_anew(
    store: PoseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = mapped_with(store, monkeypatch, spoilt=1)
    assert len(report.posed) == NUM and not report.left_out and not report.doubtful
    degrees, share = pose_errors(store.sparse / "0", KNOWN)
    assert degrees < 0.1 and share < 0.005, (degrees, share)
    assert min(photo.num_points for photo in report.posed) > 100


def test_one_that_finds_no_place_is_left_out_and_named(
    store: PoseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = mapped_with(store, monkeypatch, spoilt=2)
    assert [photo.name for photo in report.left_out] == [ASTRAY]
    assert "agree on no place for it" in report.left_out[0].reason
    known = {name: camera for name, camera in KNOWN.items() if name != ASTRAY}
    degrees, share = pose_errors(store.sparse / "0", known)
    assert degrees < 0.1 and share < 0.005, (degrees, share)


def test_poses_without_anything_loose_are_mapped_once(
    store: PoseStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(mapped_with(store, monkeypatch, spoilt=0).posed) == NUM
