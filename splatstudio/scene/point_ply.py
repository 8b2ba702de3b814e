"""Point clouds in PLY files: as nerfstudio keeps a scene's sparse points, and beside poses without any."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from splatstudio.error_text import first_of
from splatstudio.files.inputs import open_input
from splatstudio.scene.capture import Capture, read_file
from splatstudio.scene.ply_header import LONGEST_HEADER, Element, PlyHeader, parse_header

MEANT_AS_POINTS = ("points3d", "points", "sparse_pc", "point_cloud", "pointcloud")  # as others call them
SPLATS = {"f_dc_0", "packed_position"}  # properties of which points have none
MOST_POINTS = 500_000  # of a cloud that was made for other things than to begin a training with
FEWEST_BEFORE = 0.2  # of the points before a camera, within 45 degrees, where they belong to it
MOST_DISTANCE = 300  # times the cameras' extent: coordinates on the globe are farther from local ones
ASKED = 2000  # points
NUM_RANDOM, RANDOM_SIDE, RANDOM_GRAY = 100_000, 1.3, 127  # what the original trainer writes as points3d.ply


def with_points_beside(capture: Capture, folder: Path) -> Capture:
    """Return a capture without points with those of a PLY in the folder of its poses, and a note on them.

    Files of the names that others give to points go before other clouds, and those before meshes. Points that
    lie elsewhere than where the cameras look are not used: they are in other coordinates.
    """
    choice = [] if len(capture.points) else _choice(folder)
    if not choice:
        return capture
    try:
        positions, colors = _points_of(choice, np.stack([shot.viewmat for shot in capture.shots]))
    except ValueError as error:
        return replace(capture, notes=(*capture.notes, f"training starts from random points: {error}"))
    every = -(-len(positions) // MOST_POINTS)
    few = f", one in {every} of its {len(positions):,}" if every > 1 else ""
    return replace(
        capture,
        points=positions[::every],
        colors=colors[::every],
        notes=(*capture.notes, f"training starts from the points of {choice[0]}{few}"),
        points_apart=True,
    )


def _choice(folder: Path) -> list[Path]:
    """Return the files that may be meant as the points of a folder: none, one, or several."""
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() == ".ply"]
    tables = {file: _tables_of(file) for file in files}
    named = [file for file in files if file.stem.lower() in MEANT_AS_POINTS]
    points = [file for file in files if "vertex" in tables[file] and not _are_splats(tables[file])]
    clouds = [file for file in points if "face" not in tables[file]]
    return named or clouds or points


def _points_of(choice: list[Path], viewmats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [P, 3] and colors [P, 3] of a file; ValueError where they cannot be a scene's."""
    if len(choice) > 1:
        names = first_of([file.name for file in choice], 3)
        raise ValueError(f"which of {names} holds the points is not clear; keep one of them there")
    (file,) = choice
    positions, colors = read_point_ply(file)
    if _are_splats(_tables_of(file)):
        raise ValueError(f"{file} holds splats, no points; --init starts from them")
    if not len(positions):
        raise ValueError(f"{file} holds no points")
    gray = len(positions) == NUM_RANDOM and bool((colors == RANDOM_GRAY).all())
    if gray and np.abs(positions).max() <= RANDOM_SIDE:
        raise ValueError(f"{file} holds those that the original trainer begins with")
    if not _are_seen(positions, viewmats):
        remedy = "export the poses and the points in the same coordinate system"
        raise ValueError(f"the points of {file} are not where the cameras look; {remedy}")
    return positions, colors


def _tables_of(file: Path) -> dict[str, set[str]]:
    """Return the properties of each table of a PLY; none of one that is damaged or no points'."""
    try:
        with open_input(file) as opened:
            header = parse_header(file, opened.read(LONGEST_HEADER))
        _vertices(header, file)
    except (OSError, ValueError):
        return {}
    return {element.name: set(element.properties) for element in header.elements}


def _are_splats(tables: dict[str, set[str]]) -> bool:
    return any(SPLATS & properties for properties in tables.values())


def _are_seen(points: np.ndarray, viewmats: np.ndarray) -> bool:
    """Return whether enough of `points` lie before one of the cameras, and not far from all of them."""
    places = -np.einsum("nji,nj->ni", viewmats[:, :3, :3], viewmats[:, :3, 3])
    reach = MOST_DISTANCE * float(np.linalg.norm(places - places.mean(axis=0), axis=1).max())
    points = points[:: max(1, len(points) // ASKED)]
    points = points[np.isfinite(points).all(axis=1)]
    seen = np.zeros(len(points), bool)
    for viewmat in viewmats:
        x, y, z = viewmat[:3, :3] @ points.T + viewmat[:3, 3:]
        seen |= (z > 0) & (np.hypot(x, y) < z)
    if reach > 0:
        seen &= np.linalg.norm(points - places.mean(axis=0), axis=1) < reach
    return len(points) > 0 and bool(seen.mean() > FEWEST_BEFORE)


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
