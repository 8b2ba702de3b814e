"""Panoramas and wide fisheyes: cut into views of a pinhole, and put together again as the lens shows them."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blob_models import blobs
from scene_builder import images_bin, points_bin, tiny_scene, write_picture

from splatstudio.corrections.corrections import Corrections
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.gaussians.transform import transformed
from splatstudio.rendering.render import render
from splatstudio.scene.describe import describe_scene
from splatstudio.scene.lens import Lens, directions_through, faces
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import whole_photo, whole_picture
from splatstudio.scene.scene import Scene
from splatstudio.settings.capture_config import ExposureConfig, PoseConfig
from splatstudio.settings.config import TrainConfig

# COLMAP's number of the model, the picture's size, its parameters, and the views that it is cut into.
LENSES: dict[str, tuple[int, tuple[int, int], list[float], int]] = {
    "panorama": (17, (256, 128), [256.0, 128.0], 6),
    "fisheye": (5, (200, 200), [62.0, 62.0, 100.0, 100.0, 0.02, -0.003, 0.0, 0.0], 5),
}


def pattern(directions: np.ndarray) -> np.ndarray:
    """Return smooth colors [..., 3] of directions: a world at infinity."""
    x, y, z = np.moveaxis(directions / np.linalg.norm(directions, axis=-1, keepdims=True), -1, 0)
    return 127.5 + 110 * np.stack([np.sin(3 * x + 1), np.cos(4 * y + z), np.sin(3 * z - 2 * x)], axis=-1)


@pytest.fixture(params=LENSES)
def wide(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    """Return a scene of 9 photos, each of which shows the pattern as it lies around its camera."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    number, (width, height), params, num_views = LENSES[request.param]
    tiny = tiny_scene(9)
    sparse = tmp_path / "scene/sparse/0"
    sparse.mkdir(parents=True)
    camera = struct.pack("<QIiQQ", 1, 1, number, width, height) + struct.pack(f"<{len(params)}d", *params)
    (sparse / "cameras.bin").write_bytes(camera)
    (sparse / "images.bin").write_bytes(images_bin(tiny))
    (sparse / "points3D.bin").write_bytes(points_bin(tiny))
    for name in tiny.names:
        write_picture(tmp_path / "scene/images" / name, np.zeros((height, width, 3), np.uint8))
    lens = load_scene(tmp_path / "scene").views[0].lens
    picture = np.nan_to_num(pattern(directions_through(lens).astype(np.float64)))
    for name in tiny.names:
        write_picture(tmp_path / "scene/images" / name, np.rint(picture).astype(np.uint8))
    scene = load_scene(tmp_path / "scene")
    assert len(scene.views) == num_views * 9
    return scene


def test_each_view_shows_what_its_camera_says(wide: Scene) -> None:
    first = wide.photos["view_000.png"]
    front = wide.cameras[first[[wide.views[i].face for i in first].index("front")]]
    for index in first:
        camera, photo = wide.cameras[index], wide.photo(index)
        u, v = np.meshgrid(np.arange(camera.width) + 0.5, np.arange(camera.height) + 0.5)
        plane = np.stack([u, v, np.ones_like(u)], axis=-1) @ np.linalg.inv(camera.K).T
        # In the axes of the lens, which are those of the view to the front.
        directions = plane @ camera.viewmat[:3, :3] @ front.viewmat[:3, :3].T
        error = np.abs(photo.rgb - pattern(directions))
        counted = np.ones(u.shape, bool) if photo.mask is None else photo.mask
        assert counted.any() and error[counted].mean() < 1.0 and error[counted].max() < 8
        assert np.abs(np.linalg.inv(camera.viewmat)[:3, 3] - np.linalg.inv(front.viewmat)[:3, 3]).max() < 1e-9
    if wide.views[0].lens.kind == "fisheye":
        sideways = [index for index in first if wide.views[index].face != "front"]
        assert all(wide.photo(index).mask is not None for index in sideways)


def test_views_are_put_together_to_the_photo(wide: Scene) -> None:
    views = [wide.views[index] for index in wide.photos["view_003.png"]]
    photos = [wide.photo(index) for index in wide.photos["view_003.png"]]
    whole = whole_photo(views[0])
    again = whole_picture(views, [photo.rgb.astype(np.float32) for photo in photos])
    assert whole.rgb.shape == again.shape
    counted = np.ones(whole.rgb.shape[:2], bool) if whole.mask is None else whole.mask
    assert counted.mean() > 0.6
    error = np.abs(whole.rgb - again)[counted]
    assert error.mean() < 1.5 and np.quantile(error, 0.99) < 8


def test_all_views_of_a_photo_share_its_lot_and_its_exposure(wide: Scene) -> None:
    held_out = {wide.views[index].whole for index in wide.test_indices}
    assert held_out == {"view_000.png", "view_008.png"}
    assert held_out.isdisjoint(wide.views[index].whole for index in wide.train_indices)
    assert any("9 photos show more than 150 degrees" in note for note in wide.notes)
    cut = f", cut into {len(wide.views)} views"
    assert dict(describe_scene(wide))["Photos"] == f"9: 7 to train, 2 to test{cut}"
    named = load_scene(wide.path, test_images=("view_004.png",))
    assert {named.views[index].name for index in named.test_indices} == {
        view.name for view in wide.views if view.name.startswith("view_004_")
    }
    config = TrainConfig(exposure=ExposureConfig(enabled=True))
    saved = Corrections(config, wide, blobs().device).save()
    assert saved is not None and saved.photos == tuple(f"view_00{n}.png" for n in range(1, 8))
    with pytest.raises(ValueError, match="cannot be refined of photos that are cut into several views"):
        Corrections(TrainConfig(poses=PoseConfig(enabled=True)), wide, blobs().device)


def test_a_model_is_compared_with_the_whole_photo(wide: Scene) -> None:
    gaussians = transformed(blobs(), wide.transform)
    views = [wide.views[index] for index in wide.photos["view_000.png"]]
    renders = [render(gaussians, view.camera).rgb.numpy() for view in views]
    picture = np.rint(255 * whole_picture(views, renders).clip(0, 1)).astype(np.uint8)
    write_picture(views[0].image_path, picture)
    shapes: list[tuple[int, ...]] = []
    evaluation = evaluate(gaussians, wide, on_image=lambda _, rgb, photo: shapes.append(tuple(rgb.shape)))
    assert [score.name for score in evaluation.images] == ["view_000.png", "view_008.png"]
    assert evaluation.images[0].psnr > 40.0 > 25.0 > evaluation.images[1].psnr
    assert shapes[0] == picture.shape


def test_a_narrow_fisheye_stays_one_picture() -> None:
    narrow = Lens(400, 300, 200, 200, 200, 150, "fisheye", (0.0, 0.0, 0.0, 0.0))
    assert [face.name for face in faces(narrow)] == [""]
    assert [face.name for face in faces(replace(narrow, fx=140.0, fy=140.0))] != [""]
