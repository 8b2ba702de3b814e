"""Raw photos of our own making: the least that the specification of DNG 1.4 asks for."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

SHORT, LONG, RATIONAL, SRATIONAL, ASCII, BYTE = 3, 4, 5, 10, 2, 1
FORMATS = {SHORT: "H", LONG: "I", BYTE: "B"}
GREEN_FIRST = (1, 0, 2, 1)  # the pattern G R / B G


def write_dng(file: Path, rgb: np.ndarray, *, focal_35: int = 35, orientation: int = 1) -> Path:
    """Write a picture [H, W, 3] uint8 as a DNG of one sample a pixel, with EXIF, and return the file."""
    linear = (rgb.astype(np.float64) / 255.0) ** 2.2 * 16000
    mosaic = np.zeros(rgb.shape[:2])
    for place, channel in enumerate(GREEN_FIRST):
        row, column = divmod(place, 2)
        mosaic[row::2, column::2] = linear[row::2, column::2, channel]
    pixels = mosaic.astype("<u2").tobytes()
    height, width = rgb.shape[:2]
    exif = [(37386, RATIONAL, [(24, 1)]), (41989, SHORT, [focal_35])]
    main = [
        (254, LONG, [0]),
        (256, LONG, [width]),
        (257, LONG, [height]),
        (258, SHORT, [16]),
        (259, SHORT, [1]),
        (262, SHORT, [32803]),  # samples of a mosaic of filters
        (271, ASCII, "Maker"),
        (272, ASCII, "Model 5"),
        (273, LONG, [0]),
        (274, SHORT, [orientation]),
        (277, SHORT, [1]),
        (278, LONG, [height]),
        (279, LONG, [len(pixels)]),
        (33421, SHORT, [2, 2]),
        (33422, BYTE, list(GREEN_FIRST)),
        (34665, LONG, [0]),
        (50706, BYTE, [1, 4, 0, 0]),
        (50707, BYTE, [1, 1, 0, 0]),
        (50708, ASCII, "Maker Model 5"),
        (50714, SHORT, [0]),
        (50717, LONG, [16000]),
        # XYZ to the camera's colors, here those of sRGB.
        (50721, SRATIONAL, [(round(10000 * value), 10000) for value in XYZ_TO_SRGB]),
        (50728, RATIONAL, [(1, 1)] * 3),
        (50778, SHORT, [21]),
    ]
    place_of_exif = 8 + _size(main)
    place_of_pixels = place_of_exif + _size(exif)
    told = {273: [place_of_pixels], 34665: [place_of_exif]}
    main = [(tag, kind, told.get(tag, values)) for tag, kind, values in main]
    header = b"II*\0" + struct.pack("<I", 8)
    file.write_bytes(header + _block(main, 8) + _block(exif, place_of_exif) + pixels)
    return file


XYZ_TO_SRGB = (3.2406, -1.5372, -0.4986, -0.9689, 1.8758, 0.0415, 0.0557, -0.2040, 1.0570)


def _packed(kind: int, values: object) -> tuple[int, bytes]:
    if isinstance(values, str):
        data = values.encode() + b"\0"
        return len(data), data
    assert isinstance(values, list)
    if kind in (RATIONAL, SRATIONAL):
        form = "<II" if kind == RATIONAL else "<ii"
        return len(values), b"".join(struct.pack(form, *pair) for pair in values)
    return len(values), struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)


def _size(entries: Sequence[tuple[int, int, object]]) -> int:
    return len(_block(entries, 0))


def _block(entries: Sequence[tuple[int, int, object]], start: int) -> bytes:
    """Return a directory of TIFF at `start`, its long values behind it."""
    table, behind = struct.pack("<H", len(entries)), b""
    place = start + 2 + 12 * len(entries) + 4
    for tag, kind, values in entries:
        count, data = _packed(kind, values)
        if len(data) > 4:
            data += b"\0" * (len(data) % 2)
            table += struct.pack("<HHII", tag, kind, count, place + len(behind))
            behind += data
        else:
            table += struct.pack("<HHI", tag, kind, count) + data.ljust(4, b"\0")
    return table + struct.pack("<I", 0) + behind
