"""Read point clouds from PLY files, as nerfstudio keeps a scene's sparse points."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from splatstudio.scene.capture import read_file
from splatstudio.scene.ply_header import LONGEST_HEADER, Element, PlyHeader, parse_header


def read_point_ply(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [P, 3] float64 and colors [P, 3] uint8 (gray where the file has none).

    Raises ValueError when the file is missing, damaged, or its first element is not vertices with x, y, z.
    """
    data = read_file(path, "the point file")
    try:
        header = parse_header(path, data[:LONGEST_HEADER])
    except ValueError as error:
        remedy = "" if "damaged" in str(error) else "; save it as a plain point cloud"
        raise ValueError(f"{error}{remedy}") from error
    body = header.num_bytes
    vertices = _vertices(header, path)
    count, names = vertices.count, list(vertices.properties)
    if header.byte_order:
        wide = vertices.row_type(header.byte_order)
        if count * wide.itemsize > len(data) - body:
            raise ValueError(
                f"{path} is damaged: its {count} points need {count * wide.itemsize} bytes and "
                f"{len(data) - body} are left; copy the file again"
            )
        table = np.frombuffer(data, wide, count, body)
        rows = {name: table[name] for name in names}
    else:
        rows = _ascii_rows(data[body:], count, names, path)
    positions = np.stack([rows[axis] for axis in "xyz"], axis=1).astype(np.float64)
    if all(name in rows for name in ("red", "green", "blue")):
        channels = np.stack([rows[name] for name in ("red", "green", "blue")], axis=1).astype(np.float64)
        # Colors of floating point are 0..1 by custom.
        scale = 255.0 if vertices.properties["red"].startswith("f") else 1.0
        colors = np.nan_to_num(channels * scale).clip(0, 255).astype(np.uint8)
    else:
        colors = np.full((count, 3), 128, np.uint8)
    return positions, colors


def _vertices(header: PlyHeader, path: Path) -> Element:
    """Return the first element, which must be the points; what follows them is not needed."""
    first = header.elements[0] if header.elements else None
    if first is None or first.name != "vertex" or first.has_lists or not set("xyz") <= set(first.properties):
        raise ValueError(
            f"{path} is not a point cloud: it does not begin with vertices that have x, y, z and no lists;"
            " save it as a plain point cloud"
        )
    return first


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
