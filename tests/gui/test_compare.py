"""The photograph and the model in one picture."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import viser
import viser.transforms
from blob_models import ring_of_cameras

from splatstudio.cameras.camera import Camera
from splatstudio.gui.state.photos import Comparison, compared, error_map, on_canvas, place_of
from splatstudio.gui.state.viewpoint import Viewpoint, fitting_fov
from splatstudio.rendering.color_maps import color_table

OFF_CENTRE = Camera(np.eye(4), np.array([[50.0, 0, 31.0], [0, 55.0, 12.0], [0, 0, 1]]), 60, 40)


def standing_in(camera: Camera, width: int, height: int) -> Viewpoint:
    """Return the viewpoint of a browser with this canvas that was sent to `camera`."""
    rotation = viser.transforms.SO3.from_matrix(camera.viewmat[:3, :3].T)
    return Viewpoint(rotation.wxyz, camera.position, fitting_fov(camera, width / height), width, height)


@pytest.mark.parametrize(("width", "height"), [(900, 500), (300, 700)])
@pytest.mark.parametrize("camera", [OFF_CENTRE, ring_of_cameras()[2]])
def test_the_photo_lies_where_its_camera_sees_the_world(camera: Camera, width: int, height: int) -> None:
    viewpoint = standing_in(camera, width, height)
    place = place_of(camera, viewpoint, 1.0)
    assert place.left >= -1 and place.top >= -1
    assert place.left + place.width <= width + 1 and place.top + place.height <= height + 1
    canvas = viewpoint.camera(1.0)
    ray = camera.camera_to_world[:3, :3] @ np.array([0.21, -0.13, 1.0])
    seen = canvas.viewmat[:3, :3] @ ray
    on_screen = (canvas.K @ seen / seen[2])[:2]
    pixel = (camera.K @ np.array([0.21, -0.13, 1.0]))[:2]
    there = np.array([place.left, place.top]) + pixel * (place.width, place.height) / (
        camera.width,
        camera.height,
    )
    assert np.abs(on_screen - there).max() < 1.0
    # It fills the canvas in one direction (twice its larger half, where the middle is not the centre).
    assert place.width > 0.6 * width or place.height > 0.6 * height


def test_what_lies_beyond_the_canvas_is_cut_off() -> None:
    viewpoint = standing_in(OFF_CENTRE, 300, 200)
    narrow = replace(viewpoint, fov=0.5 * viewpoint.fov)
    place = place_of(OFF_CENTRE, narrow, 1.0)
    assert place.left < 0 and place.width > 300
    image = np.arange(place.width * place.height * 3, dtype=np.uint32).astype(np.uint8)
    image = image.reshape(place.height, place.width, 3)
    canvas = on_canvas(image, place)
    assert canvas.shape == (200, 300, 3)
    row, column = 100, 150
    assert np.array_equal(canvas[row, column], image[row - place.top, column - place.left])


def test_split_blend_and_difference() -> None:
    model = np.full((10, 20, 3), 100, np.uint8)
    photo = np.full((10, 20, 3), 160, np.uint8)
    split = compared(model, photo, Comparison("split", split=0.25))
    assert (split[:, :4] == 160).all() and (split[:, 4:6] == 255).all() and (split[:, 6:] == 100).all()
    assert (compared(model, photo, Comparison("split", split=0.0)) == 100).all()
    assert (compared(model, photo, Comparison("split", split=1.0)) == 160).all()
    assert (compared(model, photo, Comparison("blend", blend=0.5)) == 130).all()
    assert (compared(model, photo, Comparison("blend", blend=1.0)) == 160).all()
    for one, other in ((model, photo), (photo, model)):
        assert (compared(one, other, Comparison("difference", gain=2.0)) == 120).all()
    assert (compared(model, photo, Comparison("difference", gain=10.0)) == 255).all()
    assert compared(model, photo, Comparison()) is model
    assert (model == 100).all() and (photo == 160).all(), "neither is written into"


def test_the_error_map_tells_small_from_large_differences() -> None:
    photo = np.full((40, 40, 3), 100, np.uint8)
    model = photo.copy()
    model[:, 20:] += 90
    image, legend = error_map(model, photo)
    assert (legend.low, legend.high, legend.color_map) == (0.0, 90.0, "turbo")
    table = color_table("turbo").numpy()
    assert (image[:, :20] == table[0]).all() and (image[:, 20:] == table[255]).all()
    assert error_map(photo, photo)[1].high == 16.0, "a good model does not look as bad as a bad one"
