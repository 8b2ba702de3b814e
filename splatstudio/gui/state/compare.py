"""A picture of the model and the photograph that was taken from the same place, in one picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.gui.state.viewpoint import Viewpoint
from splatstudio.rendering.mode_pictures import MIN_ERROR_RANGE, color_table
from splatstudio.rendering.modes import Legend

Comparing = Literal["off", "split", "blend", "difference"]

DIVIDER = (255, 255, 255)


@dataclass(frozen=True)
class Comparison:
    """How the photograph and the model are shown together.

    `split` is the share of the width, from the left, that shows the photograph; `blend` the photograph's
    share of each pixel; `gain` what the difference of each channel is multiplied with.
    """

    kind: Comparing = "off"
    split: float = 0.5
    blend: float = 0.5
    gain: float = 3.0


@dataclass(frozen=True)
class CanvasPlace:
    """Where the photograph lies on a canvas: its upper left corner and the sizes of both, px."""

    left: int
    top: int
    width: int
    height: int
    canvas_width: int
    canvas_height: int


def place_of(photo_camera: Camera, viewpoint: Viewpoint, scale: float) -> CanvasPlace:
    """Return where a photograph lies for a browser that stands in its camera, at `scale` times its canvas.

    Both cameras look the same way from the same place, so each pixel of one is a shift and a stretch of the
    other's, also where the photograph's principal point is not its middle.
    """
    canvas = viewpoint.camera(scale)
    x_stretch = canvas.K[0, 0] / photo_camera.K[0, 0]
    y_stretch = canvas.K[1, 1] / photo_camera.K[1, 1]
    left = canvas.K[0, 2] - x_stretch * photo_camera.K[0, 2]
    top = canvas.K[1, 2] - y_stretch * photo_camera.K[1, 2]
    return CanvasPlace(
        left=round(left),
        top=round(top),
        width=max(1, round(left + x_stretch * photo_camera.width) - round(left)),
        height=max(1, round(top + y_stretch * photo_camera.height) - round(top)),
        canvas_width=canvas.width,
        canvas_height=canvas.height,
    )


def on_canvas(image: np.ndarray, place: CanvasPlace) -> np.ndarray:
    """Return `image` [H, W, 3], of the photograph's size, on a black canvas; what lies beyond is cut off."""
    canvas = np.zeros((place.canvas_height, place.canvas_width, 3), np.uint8)
    left, top = max(0, place.left), max(0, place.top)
    right = min(place.canvas_width, place.left + place.width)
    bottom = min(place.canvas_height, place.top + place.height)
    if right > left and bottom > top:
        canvas[top:bottom, left:right] = image[
            top - place.top : bottom - place.top, left - place.left : right - place.left
        ]
    return canvas


def error_map(model: np.ndarray, photo: np.ndarray) -> tuple[np.ndarray, Legend]:
    """Return the mean absolute difference of the channels of two pictures [H, W, 3] uint8, as colors."""
    difference = np.abs(model.astype(np.int16) - photo.astype(np.int16)).mean(axis=2)
    high = max(float(np.percentile(difference[::4, ::4], 98)), MIN_ERROR_RANGE)
    places = np.minimum(difference * (255.0 / high), 255.0).round().astype(np.uint8)
    return color_table("turbo").numpy()[places], Legend(0.0, high, "difference of 255", "turbo")


def compared(model: np.ndarray, photo: np.ndarray, comparison: Comparison) -> np.ndarray:
    """Return the two pictures, both [H, W, 3] uint8, as one of the same size."""
    if comparison.kind == "split":
        width = model.shape[1]
        column = min(width, max(0, round(comparison.split * width)))
        picture = model.copy()
        picture[:, :column] = photo[:, :column]
        if 0 < column < width:
            picture[:, column - 1 : column + 1] = DIVIDER
        return picture
    if comparison.kind == "blend":
        share = round(256.0 * comparison.blend)
        mixed = share * photo.astype(np.uint16) + (256 - share) * model.astype(np.uint16)
        return ((mixed + 128) >> 8).clip(0, 255).astype(np.uint8)
    if comparison.kind == "difference":
        difference = np.abs(model.astype(np.int16) - photo.astype(np.int16))
        return (comparison.gain * difference).clip(0, 255).astype(np.uint8)
    return model
