"""Gaussians as PLY files in the layout of Kerbl et al. 2023, which nearly every viewer and tool reads.

One element "vertex" of float32: x y z, nx ny nz (always 0), f_dc_0..2, f_rest_0.. (channel by channel),
opacity (logit), scale_0..2 (logarithm), rot_0..3 (w, x, y, z).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from splatstudio.durable import write_durably
from splatstudio.formats.ply_header import LONGEST_HEADER, Element, PlyHeader, parse_header
from splatstudio.gaussians import Gaussians

POSITION = ["x", "y", "z"]
NORMAL = ["nx", "ny", "nz"]
BASE_COLOR = ["f_dc_0", "f_dc_1", "f_dc_2"]
SCALE = ["scale_0", "scale_1", "scale_2"]
ROTATION = ["rot_0", "rot_1", "rot_2", "rot_3"]
REQUIRED = [*POSITION, *BASE_COLOR, "opacity", *SCALE, *ROTATION]
NUM_REST = (0, 9, 24, 45)  # f_rest properties of SH degree 0..3


def rest_names(num: int) -> list[str]:
    """Return the names of the properties for the coefficients above degree 0."""
    return [f"f_rest_{index}" for index in range(num)]


def write_ply(path: Path | str, gaussians: Gaussians) -> None:
    """Write the Gaussians, in the frame they are given, to `path`.

    An older file of that name stays until the new one is complete. Raises ValueError, and writes nothing,
    when a parameter is not finite or the file cannot be written.
    """
    path = Path(path)
    num, num_rest = len(gaussians), 3 * gaussians.shN.shape[1]
    names = [*POSITION, *NORMAL, *BASE_COLOR, *rest_names(num_rest), "opacity", *SCALE, *ROTATION]
    header = _header(num, names)
    content = np.empty(len(header) + num * len(names) * 4, np.uint8)
    content[: len(header)] = np.frombuffer(header, np.uint8)
    rows = content[len(header) :].view("<f4").reshape(num, len(names))
    parts = {name: tensor.detach().float().cpu() for name, tensor in gaussians.tensors().items()}
    columns = [
        parts["means"],
        torch.zeros(num, 3),
        parts["sh0"].reshape(num, 3),
        parts["shN"].transpose(1, 2).reshape(num, num_rest),
        parts["opacities"].reshape(num, 1),
        parts["scales"],
        parts["quats"],
    ]
    torch.cat(columns, dim=1, out=torch.from_numpy(rows))
    _refuse_non_finite(path, rows, names, "cannot be written")
    try:
        write_durably(path, content.data)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


def _header(num: int, names: list[str]) -> bytes:
    """Return the header, of a length that lets the numbers behind it be addressed in place."""
    properties = "".join(f"property float {name}\n" for name in names)
    middle = f"element vertex {num}\n{properties}end_header\n"
    start = "ply\nformat binary_little_endian 1.0\ncomment splatstudio"
    padding = " " * (-(len(start) + 1 + len(middle)) % 4)
    return f"{start}{padding}\n{middle}".encode("ascii")


def read_ply(path: Path | str) -> Gaussians:
    """Return the Gaussians of a PLY file: binary or text, any order of properties, any floating-point type.

    Properties that are not needed are passed over. Raises ValueError, naming the file and the record, for a
    file that is missing, damaged, of another kind, or holds values that are not finite.
    """
    path = Path(path)
    try:
        with open(path, "rb") as file:
            header = parse_header(path, file.read(LONGEST_HEADER))
            size = file.seek(0, 2)
            vertex = _gaussian_element(path, header)
            file.seek(header.num_bytes)
            if header.byte_order:
                table = _binary_table(path, header, vertex, size)
            else:
                table = _text_table(path, header, vertex, file.read())
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    return _gaussians(path, vertex, table)


def _gaussian_element(path: Path, header: PlyHeader) -> Element:
    """Return the element that holds the Gaussians, or say what the file holds instead."""
    by_name = {element.name: element for element in header.elements}
    vertex = by_name.get("vertex")
    if vertex is None:
        raise ValueError(f"{path} has no element 'vertex': it holds no Gaussians")
    if "packed_position" in vertex.properties:
        raise ValueError(f"{path} is a compressed splat PLY, which cannot be read; export it uncompressed")
    missing = [name for name in REQUIRED if name not in vertex.properties]
    if missing:
        kind = "a point cloud or mesh, not Gaussians" if "opacity" in missing else "not complete"
        raise ValueError(f"{path} is {kind}: it has no property {missing[0]!r}")
    num_rest = _num_rest(vertex)
    if num_rest not in NUM_REST:
        raise ValueError(f"{path} has {num_rest} properties f_rest_*: 0, 9, 24 or 45 make a full SH degree")
    for name in [*REQUIRED, *rest_names(num_rest)]:
        code = vertex.properties.get(name)
        if code is None:
            raise ValueError(f"{path} has {num_rest} properties f_rest_*, but none called {name!r}")
        if code[0] != "f":
            raise ValueError(f"{path}: property {name!r} must be a floating-point number")
    if vertex.has_lists:
        raise ValueError(f"{path}: the Gaussians have a list property, which no splat PLY has")
    return vertex


def _num_rest(vertex: Element) -> int:
    return sum(name.startswith("f_rest_") for name in vertex.properties)


def _binary_table(path: Path, header: PlyHeader, vertex: Element, size: int) -> np.ndarray:
    """Return the rows as a structured array, still on disk where numpy can map them."""
    offset = header.num_bytes
    for element in header.elements:
        if element is vertex:
            break
        if element.has_lists:
            raise ValueError(f"{path}: the element {element.name!r} before the Gaussians holds lists")
        offset += element.count * element.row_type(header.byte_order).itemsize
    row_type = vertex.row_type(header.byte_order)
    num_complete = max(size - offset, 0) // row_type.itemsize
    if num_complete < vertex.count:
        raise ValueError(
            f"{path} is cut off or damaged: its header promises {vertex.count} Gaussians, but record"
            f" {num_complete} is not complete"
        )
    if vertex is header.elements[-1] and num_complete > vertex.count:
        raise ValueError(
            f"{path} is damaged: its header promises {vertex.count} Gaussians, but there are data for"
            f" {num_complete}"
        )
    if vertex.count == 0:
        return np.empty(0, row_type)
    return np.memmap(path, row_type, mode="r", offset=offset, shape=(vertex.count,))


def _text_table(path: Path, header: PlyHeader, vertex: Element, data: bytes) -> np.ndarray:
    """Return the rows of a text PLY as a structured array of float64."""
    lines = data.splitlines()
    first = sum(element.count for element in header.elements[: header.elements.index(vertex)])
    num_lines = max(len(lines) - first, 0)
    if num_lines < vertex.count:
        raise ValueError(
            f"{path} is cut off or damaged: its header promises {vertex.count} Gaussians, but record"
            f" {num_lines} is missing"
        )
    values = np.empty((vertex.count, len(vertex.properties)))
    for index, line in enumerate(lines[first : first + vertex.count]):
        try:
            values[index] = [float(word) for word in line.split()]
        except ValueError:
            raise ValueError(
                f"{path}: record {index} does not hold {len(vertex.properties)} numbers"
            ) from None
    return values.view([(name, "f8") for name in vertex.properties])[:, 0]


def _gaussians(path: Path, vertex: Element, table: np.ndarray) -> Gaussians:
    num_rest = _num_rest(vertex)
    names = [*POSITION, *BASE_COLOR, *rest_names(num_rest), "opacity", *SCALE, *ROTATION]
    rows = _float_columns(table, names)
    _refuse_non_finite(path, rows, names, "is damaged")
    means, sh0, rest, opacities, scales, quats = torch.from_numpy(rows).split(
        [3, 3, num_rest, 1, 3, 4], dim=1
    )
    return Gaussians(
        means=means.contiguous(),
        quats=quats.contiguous(),
        scales=scales.contiguous(),
        opacities=opacities[:, 0].contiguous(),
        sh0=sh0.contiguous()[:, None, :],
        shN=rest.reshape(len(rows), 3, num_rest // 3).transpose(1, 2).contiguous(),
    )


def _float_columns(table: np.ndarray, names: list[str]) -> np.ndarray:
    """Return the named columns as one float32 array [N, len(names)]."""
    columns = np.empty((len(table), len(names)), np.float32)
    kinds = {table.dtype[name] for name in names}
    all_names = table.dtype.names or ()
    if kinds == {np.dtype("<f4")} and table.dtype.itemsize == 4 * len(all_names):
        # All of one type, the usual case: one pass over the rows instead of one a column.
        position = [all_names.index(name) for name in names]
        plain = table.view("<f4").reshape(len(table), len(all_names))
        np.take(plain, position, axis=1, out=columns)
        return columns
    with np.errstate(over="ignore", invalid="ignore"):
        for index, name in enumerate(names):
            columns[:, index] = table[name]
    return columns


def _refuse_non_finite(path: Path, rows: np.ndarray, names: list[str], verdict: str) -> None:
    """Raise ValueError naming the first value of `rows` that is infinite or not a number."""
    # A sum is finite only if all its terms are, and needs no table of booleans; large terms may overflow it.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(rows.sum()):
            return
    wrong = ~np.isfinite(rows)
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise ValueError(f"{path} {verdict}: {names[column]!r} of record {row} is {rows[row, column]}")
