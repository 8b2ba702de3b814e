"""Models for the tests of file formats, and what a format may change of them."""

from __future__ import annotations

import base64
import gzip
import io
import json
import re
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import trimesh
import zstandard
from hypothesis import strategies as st
from other_programs import splat_transform  # noqa: F401  (a fixture)
from scipy.spatial import KDTree

from splatstudio.formats import FORMATS, read_splats, write_gaussians
from splatstudio.formats.spz import HEADER
from splatstudio.gaussians.gaussians import SH_C0, Gaussians
from splatstudio.kernels.reference import rotation_matrices


def model(num: int, degree: int = 3, *, seed: int = 0, extent: float = 4.0, offset: float = 0.0) -> Gaussians:
    """Return Gaussians as a training makes them, none at the place of another."""
    generator = np.random.default_rng(seed)
    side = int(np.ceil(num ** (1 / 3)))
    cells = np.stack(np.meshgrid(*[np.arange(side)] * 3), axis=-1).reshape(-1, 3)
    cells = generator.permutation(cells)[:num] + generator.uniform(0.2, 0.8, (num, 3))

    def normal(*shape: int) -> torch.Tensor:
        return torch.from_numpy(generator.normal(size=(num, *shape)).astype(np.float32))

    return Gaussians(
        means=torch.from_numpy(((cells / side - 0.5) * 2 * extent + offset).astype(np.float32)),
        quats=normal(4),
        scales=normal(3) - 4.0,
        opacities=2.0 * normal(),
        sh0=normal(1, 3),
        shN=normal((degree + 1) ** 2 - 1, 3) * 0.2,
    )


@dataclass(frozen=True)
class Precision:
    """How far a format may move the values of a Gaussian, and the range to which it may clamp them first.

    `opacity` and `color` are in 0..1, `sh` a coefficient.
    """

    means: float
    rotation: float = 0.006
    scale: float = 1e-5
    scale_range: tuple[float, float] = (-np.inf, np.inf)
    opacity: float = 1e-6
    color: float = 1e-6
    color_range: tuple[float, float] = (-np.inf, np.inf)
    sh: float | None = 1e-6  # None: not kept at all
    sh_range: tuple[float, float] = (-np.inf, np.inf)


def in_order_of(actual: Gaussians, expected: Gaussians) -> Gaussians:
    """Return the rows of `actual` that lie where those of `expected` lie; each must have one of its own."""
    tree = KDTree(actual.means.double().numpy())
    index = np.asarray(tree.query(expected.means.double().numpy())[1])
    assert len(actual) == len(expected) and len(np.unique(index)) == len(expected)
    return actual[torch.from_numpy(index)]


def assert_kept(actual: Gaussians, expected: Gaussians, precision: Precision) -> None:
    """Check that `actual` is `expected` within what the format keeps; the order may differ."""
    actual = in_order_of(actual, expected)
    for name, tensor in actual.tensors().items():
        assert tensor.dtype == torch.float32 and tensor.is_contiguous() and tensor.isfinite().all(), name
    close(actual.means, expected.means, precision.means)
    rotations = rotation_matrices(actual.quats), rotation_matrices(expected.quats)
    close(rotations[0], rotations[1], precision.rotation)
    close(actual.scales, expected.scales.clamp(*precision.scale_range), precision.scale)
    close(actual.opacities.sigmoid(), expected.opacities.sigmoid(), precision.opacity)
    colors = actual.sh0 * SH_C0 + 0.5, expected.sh0 * SH_C0 + 0.5
    close(colors[0], colors[1].clamp(*precision.color_range), precision.color)
    if precision.sh is None:
        assert actual.sh_degree == 0
    else:
        close(actual.shN, expected.shN.clamp(*precision.sh_range), precision.sh)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(actual, expected, rtol=0.0, atol=tolerance)


