"""Read point clouds from PLY files, as nerfstudio keeps a scene's sparse points."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.scene.capture import read_file

FORMATS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
MAX_HEADER_BYTES = 65536
TYPES = {
    "char": "i1",
    "int8": "i1",
    "uchar": "u1",
    "uint8": "u1",
    "short": "i2",
    "int16": "i2",
    "ushort": "u2",
    "uint16": "u2",
    "int": "i4",
    "int32": "i4",
    "uint": "u4",
    "uint32": "u4",
    "float": "f4",
    "float32": "f4",
    "double": "f8",
    "float64": "f8",
}


def read_point_ply(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [P, 3] float64 and colors [P, 3] uint8 (gray where the file has none).

    Raises ValueError when the file is missing, damaged, or its first element is not vertices with x, y, z.
    """
    data = read_file(path, "the point file")
    end = data.find(b"end_header", 0, MAX_HEADER_BYTES)
    body = data.find(b"\n", end) + 1
    if not data.startswith(b"ply") or end < 0 or body == 0:
        raise ValueError(f"{path} is not a PLY file: its header is missing or damaged")
    lines = data[:end].decode("ascii", "replace").splitlines()
    order, count, fields = _header(lines, path)
    wide = np.dtype([(name, order + kind if order else "f8") for name, kind in fields])
    if order:
        if count * wide.itemsize > len(data) - body:
            raise ValueError(
                f"{path} is damaged: its {count} points need {count * wide.itemsize} bytes and "
                f"{len(data) - body} are left; copy the file again"
            )
        table = np.frombuffer(data, wide, count, body)
        rows = {name: table[name] for name, _ in fields}
    else:
        rows = _ascii_rows(data[body:], count, [name for name, _ in fields], path)
    positions = np.stack([rows[axis] for axis in "xyz"], axis=1).astype(np.float64)
    if all(name in rows for name in ("red", "green", "blue")):
        channels = np.stack([rows[name] for name in ("red", "green", "blue")], axis=1).astype(np.float64)
        # Colors of floating point are 0..1 by custom.
        scale = 255.0 if dict(fields)["red"].startswith("f") else 1.0
        colors = np.nan_to_num(channels * scale).clip(0, 255).astype(np.uint8)
    else:
        colors = np.full((count, 3), 128, np.uint8)
    return positions, colors


def _header(lines: list[str], path: Path) -> tuple[str, int, list[tuple[str, str]]]:
    """Return the byte order ("" for text), the number of vertices, and the vertices' fields."""
    order: str | None = None
    count, fields = -1, []
    for line in lines[1:]:
        words = line.split()
        if not words or words[0] in ("comment", "obj_info"):
            continue
        if words[0] == "format" and len(words) == 3:
            order = FORMATS.get(words[1])
        elif words[0] == "element" and len(words) == 3:
            if count >= 0:
                break  # vertices come first; what follows them is not needed
            if words[1] != "vertex" or not words[2].isdecimal() or len(words[2]) > 18:
                raise ValueError(
                    f"{path} does not begin with vertices: {line!r}; save it as a plain point cloud"
                )
            count = int(words[2])
        elif words[0] == "property" and len(words) == 3 and words[1] in TYPES and count >= 0:
            fields.append((words[2], TYPES[words[1]]))
        else:
            raise ValueError(
                f"{path} has the header line {line!r}, which cannot be read; save it as a plain cloud"
            )
    names = [name for name, _ in fields]
    if order is None or count < 0 or not {"x", "y", "z"} <= set(names) or len(set(names)) != len(names):
        raise ValueError(
            f"{path} is not a point cloud: its header lacks a known format or vertices with x, y, z"
        )
    return order, count, fields


def _ascii_rows(body: bytes, count: int, names: list[str], path: Path) -> dict[str, np.ndarray]:
    if count * 2 * len(names) > len(body) + 1:
        raise ValueError(f"{path} is damaged: it has fewer than the {count} points of its header")
    words = body.split(maxsplit=count * len(names))[: count * len(names)]
    try:
        table = np.array(words, dtype=np.float64).reshape(count, len(names))
    except ValueError:
        raise ValueError(
            f"{path} is damaged: it does not hold {count} points of {len(names)} numbers"
        ) from None
    return {name: table[:, i] for i, name in enumerate(names)}
