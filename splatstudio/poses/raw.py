"""Raw photos, developed by LibRaw where rawpy is installed: colors as taken, the same light for all."""

from __future__ import annotations

import io
from importlib.util import find_spec
from pathlib import Path

from PIL import Image

from splatstudio.error_text import first_line
from splatstudio.files.inputs import read_input

EXIF_IFD, GPS_IFD = 0x8769, 0x8825
FOCAL_LENGTH, FOCAL_35 = 37386, 41989
# What tells the camera and the lens. What describes the raw file itself would be wrong of the picture.
MAIN_TAGS, LENS_TAGS = (271, 272), (FOCAL_LENGTH, FOCAL_35, 0xA432, 0xA433, 0xA434)


def reads_raw() -> bool:
    """Return whether rawpy is installed."""
    return find_spec("rawpy") is not None


def develop(path: Path) -> tuple[Image.Image, Image.Exif]:
    """Return the picture of a raw photo, upright, with what its EXIF tells of camera, lens and place.

    ValueError where it cannot be decoded.
    """
    import rawpy

    data = read_input(path)
    try:
        with rawpy.imread(io.BytesIO(data)) as raw:
            # Brightness is not adapted to each picture: neighbors would differ.
            pixels = raw.postprocess(use_camera_wb=True, no_auto_bright=True, output_bps=8)
            focal = float(raw.other.focal_length)
    except (rawpy.LibRawError, ValueError, MemoryError) as error:
        raise ValueError(f"cannot be decoded: {first_line(error)}; replace the file") from error
    exif = _exif_of(data)
    if focal > 0 and FOCAL_LENGTH not in exif.get_ifd(EXIF_IFD):
        exif.get_ifd(EXIF_IFD)[FOCAL_LENGTH] = focal
    return Image.fromarray(pixels), exif


def _exif_of(data: bytes) -> Image.Exif:
    """Return camera, lens and place of a raw file; what is no TIFF inside, as CR3 and RAF, tells nothing."""
    told, kept = Image.Exif(), Image.Exif()
    try:
        told.load(data)
        for tag in MAIN_TAGS:
            if tag in told:
                kept[tag] = told[tag]
        details = told.get_ifd(EXIF_IFD)
        kept.get_ifd(EXIF_IFD).update({tag: details[tag] for tag in LENS_TAGS if tag in details})
        kept.get_ifd(GPS_IFD).update(told.get_ifd(GPS_IFD))
        kept.tobytes()  # what cannot be written is told by nobody
    except (SyntaxError, ValueError, KeyError, TypeError, OSError):
        return Image.Exif()
    return kept
