"""Photographs at the sizes in which they are shown."""

from __future__ import annotations

import cv2
import numpy as np
from PIL import Image

from splatstudio.files.inputs import open_input
from splatstudio.scene.capture import View
from splatstudio.scene.photo import Photo, oriented, read_photo


def scaled(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return an image [H, W, 3] uint8 at another size: area mean when it shrinks, linear when it grows."""
    if image.shape[:2] == (height, width):
        return image
    shrinks = width * height < image.shape[0] * image.shape[1]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def over_background(photo: Photo, background: tuple[float, float, float]) -> np.ndarray:
    """Return a photograph's pixels [H, W, 3] uint8, with what is transparent put over `background`, 0..1."""
    if photo.alpha is None:
        return photo.rgb
    alpha = photo.alpha[..., None].astype(np.float32) / 255.0
    return np.rint(alpha * photo.rgb + (1.0 - alpha) * 255.0 * np.array(background, np.float32)).astype(
        np.uint8
    )


def thumbnail(view: View, side: int) -> np.ndarray:
    """Return a small upright picture of a view's photograph, [H, W, 3] uint8, its longer side `side` px.

    The lens's distortion stays: at this size nobody sees it. Raises ValueError when it cannot be decoded.
    """
    pixels = _small_jpeg(view, side)
    if pixels is None:
        pixels = over_background(read_photo(view), (0.0, 0.0, 0.0))
    factor = side / max(pixels.shape[:2])
    width, height = (max(1, round(n * factor)) for n in pixels.shape[1::-1])
    return scaled(pixels, width, height)


def _small_jpeg(view: View, side: int) -> np.ndarray | None:
    """Return a JPEG file's picture decoded at a fraction of its size, None where it is of another kind."""
    try:
        with open_input(view.image_path) as file, Image.open(file) as image:
            if image.format != "JPEG" or image.mode not in ("L", "RGB"):
                return None
            # A JPEG can be decoded at an eighth of its size, in a tenth of the time.
            image.draft("RGB", (2 * side, 2 * side))
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None  # reading it whole tells what is wrong
    return oriented(pixels, view.orientation)