def precision_of(ending: str, gaussians: Gaussians) -> Precision:
    """Return what the format of this ending says that it keeps of a model."""
    farthest = float(gaussians.means.abs().max())
    extent = float((gaussians.means.max(dim=0).values - gaussians.means.min(dim=0).values).max())
    rounding = 2.0**-23 * farthest  # of float32
    if ending == ".compressed.ply":
        # The bounds of a group may span all that there is.
        scales, colors = gaussians.scales.clamp(-20, 20), gaussians.sh0 * SH_C0
        return Precision(
            means=0.51 / 1023 * extent + rounding,
            scale=0.51 / 1023 * float(scales.max() - scales.min()) + 1e-5,
            scale_range=(-20.0, 20.0),
            opacity=1.01 / 255,
            color=0.51 / 255 * float(colors.max() - colors.min()) + 1e-5,
            sh=1.01 / 32,
            sh_range=(-4.0, 4.0),
        )
    if ending == ".spz":
        return Precision(
            means=max(2.0**-15 * extent, 2.0**-22 * farthest, 2.0**-25) + rounding,
            scale=0.51 / 16,
            scale_range=(-10.0, 255 / 16 - 10),
            opacity=1.01 / 255,
            color=0.51 / 255 * SH_C0 / 0.15,
            color_range=(0.5 - SH_C0 / 0.3, 0.5 + SH_C0 / 0.3),
            sh=8.6 / 128,
            sh_range=(-1.0, 127 / 128),
        )
    if ending == ".splat":
        return Precision(
            means=0.0,
            rotation=0.03,  # readers disagree on the middle of a byte, by half of its step
            scale_range=(-87.3, 88.0),
            opacity=0.51 / 255,
            color=0.51 / 255,
            color_range=(0.0, 1.0),
            sh=None,
        )
    if ending == ".sog":
        # A logarithm in 16 bits: steps grow with the distance from the origin. Codebooks have 256 values.
        logs = gaussians.means.sign() * gaussians.means.abs().log1p()
        step = float((logs.max(dim=0).values - logs.min(dim=0).values).max()) / 65_535
        colors = gaussians.sh0 * SH_C0
        coefficients = gaussians.shN if gaussians.shN.numel() else torch.zeros(1)
        return Precision(
            means=0.51 * step * (1.0 + farthest) + rounding,
            rotation=0.018,
            scale=float(gaussians.scales.max() - gaussians.scales.min()) / 100 + 1e-5,
            opacity=0.51 / 255,
            color=float(colors.max() - colors.min()) / 100 + 1e-5,
            sh=float(coefficients.max() - coefficients.min()) / 100 + 1e-5,
        )
    assert ending in (".ply", ".pt")
    return Precision(means=0.0, rotation=1e-6)


