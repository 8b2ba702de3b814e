"""Gaussians as PLY files in the layout of Kerbl et al. 2023, which nearly every viewer and tool reads.

One element "vertex" of float32: x y z, nx ny nz (0, or normals where they are asked for), f_dc_0..2,
f_rest_0.. (channel by channel), opacity (logit), scale_0..2 (logarithm), rot_0..3 (w, x, y, z).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch

from splatstudio.files.durable import write_parts_durably
from splatstudio.files.inputs import open_input, refuse_larger_than_memory
from splatstudio.formats.model_arrays import (
    SplatFile,
    all_finite,
    arrays_to_write,
    left_out_note,
    require_memory,
    without_infinite_opacities,
    without_infinite_scales,
    write_file,
)
from splatstudio.formats.quantize import colors_of, rounded
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.scene.ply_header import (
    LONGEST_HEADER,
    UNSAID,
    Element,
    Orientation,
    PlyHeader,
    comments_on,
    parse_header,
)

POSITION = ["x", "y", "z"]
NORMAL = ["nx", "ny", "nz"]
BASE_COLOR = ["f_dc_0", "f_dc_1", "f_dc_2"]
SCALE = ["scale_0", "scale_1", "scale_2"]
ROTATION = ["rot_0", "rot_1", "rot_2", "rot_3"]
REQUIRED = [*POSITION, *BASE_COLOR, "opacity", *SCALE, *ROTATION]
MORE_EACH = 8  # bytes a Gaussian that reading takes beside the model, measured
CHUNK = 8192  # Gaussians handled at a time, so that their rows stay in the cache
THICKNESS = 1e-6  # of flat splats, in the file's units: no camera sees it
NUM_REST = (0, 9, 24, 45)  # f_rest properties of SH degree 0..3


def write_ply(
    path: Path | str,
    gaussians: Gaussians,
    normals: torch.Tensor | None = None,
    *,
    antialiased: bool = False,
    orientation: Orientation = UNSAID,
) -> None:
    """Write the Gaussians, in the frame they are given, to `path`; `normals` [N, 3] are 0 by default.

    Comments tell the `orientation`, and whether they were trained `antialiased`. An older file of that name
    stays until the new one is complete. Raises ValueError, and writes nothing, when a parameter is not finite
    or the file cannot be written.
    """
    path = Path(path)
    num_rest = 3 * gaussians.shN.shape[1]
    names = [*POSITION, *NORMAL, *BASE_COLOR, *_rest_names(num_rest), "opacity", *SCALE, *ROTATION]
    comments = comments_on(orientation, antialiased=antialiased)
    try:
        write_parts_durably(path, _content(path, gaussians, names, normals, comments))
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


def _content(
    path: Path, gaussians: Gaussians, names: list[str], normals: torch.Tensor | None, comments: list[str]
) -> Iterator[bytes | memoryview]:
    """Yield the header and the rows, in chunks that are made in one place, so that it stays in the cache."""
    num = len(gaussians)
    yield _header(num, names, comments)
    parts = {name: tensor.detach().float().cpu().numpy() for name, tensor in gaussians.tensors().items()}
    rows = np.zeros((min(CHUNK, num), len(names)), "<f4")
    views = _columns_by_tensor(rows, names)
    if normals is not None:
        parts["normals"], views["normals"] = normals.numpy(), rows[:, 3:6]
    for start in range(0, num, CHUNK):
        here = min(CHUNK, num - start)
        for name, part in parts.items():
            views[name][:here] = part[start : start + here]
        if not all_finite(rows[:here]):
            raise ValueError(f"{path} cannot be written: {_first_not_finite(start, rows[:here], names)}")
        yield rows[:here].data


def _rest_names(num: int) -> list[str]:
    return [f"f_rest_{index}" for index in range(num)]


def _header(num: int, names: list[str], comments: list[str]) -> bytes:
    """Return the header, of a length that lets the numbers behind it be addressed in place."""
    properties = "".join(f"property float {name}\n" for name in names)
    middle = f"element vertex {num}\n{properties}end_header\n"
    told = "".join(f"comment {comment}\n" for comment in comments)
    start = f"ply\nformat binary_little_endian 1.0\n{told}comment splatstudio"
    padding = " " * (-(len(start) + 1 + len(middle)) % 4)
    return f"{start}{padding}\n{middle}".encode("ascii")


def _columns_by_tensor(rows: np.ndarray, names: list[str]) -> dict[str, np.ndarray]:
    """Return the columns of `rows` [n, len(names)] as views, by tensor of Gaussians and of its shape."""

    def columns(first: str, num: int) -> np.ndarray:
        start = names.index(first) if num else 0
        return rows[:, start : start + num]

    num_rest = sum(name.startswith("f_rest_") for name in names)
    # Splitting the last axis of a slice is possible without a copy: its steps stay even.
    rest = columns("f_rest_0", num_rest).reshape(len(rows), 3, num_rest // 3)
    return {
        "means": columns("x", 3),
        "quats": columns("rot_0", 4),
        "scales": columns("scale_0", 3),
        "opacities": columns("opacity", 1)[:, 0],
        "sh0": columns("f_dc_0", 3)[:, None, :],
        "shN": rest.transpose(0, 2, 1),
    }


def read_ply(path: Path | str) -> SplatFile:
    """Return the content of a PLY file: binary or text, any order of properties, any floating-point type.

    Properties that are not needed are passed over, and so are splats with a value that is not finite, which
    a note counts. Raises ValueError, naming the file and the record, for a file that is missing, damaged or
    of another kind.
    """
    path = Path(path)
    try:
        with open_input(path) as file:
            header = parse_header(path, file.read(LONGEST_HEADER))
            vertex = _gaussian_element(path, header)
            read_rows = _binary_rows if header.byte_order else _text_rows
            return _splats(path, header, vertex, read_rows(path, header, vertex, file))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def holds_points_alone(path: Path) -> bool:
    """Return whether a file is a PLY of points or of a mesh, with nothing in it that only splats have."""
    header = _header_of(path)
    if header is None:
        return False
    vertex = next((element for element in header.elements if element.name == "vertex"), None)
    names = set() if vertex is None else set(vertex.properties)
    return {"x", "y", "z"} <= names and not names & {*REQUIRED[3:], "packed_position"}


def told_orientation(path: Path) -> Orientation:
    """Return what a PLY says of how it lies: nothing of another file."""
    header = _header_of(path)
    return UNSAID if header is None else header.orientation


def _header_of(path: Path) -> PlyHeader | None:
    """Return the header of a PLY; None for another file, and one of which its reader says what is wrong."""
    if path.suffix.lower() != ".ply":
        return None
    try:
        with open_input(path) as file:
            return parse_header(path, file.read(LONGEST_HEADER))
    except (OSError, ValueError):
        return None


def _gaussian_element(path: Path, header: PlyHeader) -> Element:
    """Return the element that holds the Gaussians, or say what the file holds instead."""
    by_name = {element.name: element for element in header.elements}
    vertex = by_name.get("vertex")
    if vertex is None:
        raise ValueError(f"{path} has no element 'vertex': it holds no splats")
    if "packed_position" in vertex.properties:
        raise ValueError(f"{path} is a compressed splat PLY, which cannot be read; export it uncompressed")
    required = [name for name in REQUIRED if name != SCALE[2]] if _is_flat(vertex) else REQUIRED
    missing = [name for name in required if name not in vertex.properties]
    if missing:
        kind = "a point cloud or mesh, not splats" if "opacity" in missing else "not complete"
        raise ValueError(f"{path} is {kind}: it has no property {missing[0]!r}")
    num_rest = _num_rest(vertex)
    if num_rest not in NUM_REST:
        raise ValueError(f"{path} has {num_rest} properties f_rest_*: 0, 9, 24 or 45 make a full SH degree")
    for name in [*required, *_rest_names(num_rest)]:
        code = vertex.properties.get(name)
        if code is None:
            raise ValueError(f"{path} has {num_rest} properties f_rest_*, but none called {name!r}")
        if code[0] != "f":
            raise ValueError(f"{path}: property {name!r} must be a floating-point number")
    if vertex.has_lists:
        raise ValueError(
            f"{path}: the splats have a list property or one of unknown type, which no splat PLY has"
        )
    return vertex


def _is_flat(vertex: Element) -> bool:
    """Return whether these are splats of 2D Gaussian splatting, which have two scales."""
    return SCALE[1] in vertex.properties and SCALE[2] not in vertex.properties


def _num_rest(vertex: Element) -> int:
    return sum(name.startswith("f_rest_") for name in vertex.properties)


def _binary_rows(path: Path, header: PlyHeader, vertex: Element, file: BinaryIO) -> Iterator[np.ndarray]:
    """Yield the rows in chunks, as structured arrays, after the size of the file has been found right."""
    size = file.seek(0, os.SEEK_END)
    offset = header.num_bytes
    for element in header.elements:
        if element is vertex:
            break
        if element.has_lists:
            raise ValueError(f"{path}: the element {element.name!r} before the splats holds lists")
        offset += element.count * element.row_type(header.byte_order).itemsize
    row_type = vertex.row_type(header.byte_order)
    num_complete = max(size - offset, 0) // row_type.itemsize
    if num_complete < vertex.count:
        raise ValueError(
            f"{path} is cut off or damaged: its header promises {vertex.count} splats, but record"
            f" {num_complete} is not complete"
        )
    if vertex is header.elements[-1] and num_complete > vertex.count:
        raise ValueError(
            f"{path} is damaged: its header promises {vertex.count} splats, but there are data for"
            f" {num_complete}"
        )
    require_memory(path, vertex.count, _num_rest(vertex) // 3, MORE_EACH)
    file.seek(offset)
    for start in range(0, vertex.count, CHUNK):
        num = min(CHUNK, vertex.count - start)
        rows = np.fromfile(file, row_type, count=num)
        if len(rows) < num:
            raise ValueError(f"{path} became shorter while it was read, at record {start + len(rows)}")
        yield rows


def _text_rows(path: Path, header: PlyHeader, vertex: Element, file: BinaryIO) -> Iterator[np.ndarray]:
    """Yield the rows of a text PLY in chunks, as structured arrays of float64."""
    num_properties = len(vertex.properties)
    row_type = np.dtype([(name, "f8") for name in vertex.properties])
    refuse_larger_than_memory(path)
    file.seek(header.num_bytes)
    lines = file.read().splitlines()
    first = sum(element.count for element in header.elements[: header.elements.index(vertex)])
    num_lines = max(len(lines) - first, 0)
    if num_lines < vertex.count:
        raise ValueError(
            f"{path} is cut off or damaged: its header promises {vertex.count} splats, but record"
            f" {num_lines} is missing"
        )
    lines = lines[first : first + vertex.count]
    for start in range(0, vertex.count, CHUNK):
        rows = []
        for index, line in enumerate(lines[start : start + CHUNK], start):
            try:
                row = tuple(float(word) for word in line.split())
            except ValueError:
                row = ()
            if len(row) != num_properties:
                raise ValueError(f"{path}: record {index} does not hold {num_properties} numbers")
            rows.append(row)
        yield np.array(rows, row_type)


def _splats(path: Path, header: PlyHeader, vertex: Element, chunks: Iterator[np.ndarray]) -> SplatFile:
    """Return the splats of consecutive chunks of rows, but for those with a value that is not finite."""
    num_rest = _num_rest(vertex)
    names = [*POSITION, *BASE_COLOR, *_rest_names(num_rest), "opacity", *SCALE, *ROTATION]
    parts: dict[str, np.ndarray] = {}
    flat = _is_flat(vertex)
    start = num_kept = 0
    worst = ""
    for rows in chunks:
        columns = _float_columns(_with_thickness(rows) if flat else rows, names)
        if not all_finite(columns):
            _bound_infinities(columns, names)
            worst = worst or _first_not_finite(start, columns, names)
            columns = columns[np.isfinite(columns).all(axis=1)]
        views = _columns_by_tensor(columns, names)
        # Memory is claimed only now that the first rows are really there.
        parts = parts or {k: np.empty((vertex.count, *v.shape[1:]), np.float32) for k, v in views.items()}
        for name, view in views.items():
            parts[name][num_kept : num_kept + len(columns)] = view
        start, num_kept = start + len(rows), num_kept + len(columns)
    if 2 * num_kept < vertex.count:
        raise ValueError(f"{path} is damaged: {worst}")
    parts = parts or _columns_by_tensor(np.empty((0, len(names)), np.float32), names)
    gaussians = Gaussians(**{name: torch.from_numpy(part[:num_kept]) for name, part in parts.items()})
    notes = [left_out_note(path, start - num_kept, start)] if num_kept < start else []
    if flat:
        notes.append(f"{path} is of 2D Gaussian splatting: its flat splats get a third axis of {THICKNESS:g}")
    num_out = start - num_kept
    return SplatFile(gaussians, header.antialiased, None, tuple(notes), num_out, header.orientation)


def _with_thickness(rows: np.ndarray) -> np.ndarray:
    """Return the rows of flat splats with a third scale."""
    wider = np.empty(len(rows), np.dtype([*rows.dtype.descr, (SCALE[2], "f4")]))
    for name in rows.dtype.names or ():
        wider[name] = rows[name]
    wider[SCALE[2]] = np.log(THICKNESS)
    return wider


def _bound_infinities(columns: np.ndarray, names: list[str]) -> None:
    """Replace infinite opacities and log scales that mean something, in place."""
    opacity, scale = names.index("opacity"), names.index(SCALE[0])
    columns[:, opacity] = without_infinite_opacities(columns[:, opacity])
    columns[:, scale : scale + 3] = without_infinite_scales(columns[:, scale : scale + 3])


def _float_columns(table: np.ndarray, names: list[str]) -> np.ndarray:
    """Return the named columns as one float32 array [n, len(names)]."""
    columns = np.empty((len(table), len(names)), np.float32)
    kinds = {table.dtype[name] for name in names}
    all_names = table.dtype.names or ()
    if kinds == {np.dtype("<f4")} and table.dtype.itemsize == 4 * len(all_names):
        # All of one type, the usual case: one pass over the rows instead of one a column.
        position = [all_names.index(name) for name in names]
        plain = table.view("<f4").reshape(len(table), len(all_names))
        np.take(plain, position, axis=1, out=columns, mode="clip")
        return columns
    with np.errstate(over="ignore", invalid="ignore"):
        for index, name in enumerate(names):
            columns[:, index] = table[name]
    return columns


def _first_not_finite(start: int, rows: np.ndarray, names: list[str]) -> str:
    """Return which value of `rows`, records from `start` on, is the first that is not finite; "": none is."""
    wrong = np.argwhere(~np.isfinite(rows))
    if not len(wrong):
        return ""
    row, column = wrong[0]
    return f"{names[column]!r} of record {start + row} is {rows[row, column]}"


def write_point_cloud(path: Path | str, gaussians: Gaussians, normals: torch.Tensor | None = None) -> None:
    """Write the center of every Gaussian with its color, without what depends on the view, to `path`.

    `normals` [N, 3] are written where they are given; programs that make surfaces of points need them.
    Raises ValueError, and writes nothing, when there are no Gaussians, a parameter is not finite or the file
    cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    normal_type = [] if normals is None else [("normal", "<f4", 3)]
    rows = np.empty(len(model), np.dtype([("xyz", "<f4", 3), *normal_type, ("rgb", "u1", 3)]))
    rows["xyz"] = model.means
    if normals is not None:
        rows["normal"] = normals.numpy()
    rows["rgb"] = rounded(255.0 * colors_of(model.sh0), 0, 255)
    lines = ["ply", "format binary_little_endian 1.0", "comment splatstudio", f"element vertex {len(model)}"]
    names = [*"xyz", *([] if normals is None else ("nx", "ny", "nz"))]
    lines += [f"property float {name}" for name in names]
    lines += [f"property uchar {name}" for name in ("red", "green", "blue")]
    write_file(path, "\n".join([*lines, "end_header\n"]).encode("ascii") + rows.tobytes())
