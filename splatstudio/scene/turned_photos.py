"""Whether cameras were computed from photos as EXIF turns them or as they are stored, where no size tells.

Programs differ in that, and a phone that is held the other way round writes orientation 3, which changes no
size. One program computed all cameras: what one photo's size tells holds for the others; where none tells,
the colors of the sparse points do, which are those of the pictures at the places where they are seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np

from splatstudio.scene.capture import Capture, CapturedPhoto
from splatstudio.scene.lens import Lens, distort
from splatstudio.scene.photo import EXIF_SIDEWAYS, PictureHeader, decode, oriented

MOST_LOOKED_AT = 6  # photos whose colors are compared
SMALL_SIDE = 128  # px: points are compared with what is around them
LEAST_POINTS = 30  # that are seen in the photos
LEAST_SPREAD = 8.0  # standard deviation of the colors: those of a file without colors are all the same
CLEARLY = 0.85  # of the other way's difference

# A lens in the pixels of a file, and the EXIF orientation to apply (1: as stored).
Measured = tuple[Lens, int]


def as_computed_from(
    shots: Sequence[CapturedPhoto],
    headers: Sequence[PictureHeader],
    measured: Sequence[Measured],
    capture: Capture,
) -> tuple[list[Measured], list[str]]:
    """Return the photos' lenses and orientations as their cameras were computed, and notes for the user.

    Photos whose size tells stay as they are; the others stay as stored where nothing tells, which is noted.
    """
    pairs = [*zip(shots, headers, strict=True)]
    unclear = [index for index, pair in enumerate(pairs) if _is_unclear(*pair)]
    if not unclear:
        return [*measured], []
    clear = {
        orientation != 1
        for (shot, header), (_, orientation) in zip(pairs, measured, strict=True)
        if shot.lens is not None and header.orientation in EXIF_SIDEWAYS and not _is_unclear(shot, header)
    }
    turned = clear.pop() if len(clear) == 1 else None
    if turned is None:
        step = max(1, len(unclear) // MOST_LOOKED_AT)
        looked_at = [(*pairs[index], measured[index][0]) for index in unclear[::step][:MOST_LOOKED_AT]]
        turned = _colors_tell(looked_at, capture)
    if turned:
        lenses = {index: shots[index].turned_lens or measured[index][0] for index in unclear}
        changed = {index: (lens, headers[index].orientation) for index, lens in lenses.items()}
        return [changed.get(index, each) for index, each in enumerate(measured)], []
    if turned is None:
        photos = "1 photo has" if len(unclear) == 1 else f"{len(unclear)} photos have"
        return [*measured], [
            f"{photos} an EXIF orientation of which nothing tells whether the cameras count it: they are used"
            " as stored; if the model comes out blurred, turn the pictures and remove the EXIF orientation"
        ]
    return [*measured], []


def _is_unclear(shot: CapturedPhoto, header: PictureHeader) -> bool:
    """Return whether a stated camera fits a photo both as it is stored and as viewers show it."""
    square = header.width == header.height
    either = shot.turned_lens is not None or (header.orientation != 1 and square)
    return shot.lens is not None and (header.orientation in (2, 3, 4) or either)


def _colors_tell(
    photos: Sequence[tuple[CapturedPhoto, PictureHeader, Lens]], capture: Capture
) -> bool | None:
    """Return whether the points' colors are those of the turned pictures, None: they do not tell."""
    num_seen, stored, turned = 0, 0.0, 0.0
    if len(capture.points) < LEAST_POINTS or capture.colors.std(axis=0).max() < LEAST_SPREAD:
        return None
    for shot, header, lens in photos:
        places, seen = _places(shot, lens, capture.points)
        try:
            pixels = decode(shot.image_path)[..., :3]
        except (OSError, ValueError):
            continue  # whoever needs the photo says what is wrong with it
        small = cv2.resize(pixels, (SMALL_SIDE, SMALL_SIDE), interpolation=cv2.INTER_AREA)
        column, row = (places[seen] * SMALL_SIDE).astype(int).T
        colors = capture.colors[seen].astype(float)
        num_seen += len(colors)
        stored += float(np.abs(small[row, column] - colors).sum())
        turned += float(np.abs(oriented(small, header.orientation)[row, column] - colors).sum())
    if num_seen < LEAST_POINTS or min(stored, turned) >= CLEARLY * max(stored, turned):
        return None
    return turned < stored


def _places(shot: CapturedPhoto, lens: Lens, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return where points [P, 3] are in a picture, [P, 2] from 0 to 1, and which are in it, [P] bool."""
    local = points @ shot.viewmat[:3, :3].T + shot.viewmat[:3, 3]
    before = local[:, 2] > 1e-6
    with np.errstate(over="ignore", invalid="ignore"):  # far beside the picture a lens means nothing
        plane = distort(lens, local[:, :2] / np.where(before, local[:, 2], 1.0)[:, None])
    places = plane * (lens.fx / lens.width, lens.fy / lens.height) + (
        lens.cx / lens.width,
        lens.cy / lens.height,
    )
    return places, before & np.all((places >= 0) & (places < 1), axis=1)