def converted(program: str, source: Path, target: Path, *options: str) -> Path:
    """Let splat-transform turn `source` into `target`; return `target`."""
    command = [program, "-q", "-w", *options, str(source), str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and target.exists(), done.stderr + done.stdout
    return target


READ = [form.endings[0] for form in FORMATS if form.read and form.write]


def spz_of(
    version: int,
    columns: list[np.ndarray],
    *,
    num: int,
    degree: int = 0,
    bits: int = 12,
    flags: int = 0,
    extensions: bytes = b"",
) -> bytes:
    """Return an SPZ file of `columns`, made apart from the writer."""
    data = [np.ascontiguousarray(column).tobytes() for column in columns]
    if version < 4:
        header = HEADER.pack(b"NGSP", version, num, degree, bits, flags, 0)
        return gzip.compress(header + b"".join(data) + extensions)
    header = HEADER.pack(b"NGSP", version, num, degree, bits, flags, len(data))
    header += struct.pack("<I", 32 + len(extensions)) + bytes(12) + extensions
    streams = [zstandard.compress(column) for column in data]
    table = b"".join(struct.pack("<QQ", len(s), len(d)) for s, d in zip(streams, data, strict=True))
    return header + table + b"".join(streams)


def spz_columns(num: int, num_rotation: int = 4) -> list[np.ndarray]:
    generator = np.random.default_rng(num)
    return [generator.integers(0, 256, (num, size), np.uint8) for size in (9, 1, 3, 3, num_rotation)]


def valid_files(folder: Path) -> dict[str, bytes]:
    """Return a small whole file of every kind that can be read, by a name with its ending."""
    files = {}
    for ending in READ:
        write_gaussians(folder / f"a{ending}", model(2, 1))
        files[f"a{ending}"] = (folder / f"a{ending}").read_bytes()
    write_other(folder / "text.ply", columns_of(model(2, 1)), byte_order="")
    files["text.ply"] = (folder / "text.ply").read_bytes()
    files["version2.spz"] = spz_of(2, spz_columns(2, 3), num=2)
    files["version4.spz"] = spz_of(4, spz_columns(2), num=2)
    buffer = io.BytesIO()
    torch.save(inria_state(model(2, 1)), buffer)
    files["chkpnt.pth"] = buffer.getvalue()
    return files


def inria_state(gaussians) -> tuple:
    """Return what the original trainer saves, with its optimizer's state."""
    parameters = [torch.nn.Parameter(tensor.clone()) for tensor in gaussians.tensors().values()]
    optimizer = torch.optim.Adam(parameters)
    means, quats, scales, opacities, sh0, shN = parameters
    opacities = torch.nn.Parameter(opacities.detach()[:, None])
    statistics = (torch.zeros(len(gaussians)), torch.zeros(len(gaussians), 1), torch.zeros(len(gaussians), 1))
    state = (3, means, sh0, shN, scales, quats, opacities, *statistics, optimizer.state_dict(), 1.5)
    return state, 30_000


NAMES = [f"a{ending}" for ending in READ] + ["text.ply", "version2.spz", "version4.spz", "chkpnt.pth"]


@dataclass(frozen=True)
class Kind:
    """What a model is like."""

    num: int
    degree: int
    seed: int
    extent: float
    offset: float  # of the extent
    opacity: float  # factors of what `model` makes
    scale: float
    sh: float
    length: float  # of the quaternions, about

    def model(self) -> Gaussians:
        extent = 10**self.extent
        gaussians = model(self.num, self.degree, seed=self.seed, extent=extent, offset=self.offset * extent)
        gaussians.opacities.mul_(self.opacity)
        gaussians.scales.mul_(self.scale)
        gaussians.shN.mul_(self.sh)
        gaussians.quats.mul_(self.length)
        return gaussians


KINDS = st.builds(
    Kind,
    num=st.integers(1, 400),
    degree=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    extent=st.floats(-3, 5),
    offset=st.floats(-3, 3),
    opacity=st.floats(0, 200),
    scale=st.floats(0, 10),
    sh=st.floats(0, 30),
    length=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e3, 1e30]),
)


EXTENSION = "KHR_gaussian_splatting"


