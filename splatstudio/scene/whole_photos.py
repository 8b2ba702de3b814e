"""Photos that are cut into views of a pinhole camera, put together again: as their lens shows them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cv2
import numpy as np

from splatstudio.scene.capture import View
from splatstudio.scene.lens import Lens, directions_through, faces
from splatstudio.scene.photo import Photo, read_photo


def whole_photo(view: View) -> Photo:
    """Return the whole photo of which `view` is a part, undivided, at the size of the views' pixels.

    Its mask leaves out what the lens does not show. Raises ValueError when the file cannot be decoded.
    """
    lens = _small_lens(view)
    # Without distortion nothing is undone: the picture comes as its file has it.
    plain = replace(view.lens, kind="brown", distortion=())
    camera = replace(view.camera, width=lens.width, height=lens.height)
    photo = read_photo(replace(view, lens=plain, camera=camera, face=""))
    shown = np.isfinite(directions_through(lens)).all(axis=-1)
    if shown.all():
        return photo
    return replace(photo, mask=shown if photo.mask is None else photo.mask & shown)


def whole_picture(views: Sequence[View], pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return what the `views` of one photo show, as [H, W, C] float32 pictures, through its lens.

    What none of them shows is 0.
    """
    lens = _small_lens(views[0])
    directions = directions_through(lens)
    whole = np.zeros((lens.height, lens.width, pictures[0].shape[-1]), np.float32)
    turns = {face.name: np.array(face.turn, np.float32) for face in faces(views[0].lens)}
    for view, picture in zip(views, pictures, strict=True):
        x, y, z = np.moveaxis(directions @ turns[view.face].T, -1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ahead = z >= np.maximum(np.abs(x), np.abs(y)) * (1 - 1e-6)
            k = view.camera.K
            map_x = np.where(ahead, x / z * k[0, 0] + k[0, 2] - 0.5, -1).astype(np.float32)
            map_y = np.where(ahead, y / z * k[1, 1] + k[1, 2] - 0.5, -1).astype(np.float32)
        seen = cv2.remap(picture, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        whole[ahead] = seen[ahead]
    return whole


def _small_lens(view: View) -> Lens:
    """Return the lens of the whole photo at the size at which the view is delivered."""
    face = next(face for face in faces(view.lens) if face.name == view.face)
    factor = view.camera.width / face.lens.width
    width, height = (max(1, round(side * factor)) for side in (view.lens.width, view.lens.height))
    return view.lens.resized(width, height)
