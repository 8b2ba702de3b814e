"""Gaussians as compressed PLY, PlayCanvas' layout: 16 bytes a Gaussian, and one a coefficient of SH.

Chunks of 256 Gaussians share the bounds of their positions, scales and colors ("chunk", 18 float32);
"vertex" holds four uint32: position and scale as 11 + 10 + 11 bits within those bounds, rotation as the index
of its largest component and the three others in 10 bits each, color and opacity as four bytes. "sh" holds
a byte a coefficient, channel by channel, -4..4. Source: the readers and writers of splat-transform and
SuperSplat (MIT).
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from splatstudio.formats.model_arrays import (
    NUM_SHN,
    ModelArrays,
    SplatFile,
    arrays_to_write,
    read_file,
    require_memory,
    splats_read,
    write_file,
)
from splatstudio.formats.quantize import (
    colors_of,
    opacity_bytes,
    opacity_logits,
    rounded,
    sh0_of,
    unit_quats,
    with_largest,
    without_largest,
)
from splatstudio.gaussians.gaussians import Gaussians, morton_order
from splatstudio.scene.ply_header import UNSAID, Element, Orientation, PlyHeader, comments_on, parse_header

GROUP = 256  # Gaussians that share bounds
POSITION_BOUNDS = ["min_x", "min_y", "min_z", "max_x", "max_y", "max_z"]
SCALE_BOUNDS = [f"{end}_scale_{axis}" for end in ("min", "max") for axis in "xyz"]
COLOR_BOUNDS = ["min_r", "min_g", "min_b", "max_r", "max_g", "max_b"]
PACKED = ["packed_position", "packed_rotation", "packed_scale", "packed_color"]
LARGEST_LOG_SCALE = 20.0  # other programs clamp there
LARGEST_SH = 4.0
MORE_EACH = 80  # bytes a Gaussian that decoding takes beside the model, measured, and one a coefficient
SQRT_2 = 2.0**0.5


def write_compressed_ply(
    path: Path | str, gaussians: Gaussians, *, antialiased: bool = False, orientation: Orientation = UNSAID
) -> None:
    """Write the Gaussians to `path`, sorted in space: the finer a chunk, the finer its positions.

    Comments tell the `orientation`, and whether they were trained `antialiased`. Raises ValueError, and
    writes nothing, when there are none, a parameter is not finite or the file cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    # A byte has no zero: degrees that nobody has taught would take on a color in all splats.
    num, num_rest = len(model), 3 * _used_coefficients(model)
    bounds = np.empty((-(-num // GROUP), 18), "<f4")
    packed = np.empty((num, 4), "<u4")
    rest = np.empty((num, num_rest), np.uint8)
    for rows, part in model.chunks():
        used = part.shN[:, : num_rest // 3].transpose(0, 2, 1).reshape(len(part), num_rest)
        codes = np.clip(used * np.float32(128.0 / LARGEST_SH) + np.float32(128.0), 0, 255)
        # Above zero a conversion rounds down. Zeros go to both sides in turns, for the same reason.
        below = used == 0
        below[::2, 1::2] = below[1::2, ::2] = False
        rest[rows] = codes.astype(np.uint8) - below
    order = morton_order(model.means)
    model, rest = model.without_shN(), rest[order]
    step = 256 * GROUP
    for start in range(0, num, step):
        rows = slice(start, min(start + step, num))
        part = model[order[rows]]
        groups = slice(start // GROUP, -(-rows.stop // GROUP))
        bounds[groups], packed[rows] = _packed(part)
    header = _header(num, num_rest, comments_on(orientation, antialiased=antialiased))
    write_file(path, b"".join([header, bounds.tobytes(), packed.tobytes(), rest.tobytes()]))


def _used_coefficients(model: ModelArrays) -> int:
    """Return the coefficients of SH up to the highest degree in which any Gaussian has one that is not 0."""
    # From the highest degree down: where that is taught, its first rows tell.
    for fewer, number in reversed([*pairwise(NUM_SHN)]):
        if any(part.shN[:, fewer:number].any() for _, part in model.chunks()):
            return number
    return 0


def _header(num: int, num_rest: int, comments: list[str]) -> bytes:
    lines = ["ply", "format binary_little_endian 1.0", "comment splatstudio"]
    lines += [f"comment {comment}" for comment in comments]
    lines.append(f"element chunk {-(-num // GROUP)}")
    lines += [f"property float {name}" for name in [*POSITION_BOUNDS, *SCALE_BOUNDS, *COLOR_BOUNDS]]
    lines.append(f"element vertex {num}")
    lines += [f"property uint {name}" for name in PACKED]
    if num_rest:
        lines.append(f"element sh {num}")
        lines += [f"property uchar f_rest_{index}" for index in range(num_rest)]
    return "\n".join([*lines, "end_header\n"]).encode("ascii")


def _packed(part: ModelArrays) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds [n / 256, 18] and the packed rows [n, 4] of whole groups."""
    scales = np.clip(part.scales, -LARGEST_LOG_SCALE, LARGEST_LOG_SCALE)
    position_bounds, positions = _within_bounds(part.means)
    scale_bounds, scales = _within_bounds(scales)
    color_bounds, colors = _within_bounds(colors_of(part.sh0))
    index, others = without_largest(unit_quats(part.quats))
    thirds = rounded((others / SQRT_2 + 0.5) * 1023.0, 0, 1023)
    rotation = index.astype(np.uint32) << 30 | thirds[:, 0] << 20 | thirds[:, 1] << 10 | thirds[:, 2]
    bytes_of_color = rounded(255.0 * colors, 0, 255)
    color = bytes_of_color[:, 0] << 24 | bytes_of_color[:, 1] << 16 | bytes_of_color[:, 2] << 8
    packed = np.stack(
        [
            _packed_11_10_11(positions),
            rotation,
            _packed_11_10_11(scales),
            color | opacity_bytes(part.opacities),
        ],
        axis=1,
    )
    return np.concatenate([position_bounds, scale_bounds, color_bounds], axis=1), packed


def _within_bounds(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds [groups, 6] of each 256 rows of `values` [n, 3], and where in them they lie, 0..1."""
    starts = np.arange(0, len(values), GROUP)
    low, high = np.minimum.reduceat(values, starts), np.maximum.reduceat(values, starts)
    low, high = low.astype(np.float32), high.astype(np.float32)
    extent = high.astype(np.float64) - low
    extent[extent == 0.0] = 1.0
    group = np.arange(len(values)) // GROUP
    return np.concatenate([low, high], axis=1), (values - low.astype(np.float64)[group]) / extent[group]


def _packed_11_10_11(values: np.ndarray) -> np.ndarray:
    codes = rounded(values * (2047.0, 1023.0, 2047.0), 0, 2047)
    return codes[:, 0] << 21 | codes[:, 1] << 11 | codes[:, 2]


def is_compressed(header: PlyHeader) -> bool:
    """Return whether a PLY of this header is one that `read_compressed_ply` reads."""
    return any("packed_position" in element.properties for element in header.elements)


def read_compressed_ply(path: Path | str) -> SplatFile:
    """Return the content of a compressed PLY, with or without bounds of colors and SH.

    Raises ValueError, naming the file and the reason, for a file that is missing, damaged or of another kind.
    """
    path = Path(path)
    content = read_file(path)
    header = parse_header(path, content[: 1 << 20])
    chunk, vertex, sh = _elements(path, header)
    tables = _tables(path, header, content)
    packed, bounds = tables["vertex"], tables["chunk"]
    num_rest = len(sh.properties) if sh else 0
    num = vertex.count
    require_memory(path, num, num_rest // 3, MORE_EACH + num_rest)
    model = ModelArrays(
        means=_unpacked_11_10_11(packed["packed_position"], bounds, POSITION_BOUNDS),
        quats=_rotations(packed["packed_rotation"]),
        scales=_unpacked_11_10_11(packed["packed_scale"], bounds, SCALE_BOUNDS),
        opacities=opacity_logits(packed["packed_color"] & np.uint32(255)),
        sh0=_colors(packed["packed_color"], bounds, "min_r" in chunk.properties),
        shN=np.empty((num, num_rest // 3, 3), np.float32),
    )
    if sh is not None:
        rest = tables["sh"].view(np.uint8).reshape(num, num_rest)
        values = (np.arange(256, dtype=np.float32) + 0.5) * (LARGEST_SH / 128.0) - LARGEST_SH
        values[[0, 255]] = -LARGEST_SH, LARGEST_SH
        position = [list(sh.properties).index(f"f_rest_{index}") for index in range(num_rest)]
        for start in range(0, num, 65_536):
            rows = values[rest[start : start + 65_536][:, position]]
            model.shN[start : start + 65_536] = rows.reshape(len(rows), 3, num_rest // 3).transpose(0, 2, 1)
    return replace(splats_read(path, model, antialiased=header.antialiased), orientation=header.orientation)


def _elements(path: Path, header: PlyHeader) -> tuple[Element, Element, Element | None]:
    """Return the elements chunk, vertex and sh (if any), after their shapes have been found right."""
    by_name = {element.name: element for element in header.elements}
    if not {"chunk", "vertex"} <= set(by_name) <= {"chunk", "vertex", "sh"} or not is_compressed(header):
        raise ValueError(f"{path} is not a compressed splat PLY: it lacks the elements chunk and vertex")
    if len(by_name) != len(header.elements):
        raise ValueError(f"{path}: its header names an element twice")
    if header.byte_order != "<":
        raise ValueError(f"{path}: a compressed splat PLY must be little-endian binary")
    chunk, vertex, sh = by_name["chunk"], by_name["vertex"], by_name.get("sh")
    _check_properties(path, chunk, POSITION_BOUNDS + SCALE_BOUNDS, "f4")
    _check_properties(path, chunk, COLOR_BOUNDS if "min_r" in chunk.properties else [], "f4")
    _check_properties(path, vertex, PACKED, "u4")
    if sh is not None:
        if len(sh.properties) // 3 not in NUM_SHN or len(sh.properties) % 3:
            raise ValueError(f"{path}: {len(sh.properties)} coefficients of SH make no full degree")
        if sh.count != vertex.count:
            raise ValueError(f"{path}: it has SH for {sh.count} splats, but {vertex.count} splats")
        _check_properties(path, sh, [f"f_rest_{index}" for index in range(len(sh.properties))], "u1")
    if chunk.count != -(-vertex.count // GROUP):
        raise ValueError(f"{path}: {chunk.count} chunks of {GROUP} do not fit {vertex.count} splats")
    return chunk, vertex, sh


def _check_properties(path: Path, element: Element, names: list[str], code: str) -> None:
    for name in names:
        if element.properties.get(name) != code:
            raise ValueError(f"{path}: {element.name!r} needs a property {name!r} of the type {code}")
    if element.has_lists:
        raise ValueError(
            f"{path}: {element.name!r} has a list property or one of unknown type, which no splat PLY has"
        )


def _tables(path: Path, header: PlyHeader, content: bytes) -> dict[str, np.ndarray]:
    """Return each element as a structured array over `content`."""
    types = {element.name: element.row_type("<") for element in header.elements}
    sizes = {element.name: element.count * types[element.name].itemsize for element in header.elements}
    expected = header.num_bytes + sum(sizes.values())
    if len(content) != expected:
        verdict = "is cut off" if len(content) < expected else "is damaged"
        raise ValueError(f"{path} {verdict}: its header promises {expected} bytes, it has {len(content)}")
    tables, offset = {}, header.num_bytes
    for element in header.elements:
        tables[element.name] = np.frombuffer(content, types[element.name], element.count, offset)
        offset += sizes[element.name]
    return tables


def _unpacked_11_10_11(packed: np.ndarray, bounds: np.ndarray, names: list[str]) -> np.ndarray:
    codes = [packed >> np.uint32(21), packed >> np.uint32(11) & np.uint32(1023), packed & np.uint32(2047)]
    fractions = [codes[0] / np.float32(2047), codes[1] / np.float32(1023), codes[2] / np.float32(2047)]
    return _mixed(fractions, bounds, names)


def _colors(packed: np.ndarray, bounds: np.ndarray, bounded: bool) -> np.ndarray:
    fractions = [(packed >> np.uint32(shift) & np.uint32(255)) / np.float32(255) for shift in (24, 16, 8)]
    return sh0_of(_mixed(fractions, bounds, COLOR_BOUNDS) if bounded else np.stack(fractions, axis=1))


def _mixed(fractions: list[np.ndarray], bounds: np.ndarray, names: list[str]) -> np.ndarray:
    """Return the values [N, 3] that lie at `fractions` between the bounds `names` (3 least, 3 most)."""
    num = len(fractions[0])
    mixed = np.empty((num, 3), np.float32)
    for axis, fraction in enumerate(fractions):
        low, high = (np.repeat(bounds[name], GROUP)[:num] for name in (names[axis], names[axis + 3]))
        with np.errstate(over="ignore", invalid="ignore"):
            mixed[:, axis] = low * (1 - fraction) + high * fraction
    return mixed


def _rotations(packed: np.ndarray) -> np.ndarray:
    thirds = np.stack([packed >> np.uint32(shift) & np.uint32(1023) for shift in (20, 10, 0)], axis=1)
    others = (thirds.astype(np.float32) / np.float32(1023) - 0.5) * np.float32(SQRT_2)
    return with_largest((packed >> np.uint32(30)).astype(np.intp), others)
