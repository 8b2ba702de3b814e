"""Which way is down in a photo, as a phone measures it and writes it into the file."""

from __future__ import annotations

import struct
from collections.abc import Mapping

import numpy as np

MAKER_NOTE, LENS = 37500, 0xA434
APPLE = b"Apple iOS\0"
FIRST_ENTRY = 16  # behind the mark, a version, the byte order and the number of entries
ENTRY = struct.Struct(">HHII")  # tag, type, count, offset
ACCELERATION, SIGNED_RATIONAL = 8, 10
MOST_OF_GRAVITY = (
    0.1  # by which the length may differ from 1 g: a phone that is shaken measures the shaking, too
)


def gravity_in(details: Mapping[int, object]) -> tuple[float, float, float] | None:
    """Return the unit vector downward in the axes of a stored picture (x right, y down, z forward).

    `details` is the EXIF block of the photo. None where no phone has told it, and for a front camera,
    whose axes are others. Source: the tags of Apple's maker note as ExifTool documents them; the numbers are
    gravity in the axes of the device (x right, y to its top, z out of the screen), and the sensor's rows run
    from its top to its bottom.
    """
    note = details.get(MAKER_NOTE)
    if not isinstance(note, bytes) or not note.startswith(APPLE) or note[12:14] != b"MM":
        return None
    if "front" in str(details.get(LENS, "")).lower():
        return None
    try:
        measured = _acceleration(note)
    except struct.error:  # a maker note that is cut off
        return None
    length = float(np.linalg.norm(measured)) if measured else 0.0
    if not abs(length - 1.0) < MOST_OF_GRAVITY:
        return None
    x, y, z = (value / length for value in measured)
    return -y, -x, -z


def turned_upright(vector: tuple[float, float, float], orientation: int) -> tuple[float, float, float]:
    """Return a vector of a stored picture in the axes of the picture that an EXIF orientation makes of it.

    `orientation` is 1 to 8; x is right, y down, z forward. Source: the table of orientations in EXIF 2.32.
    """
    x, y, z = vector
    turned = {
        1: (x, y),
        2: (-x, y),
        3: (-x, -y),
        4: (x, -y),
        5: (y, x),
        6: (-y, x),
        7: (-y, -x),
        8: (y, -x),
    }
    return *turned[orientation], z


def _acceleration(note: bytes) -> tuple[float, ...]:
    (num_entries,) = struct.unpack_from(">H", note, FIRST_ENTRY - 2)
    for number in range(num_entries):
        tag, kind, count, offset = ENTRY.unpack_from(note, FIRST_ENTRY + number * ENTRY.size)
        if (tag, kind, count) == (ACCELERATION, SIGNED_RATIONAL, 3):
            parts = struct.unpack_from(">6i", note, offset)
            pairs = zip(parts[::2], parts[1::2], strict=True)
            return tuple(above / below if below else 0.0 for above, below in pairs)
    return ()