def parsed_glb(path: Path) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the description of a .glb and its attributes by name."""
    content = path.read_bytes()
    magic, version, length, json_length, json_kind = struct.unpack_from("<4sIII4s", content)
    assert (magic, version, length, json_kind) == (b"glTF", 2, len(content), b"JSON")
    description = json.loads(content[20 : 20 + json_length])
    binary_length, binary_kind = struct.unpack_from("<I4s", content, 20 + json_length)
    binary = content[28 + json_length :]
    assert (
        binary_kind == b"BIN\0" and binary_length == len(binary) and json_length % 4 == binary_length % 4 == 0
    )
    assert description["buffers"][0]["byteLength"] <= len(binary)
    columns = {}
    primitive = description["meshes"][0]["primitives"][0]
    for name, index in primitive["attributes"].items():
        accessor = description["accessors"][index]
        view = description["bufferViews"][accessor["bufferView"]]
        num = {"SCALAR": 1, "VEC3": 3, "VEC4": 4}[accessor["type"]]
        kind = {5126: "<f4", 5121: "u1"}[accessor["componentType"]]
        assert view["byteOffset"] % 4 == 0
        data = binary[view["byteOffset"] : view["byteOffset"] + view["byteLength"]]
        columns[name] = np.frombuffer(data, kind).reshape(accessor["count"], num)
    return description, columns


def check_points(path: Path, gaussians: Gaussians) -> None:
    """Write a model as points, and compare them with what another program reads."""
    write_gaussians(path, gaussians)
    cloud = trimesh.load(path)
    np.testing.assert_array_equal(cloud.vertices, gaussians.means.numpy())  # type: ignore[union-attr]
    expected = (SH_C0 * gaussians.sh0[:, 0] + 0.5).clamp(0, 1).numpy() * 255
    assert np.abs(cloud.colors[:, :3] - expected).max() <= 0.501  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="point cloud or mesh"):
        read_splats(path)


def recorded(page: Path) -> dict[str, dict[str, Any]]:
    """Return the messages in a page by their type, their arrays as bytes."""
    data = re.search(r'__VISER_EMBED_DATA__="([^"]*)"', page.read_text())
    assert data is not None
    packed = base64.b64decode(data[1])
    inner = zstandard.decompress(packed[8:], max_output_size=int.from_bytes(packed[:8], "little"))
    length = int.from_bytes(inner[:8], "little")
    content = msgspec.msgpack.decode(inner[8 : 8 + length])
    messages = {message["type"]: message for _, message in content["messages"]}
    (num_bytes,) = content["binaryBufferLengths"]
    messages["GaussianSplatsMessage"]["buffer"] = inner[-num_bytes:]
    return messages


def columns_of(gaussians: Gaussians) -> dict[str, np.ndarray]:
    """Return the properties of the layout by name, written down apart from the writer."""
    columns = {name: gaussians.means[:, index] for index, name in enumerate("xyz")}
    columns |= {f"f_dc_{channel}": gaussians.sh0[:, 0, channel] for channel in range(3)}
    num = gaussians.shN.shape[1]
    for channel in range(3):
        for coefficient in range(num):
            columns[f"f_rest_{channel * num + coefficient}"] = gaussians.shN[:, coefficient, channel]
    columns["opacity"] = gaussians.opacities
    columns |= {f"scale_{axis}": gaussians.scales[:, axis] for axis in range(3)}
    columns |= {f"rot_{index}": gaussians.quats[:, index] for index in range(4)}
    return {name: column.numpy() for name, column in columns.items()}


def write_other(
    path: Path,
    columns: dict[str, np.ndarray],
    *,
    byte_order: str = "<",
    before: tuple[str, bytes] = ("", b""),
    after: tuple[str, bytes] = ("", b""),
) -> None:
    """Write a PLY as other programs might; `before` and `after`: header lines and data of other elements."""
    names = {"f4": "float", "f8": "double", "u1": "uchar", "f2": "half", "i4": "int32"}
    num = len(next(iter(columns.values())))
    table = np.empty(num, [(name, byte_order + column.dtype.str[1:]) for name, column in columns.items()])
    for name, column in columns.items():
        table[name] = column
    kind = {"<": "binary_little_endian", ">": "binary_big_endian", "": "ascii"}[byte_order]
    header = f"ply\nformat {kind} 1.0\ncomment made for a test\n{before[0]}element vertex {num}\n"
    header += "".join(f"property {names[c.dtype.str[1:]]} {name}\n" for name, c in columns.items())
    header += after[0] + "end_header\n"
    data = table.tobytes()
    if not byte_order:
        data = "".join(" ".join(repr(float(v)) for v in row) + "\n" for row in table.tolist()).encode()
    path.write_bytes(header.encode() + before[1] + data + after[1])
