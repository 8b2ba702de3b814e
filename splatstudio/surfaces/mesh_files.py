"""Meshes as files: binary glTF (.glb), Wavefront (.obj), binary PLY and binary STL.

Sources: Khronos' specification of glTF 2.0; Turk 1994, "The PLY Polygon File Format"; Wavefront's appendix B1
on object files, with colors behind the positions as most programs read them; 3D Systems' StereoLithography
Interface Specification.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from splatstudio.cameras.placement import Z_UP_TO_Y_DOWN
from splatstudio.files.durable import partial_path, write_durably, write_parts_durably
from splatstudio.operating_system import put_in_place
from splatstudio.surfaces.mesh import Mesh, face_normals, vertex_normals
from splatstudio.surfaces.mesh_options import TEXTURED_ENDINGS, files_beside

MOST_BYTES = 2**32 - 1  # of a .glb
FLOAT, UNSIGNED_INT, UNSIGNED_SHORT = 5126, 5125, 5123  # glTF's codes of component types
VERTEX_BUFFER, INDEX_BUFFER = 34962, 34963
LINEAR, LINEAR_MIPMAP_LINEAR = 9729, 9987  # its codes of filters
UNLIT = "KHR_materials_unlit"
LINES = 100_000  # of a text file that are made at a time
# Files of splats have y down and glTF has y up: a half turn around z, as `formats/gltf.py` has it.
HALF_TURN = (0.0, 0.0, 1.0, 0.0)
_Column = tuple[str, np.ndarray, int, str]  # an attribute, or "" for the indices; component type and type


def check_mesh_output(path: Path, *, textured: bool = False) -> None:
    """Raise ValueError, naming the endings there are, for a file that no such mesh can be written to."""
    if path.suffix.lower() not in WRITERS:
        *others, last = WRITERS
        raise ValueError(f"cannot write {path.name}: a mesh ends in {', '.join(others)} or {last}")
    if textured and path.suffix.lower() not in TEXTURED_ENDINGS:
        raise ValueError(
            f"{path.name} would have no texture: write a {' or '.join(TEXTURED_ENDINGS)}, or omit --texture"
        )


def write_mesh(path: Path, mesh: Mesh, *, z_up: bool = False) -> None:
    """Write a mesh in the format of the ending: complete, or not there.

    A .stl has no colors. A .glb has y up: a mesh that stands `z_up` is turned, as its splats are. Raises
    ValueError for an unknown ending, an empty mesh and a .glb above 4 GB, OSError where it cannot be written.
    """
    check_mesh_output(path, textured=mesh.texture is not None)
    if not mesh.num_triangles:
        raise ValueError(f"{path} is not written: the mesh has no triangles")
    if z_up and path.suffix.lower() == ".glb":
        mesh = mesh.transformed(Z_UP_TO_Y_DOWN)  # and a half turn more, as all
    beside = files_beside(path, textured=mesh.texture is not None)
    # What an earlier mesh of this name needs stays until this one is there.
    waiting = [partial_path(file) for file in beside]
    try:
        if mesh.texture is not None and beside:
            picture = beside[1].name
            lines = ["# splatstudio", "newmtl photos", "illum 0", "Kd 1 1 1", f"map_Kd {picture}"]
            write_durably(waiting[0], ("\n".join(lines) + "\n").encode())
            write_durably(waiting[1], _png(mesh.texture.picture))
        write_parts_durably(path, WRITERS[path.suffix.lower()](path, mesh))
        for made, file in zip(waiting, beside, strict=True):
            put_in_place(made, file)
    finally:
        for file in waiting:
            file.unlink(missing_ok=True)


def _png(picture: np.ndarray) -> bytes:
    data = io.BytesIO()
    Image.fromarray(picture).save(data, format="PNG")
    return data.getvalue()


def _linear(colors: np.ndarray) -> np.ndarray:
    """Return colors as on a screen (sRGB) as linear ones, which glTF 2.0 asks for (section 3.9.2)."""
    return np.where(colors <= 0.04045, colors / 12.92, ((colors + 0.055) / 1.055) ** 2.4)


def _bytes_of(colors: np.ndarray) -> np.ndarray:
    return np.rint(np.clip(colors, 0.0, 1.0) * 255.0).astype(np.uint8)


def glb_bytes(mesh: Mesh) -> bytes:
    """Return a mesh as binary glTF that is not turned, and that no light changes."""
    return b"".join(_glb_parts(mesh, _Look(rotation=None, unlit=True)))


def _glb(path: Path, mesh: Mesh) -> Iterator[bytes]:
    try:
        yield from _glb_parts(mesh, _Look(HALF_TURN, unlit=mesh.texture is not None))
    except _TooLarge as error:
        raise ValueError(
            f"{path} cannot be written: a .glb holds 4 GB, this mesh needs {error.length / 1e9:.1f} GB; write"
            " a .ply, or give --triangles"
        ) from error


@dataclass(frozen=True)
class _Look:
    """How a .glb stands (a quaternion x, y, z, w; None: as it is), and whether light changes its colors."""

    rotation: tuple[float, float, float, float] | None
    unlit: bool


class _TooLarge(ValueError):
    def __init__(self, length: int):
        super().__init__("a .glb holds 4 GB")
        self.length = length


def _glb_parts(mesh: Mesh, look: _Look) -> Iterator[bytes]:
    rows, faces, picture = np.arange(len(mesh.vertices)), mesh.faces, b""
    if mesh.texture is not None:
        rows, faces = mesh.texture.flat.source.numpy(), mesh.texture.flat.faces
        picture = _png(mesh.texture.picture)
    columns: list[_Column] = [
        ("POSITION", mesh.vertices.numpy()[rows].astype("<f4"), FLOAT, "VEC3"),
        ("NORMAL", _unit_normals(mesh)[rows], FLOAT, "VEC3"),
    ]
    if mesh.texture is not None:
        columns += [("TEXCOORD_0", mesh.texture.flat.uv.numpy().astype("<f4"), FLOAT, "VEC2")]
    elif mesh.colors is not None:
        # In bytes the 32 darkest of a screen's 256 levels would be four.
        linear = np.rint(_linear(mesh.colors.numpy().clip(0.0, 1.0)) * 65_535).astype("<u2")
        opaque = np.pad(linear, ((0, 0), (0, 1)), constant_values=65_535)
        columns += [("COLOR_0", opaque, UNSIGNED_SHORT, "VEC4")]
    columns += [("", faces.numpy().astype("<u4").reshape(-1, 1), UNSIGNED_INT, "SCALAR")]
    description = _description(columns, len(picture), look, mesh.name)
    content = sum(array.nbytes for _, array, _, _ in columns) + _padded(len(picture))
    length = 12 + 8 + len(description) + 8 + content
    if length > MOST_BYTES:
        raise _TooLarge(length)
    yield struct.pack("<4sIII4s", b"glTF", 2, length, len(description), b"JSON") + description
    yield struct.pack("<I4s", content, b"BIN\0")
    for _, array, _, _ in columns:
        yield array.tobytes()
    yield picture.ljust(_padded(len(picture)), b"\0")


def _padded(length: int) -> int:
    """Return a length in whole words of four bytes."""
    return length + -length % 4


def _unit_normals(mesh: Mesh) -> np.ndarray:
    """Return normals of length 1, as the format's validator asks; of a vertex without one it is any."""
    normals = vertex_normals(mesh).numpy().astype("<f4")
    normals[~(np.linalg.norm(normals, axis=1) > 0.5)] = (0.0, 0.0, 1.0)
    return normals


