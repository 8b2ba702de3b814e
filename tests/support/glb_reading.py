"""Binary glTF as it is written: its description and its columns."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

TYPES = {5126: "<f4", 5125: "<u4", 5123: "<u2", 5121: "u1"}
WIDTHS = {"SCALAR": 1, "VEC2": 2, "VEC3": 3, "VEC4": 4}


def read_glb(data: bytes) -> tuple[dict[str, Any], bytes]:
    """Return the description and the content of a .glb, whose lengths are checked."""
    magic, release, length, size, kind = struct.unpack("<4sIII4s", data[:20])
    assert (magic, release, length, kind) == (b"glTF", 2, len(data), b"JSON") and size % 4 == 0
    description, content = json.loads(data[20 : 20 + size]), data[28 + size :]
    assert len(content) == description["buffers"][0]["byteLength"]
    return description, content


def column(data: bytes, name: str) -> np.ndarray:
    """Return an attribute of the first mesh, [V, C]."""
    description, content = read_glb(data)
    number = description["meshes"][0]["primitives"][0]["attributes"][name]
    accessor = description["accessors"][number]
    view = description["bufferViews"][accessor["bufferView"]]
    width = WIDTHS[accessor["type"]]
    kind = TYPES[accessor["componentType"]]
    values = np.frombuffer(content, kind, width * accessor["count"], view["byteOffset"])
    return values.reshape(-1, width)
