"""Photos at the sizes in which they are shown."""

from __future__ import annotations

import io
from pathlib import Path

import cv2
import numpy as np
from PIL import Image

from splatstudio.files.inputs import open_input
from splatstudio.scene.capture import View
from splatstudio.scene.photo import Photo, decode, oriented, picture_header, read_photo

MOST_PIXELS = 60_000_000  # of a picture that is decoded whole to be shown small


def scaled(image: np.ndarray, width: int, height: int) -> np.ndarray:
    """Return an image [H, W, 3] uint8 at another size: area mean when it shrinks, linear when it grows."""
    if image.shape[:2] == (height, width):
        return image
    shrinks = width * height < image.shape[0] * image.shape[1]
    return cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA if shrinks else cv2.INTER_LINEAR)


def over_background(photo: Photo, background: tuple[float, float, float]) -> np.ndarray:
    """Return a photo's pixels [H, W, 3] uint8, with what is transparent put over `background`, 0..1."""
    if photo.alpha is None:
        return photo.rgb
    alpha = photo.alpha[..., None].astype(np.float32) / 255.0
    return np.rint(alpha * photo.rgb + (1.0 - alpha) * 255.0 * np.array(background, np.float32)).astype(
        np.uint8
    )


def thumbnail(view: View, side: int) -> np.ndarray:
    """Return a small upright picture of a view's photo, [H, W, 3] uint8, its longer side `side` px.

    The lens's distortion stays: at this size nobody sees it. Raises ValueError when it cannot be decoded.
    """
    pixels = _decoded_small(view.image_path, view.orientation, side)
    if pixels is None:
        pixels = over_background(read_photo(view), (0.0, 0.0, 0.0))
    return _of_side(pixels, side)


def small_jpeg(path: Path, side: int) -> bytes:
    """Return a picture file as a small upright JPEG, its longer side at most `side` px.

    Raises ValueError, naming the file, when it cannot be decoded or is very large.
    """
    header = picture_header(path)
    pixels = _decoded_small(path, header.orientation, side)
    if pixels is None:
        if header.width * header.height > MOST_PIXELS:
            raise ValueError(f"the picture {path} is too large to be shown small")
        stored = oriented(decode(path), header.orientation)
        alpha = stored[..., 3] if stored.shape[2] == 4 else None
        pixels = over_background(Photo(stored[..., :3], alpha=alpha), (0.0, 0.0, 0.0))
    if max(pixels.shape[:2]) > side:
        pixels = _of_side(pixels, side)
    encoded = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(encoded, "JPEG", quality=80)
    return encoded.getvalue()


def _of_side(pixels: np.ndarray, side: int) -> np.ndarray:
    factor = side / max(pixels.shape[:2])
    width, height = (max(1, round(n * factor)) for n in pixels.shape[1::-1])
    return scaled(pixels, width, height)


def _decoded_small(path: Path, orientation: int, side: int) -> np.ndarray | None:
    """Return a JPEG file's picture decoded at a fraction of its size, None where it is of another kind."""
    try:
        with open_input(path) as file, Image.open(file) as image:
            if image.format != "JPEG" or image.mode not in ("L", "RGB"):
                return None
            # A JPEG can be decoded at an eighth of its size, in a tenth of the time.
            image.draft("RGB", (2 * side, 2 * side))
            pixels = np.asarray(image.convert("RGB"))
    except (OSError, SyntaxError, ValueError):
        return None  # reading it whole tells what is wrong
    return oriented(pixels, orientation)