def _description(columns: list[_Column], picture_bytes: int, look: _Look, object_name: str) -> bytes:
    """Return the JSON part of a .glb, padded to a multiple of four bytes.

    A texture, PNG, lies behind the columns.
    """
    views: list[dict[str, int]] = []
    accessors, offset = [], 0
    for number, (name, array, code, kind) in enumerate(columns):
        target = VERTEX_BUFFER if name else INDEX_BUFFER
        views.append({"buffer": 0, "byteOffset": offset, "byteLength": array.nbytes, "target": target})
        accessor: dict[str, Any] = {"bufferView": number, "componentType": code, "type": kind}
        accessor["count"] = len(array)
        if name == "POSITION":
            accessor |= {"min": array.min(axis=0).tolist(), "max": array.max(axis=0).tolist()}
        if code == UNSIGNED_SHORT:
            accessor["normalized"] = True
        accessors.append(accessor)
        offset += array.nbytes
    attributes = {name: number for number, (name, *_) in enumerate(columns) if name}
    surface: dict[str, Any] = {"metallicFactor": 0.0, "roughnessFactor": 1.0}
    material: dict[str, Any] = {"pbrMetallicRoughness": surface, "doubleSided": True}
    description: dict[str, Any] = {
        "asset": {"version": "2.0", "generator": "splatstudio"},
        "scene": 0,
        "scenes": [{"nodes": [0]}],
        "nodes": [
            {"name": object_name, "mesh": 0} | ({"rotation": list(look.rotation)} if look.rotation else {})
        ],
        "meshes": [
            {
                "name": object_name,
                "primitives": [{"attributes": attributes, "indices": len(columns) - 1, "material": 0}],
            }
        ],
        "materials": [material],
        "buffers": [{"byteLength": offset}],
        "bufferViews": views,
        "accessors": accessors,
    }
    if picture_bytes:
        views.append({"buffer": 0, "byteOffset": offset, "byteLength": picture_bytes})
        description["buffers"] = [{"byteLength": offset + _padded(picture_bytes)}]
        description["images"] = [{"bufferView": len(views) - 1, "mimeType": "image/png"}]
        description["samplers"] = [{"magFilter": LINEAR, "minFilter": LINEAR_MIPMAP_LINEAR}]
        description["textures"] = [{"source": 0, "sampler": 0}]
        surface["baseColorTexture"] = {"index": 0}
    if look.unlit:  # a photo shows the light that was there
        material["extensions"] = {UNLIT: {}}
        description["extensionsUsed"] = [UNLIT]
    text = json.dumps(description, separators=(",", ":"))
    return (text + " " * (-len(text) % 4)).encode("ascii")


