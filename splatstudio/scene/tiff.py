"""Tags of TIFF files by which OpenCV's decoder turns pictures and multiplies colors by their alpha.

Poses belong to the pixels as they are stored. Source: TIFF 6.0 and BigTIFF, the layout of directories.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

ORIENTATION, EXTRA_SAMPLES = 274, 338
ASSOCIATED, UNASSOCIATED = 1, 2  # alpha that colors have been multiplied by, and one they have not
SHORT = 3  # of two bytes, as both tags are
AS_STORED = {ORIENTATION: 1, EXTRA_SAMPLES: ASSOCIATED}


def as_stored(data: bytes) -> bytes:
    """Return a TIFF file of the same pixels that decoders neither turn nor multiply by their alpha.

    Other files come back as they are, and damaged ones with what could be read of their tags.
    """
    changed: bytearray | None = None
    for place, tag, order in _short_tags(data):
        wanted = struct.pack(f"{order}H", AS_STORED[tag])
        if data[place : place + 2] != wanted:
            changed = bytearray(data) if changed is None else changed
            changed[place : place + 2] = wanted
    return data if changed is None else bytes(changed)


def has_premultiplied_colors(data: bytes) -> bool:
    """Return whether the colors of a TIFF file are stored multiplied by their alpha."""
    found = {tag: struct.unpack_from(f"{order}H", data, place)[0] for place, tag, order in _short_tags(data)}
    return found.get(EXTRA_SAMPLES) == ASSOCIATED


def _short_tags(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield where the values of the tags of AS_STORED lie in the first directory, tag and order of bytes."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return
    try:
        (version,) = struct.unpack_from(f"{order}H", data, 2)
        big = version == 43
        if not big and version != 42:
            return
        (directory,) = struct.unpack_from(f"{order}{'Q' if big else 'I'}", data, 8 if big else 4)
        count, entry = (
            struct.Struct(f"{order}{'Q' if big else 'H'}"),
            struct.Struct(f"{order}HH{'Q' if big else 'I'}"),
        )
        (num,) = count.unpack_from(data, directory)
        size = entry.size + (8 if big else 4)
        for start in range(directory + count.size, directory + count.size + num * size, size):
            tag, kind, _ = entry.unpack_from(data, start)
            if tag in AS_STORED and kind == SHORT and start + size <= len(data):
                yield start + entry.size, tag, order
    except struct.error:  # cut off: the decoder says so
        return
