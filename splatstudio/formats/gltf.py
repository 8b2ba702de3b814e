"""Gaussians as binary glTF (.glb) with the extension KHR_gaussian_splatting: plain float32 in one mesh.

glTF's world has y up and z forward, so the Gaussians are turned half around z. Programs that do not know the
extension show colored points. Source: Khronos' specification of glTF 2.0 and of the extension.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.formats.model_arrays import ABOUT_Z, ModelArrays, arrays_to_write, half_turned, write_file
from splatstudio.formats.quantize import colors_of, rounded, sigmoid, unit_quats
from splatstudio.gaussians.gaussians import Gaussians

EXTENSION = "KHR_gaussian_splatting"
FLOAT, BYTE = 5126, 5121  # glTF's codes of component types
VERTEX_BUFFER = 34962
NUM_COMPONENTS = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}
XYZW_OF_WXYZ = [1, 2, 3, 0]
MOST_BYTES = 2**32 - 1  # of a .glb, whose length is a 32-bit number
LARGEST_LOG_SCALE = 88.0  # more leaves float32


def write_glb(path: Path | str, gaussians: Gaussians) -> None:
    """Write the Gaussians to `path`, everything they have.

    Raises ValueError, and writes nothing, when there are none, a parameter is not finite, the file would
    exceed 4 GB or cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    attributes = _attributes(gaussians.sh_degree)
    description = _description(model, attributes)
    length = 12 + 8 + len(description) + 8 + len(model) * sum(size for _, _, _, size in attributes)
    if length > MOST_BYTES:
        raise ValueError(
            f"{path} cannot be written: a .glb holds 4 GB, this model needs {length / 1e9:.1f} GB"
        )
    content = np.empty(length, np.uint8)
    start = struct.pack("<4sIII4s", b"glTF", 2, length, len(description), b"JSON") + description
    start += struct.pack("<I4s", length - len(start) - 8, b"BIN\0")
    content[: len(start)] = np.frombuffer(start, np.uint8)
    columns, offset = {}, len(start)
    for name, kind, code, size in attributes:
        column = content[offset : offset + size * len(model)]
        columns[name] = column.view("<f4" if code == FLOAT else "u1").reshape(-1, NUM_COMPONENTS[kind])
        offset += size * len(model)
    for rows, chunk in model.chunks():
        for name, values in _values(half_turned(chunk, ABOUT_Z)).items():
            columns[name][rows] = values
    write_file(path, content.data)


def _attributes(sh_degree: int) -> list[tuple[str, str, int, int]]:
    """Return each attribute's name, glTF type, component type and bytes, in the order of the file."""
    attributes = [
        ("POSITION", "VEC3", FLOAT, 12),
        ("COLOR_0", "VEC4", BYTE, 4),
        (f"{EXTENSION}:ROTATION", "VEC4", FLOAT, 16),
        (f"{EXTENSION}:SCALE", "VEC3", FLOAT, 12),
        (f"{EXTENSION}:OPACITY", "SCALAR", FLOAT, 4),
    ]
    for degree in range(sh_degree + 1):
        names = [f"{EXTENSION}:SH_DEGREE_{degree}_COEF_{index}" for index in range(2 * degree + 1)]
        attributes += [(name, "VEC3", FLOAT, 12) for name in names]
    return attributes


def _values(model: ModelArrays) -> dict[str, np.ndarray]:
    """Return the values of every attribute, [n, components]."""
    colors = np.clip(colors_of(model.sh0), 0.0, 1.0)
    opacities = sigmoid(model.opacities)[:, None]
    # Vertex colors are linear (glTF 2.0, section 3.9.2), those of Gaussians are as on a screen
    # (sRGB): the extension's color space is for its own attributes alone, and COLOR_0 is glTF's.
    linear = np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)
    values = {
        "POSITION": model.means,
        "COLOR_0": rounded(255.0 * np.concatenate([linear, opacities], axis=1), 0, 255),
        f"{EXTENSION}:ROTATION": unit_quats(model.quats)[:, XYZW_OF_WXYZ],
        f"{EXTENSION}:SCALE": np.exp(np.minimum(model.scales, LARGEST_LOG_SCALE)),
        f"{EXTENSION}:OPACITY": opacities,
        f"{EXTENSION}:SH_DEGREE_0_COEF_0": model.sh0,
    }
    for degree in range(1, model.sh_degree + 1):
        for index in range(2 * degree + 1):
            name = f"{EXTENSION}:SH_DEGREE_{degree}_COEF_{index}"
            values[name] = model.shN[:, degree * degree - 1 + index]
    return values


def _description(model: ModelArrays, attributes: list[tuple[str, str, int, int]]) -> bytes:
    """Return the JSON part, padded to a multiple of four bytes."""
    accessors: list[dict[str, Any]] = []
    views, offset = [], 0
    for index, (_, kind, code, size) in enumerate(attributes):
        num_bytes = size * len(model)
        views.append({"buffer": 0, "byteOffset": offset, "byteLength": num_bytes, "target": VERTEX_BUFFER})
        accessors.append({"bufferView": index, "componentType": code, "count": len(model), "type": kind})
        offset += num_bytes
    signs = np.array(ABOUT_Z, np.float32)
    ends = np.sort(np.stack([model.means.min(axis=0) * signs, model.means.max(axis=0) * signs]), axis=0)
    accessors[0] |= {"min": ends[0].tolist(), "max": ends[1].tolist()}
    accessors[1]["normalized"] = True
    splatting = {
        "kernel": "ellipse",
        "colorSpace": "srgb_rec709_display",
        "projection": "perspective",
        "sortingMethod": "cameraDistance",
    }
    primitive = {
        "attributes": {name: index for index, (name, _, _, _) in enumerate(attributes)},
        "mode": 0,  # points
        "extensions": {EXTENSION: splatting},
    }
    description = {
        "asset": {"version": "2.0", "generator": "splatstudio"},
        "extensionsUsed": [EXTENSION],
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [primitive]}],
        "buffers": [{"byteLength": offset}],
        "bufferViews": views,
        "accessors": accessors,
    }
    text = json.dumps(description, separators=(",", ":"))
    return (text + " " * (-len(text) % 4)).encode("ascii")