def _ply(path: Path, mesh: Mesh) -> Iterator[bytes]:
    columns = [(name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz")]
    if mesh.colors is not None:
        columns += [(name, "u1") for name in ("red", "green", "blue")]
    lines = ["ply", "format binary_little_endian 1.0", "comment splatstudio"]
    lines += [f"element vertex {len(mesh.vertices)}"]
    lines += [f"property {'float' if kind == '<f4' else 'uchar'} {name}" for name, kind in columns]
    lines += [f"element face {mesh.num_triangles}", "property list uchar int vertex_indices", "end_header"]
    yield ("\n".join(lines) + "\n").encode("ascii")
    rows = np.zeros(len(mesh.vertices), columns)
    values = np.concatenate([mesh.vertices.numpy(), vertex_normals(mesh).numpy()], axis=1)
    for number, (name, _) in enumerate(columns[:6]):
        rows[name] = values[:, number]
    if mesh.colors is not None:
        colors = _bytes_of(mesh.colors.numpy())
        for number, (name, _) in enumerate(columns[6:]):
            rows[name] = colors[:, number]
    yield rows.tobytes()
    faces = np.zeros(mesh.num_triangles, [("count", "u1"), ("corners", "<i4", 3)])
    faces["count"], faces["corners"] = 3, mesh.faces.numpy()
    yield faces.tobytes()


def _stl(path: Path, mesh: Mesh) -> Iterator[bytes]:
    yield b"splatstudio".ljust(80) + struct.pack("<I", mesh.num_triangles)
    rows = np.zeros(mesh.num_triangles, [("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("unused", "<u2")])
    rows["normal"] = face_normals(mesh).numpy()
    rows["corners"] = mesh.vertices.numpy()[mesh.faces.numpy()]
    yield rows.tobytes()


def _obj(path: Path, mesh: Mesh) -> Iterator[bytes]:
    yield f"# splatstudio\no {mesh.name}\n".encode()
    # Nine digits tell each float32.
    values = mesh.vertices.numpy()
    line = "v %.9g %.9g %.9g\n"
    if mesh.texture is None and mesh.colors is not None:
        values = np.concatenate([values, mesh.colors.numpy()], axis=1)
        line = "v %.9g %.9g %.9g %.4f %.4f %.4f\n"
    yield from _lines(line, values)
    faces = mesh.faces.numpy() + 1
    if mesh.texture is None:
        yield from _lines("f %d %d %d\n", faces)
        return
    material, _ = files_beside(path, textured=True)
    flat = mesh.texture.flat
    yield from _lines("vt %.7f %.7f\n", flat.uv.numpy() * (1.0, -1.0) + (0.0, 1.0))  # v grows upward
    yield f"mtllib {material.name}\nusemtl photos\n".encode()
    corners = np.stack([faces, flat.faces.numpy() + 1], axis=-1).reshape(-1, 6)
    yield from _lines("f %d/%d %d/%d %d/%d\n", corners)


def _lines(line: str, values: np.ndarray) -> Iterator[bytes]:
    """Yield a line for each row, some at a time."""
    for start in range(0, len(values), LINES):
        part = values[start : start + LINES]
        yield (line * len(part) % tuple(part.ravel().tolist())).encode("ascii")


WRITERS: dict[str, Callable[[Path, Mesh], Iterator[bytes]]] = {
    ".glb": _glb,
    ".obj": _obj,
    ".ply": _ply,
    ".stl": _stl,
}
