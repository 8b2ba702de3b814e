"""COLMAP's binary files, cut off or changed at every place, are refused or still give a finite scene."""

import numpy as np
import pytest
from scene_builder import cameras_bin, images_bin, points_bin, tiny_scene, write_colmap

from splatstudio.scene.load import load_scene

TINY = tiny_scene(3, num_points=4)
MODEL = "sparse/0"


@pytest.mark.parametrize("file", ["cameras.bin", "images.bin", "points3D.bin"])
def test_truncation_at_every_byte_names_the_file(tmp_path, file):
    write_colmap(tmp_path, TINY)
    path = tmp_path / MODEL / file
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=file) as caught:
            load_scene(tmp_path)
        assert "damaged at" in str(caught.value), length
    path.write_bytes(whole + b"\0")
    with pytest.raises(ValueError, match="1 bytes follow after the last record"):
        load_scene(tmp_path)


@pytest.mark.parametrize("content", [cameras_bin, images_bin, points_bin])
def test_any_changed_byte_gives_a_scene_or_a_sentence(tmp_path, content):
    write_colmap(tmp_path, TINY)
    name = {cameras_bin: "cameras.bin", images_bin: "images.bin", points_bin: "points3D.bin"}[content]
    path = tmp_path / MODEL / name
    whole = content(TINY)
    for position in range(0, len(whole), 3):
        for value in (0x00, 0x7F, 0xFF):
            path.write_bytes(whole[:position] + bytes([value]) + whole[position + 1 :])
            try:
                scene = load_scene(tmp_path)
            except ValueError:
                continue
            assert np.isfinite(scene.points).all() and np.isfinite(scene.transform).all()
            assert all(np.isfinite(camera.viewmat).all() for camera in scene.cameras)
