"""Formats that are written and not read: glTF and point clouds, taken apart byte by byte."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trimesh
from format_models import close, converted, model
from other_programs import splat_transform  # noqa: F401  (a fixture)

from splatstudio.formats import read_splats, write_gaussians
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.gaussians import SH_C0, Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import rotation_matrices

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


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_glb_holds_every_value_in_axes_with_y_up(tmp_path: Path, degree: int) -> None:
    gaussians = model(777, degree)
    write_gaussians(tmp_path / "a.glb", gaussians)
    description, columns = parsed_glb(tmp_path / "a.glb")
    assert description["extensionsUsed"] == [EXTENSION]
    primitive = description["meshes"][0]["primitives"][0]
    assert primitive["mode"] == 0
    assert primitive["extensions"][EXTENSION]["kernel"] == "ellipse"
    assert primitive["extensions"][EXTENSION]["colorSpace"] == "srgb_rec709_display"
    # y down, z forward becomes y up, z forward: half a turn about z, worked out by another way.
    expected = transformed(gaussians, np.diag([-1.0, -1.0, 1.0, 1.0]))
    tensors = {name: torch.from_numpy(column.astype(np.float32)) for name, column in columns.items()}
    close(tensors["POSITION"], expected.means, 1e-6)
    position = description["accessors"][primitive["attributes"]["POSITION"]]
    np.testing.assert_array_equal(position["min"], columns["POSITION"].min(axis=0))
    np.testing.assert_array_equal(position["max"], columns["POSITION"].max(axis=0))
    close(tensors[f"{EXTENSION}:SCALE"], expected.scales.exp(), 1e-6)
    close(tensors[f"{EXTENSION}:OPACITY"][:, 0], expected.opacities.sigmoid(), 1e-6)
    xyzw = tensors[f"{EXTENSION}:ROTATION"]
    close(xyzw.norm(dim=1), torch.ones(777), 1e-6)
    # The shape of a Gaussian, since turning its own axes half around does not change it.
    shapes = [
        turn @ torch.diag_embed((2 * expected.scales).exp()) @ turn.mT
        for turn in (rotation_matrices(xyzw[:, [3, 0, 1, 2]]), rotation_matrices(expected.quats))
    ]
    close(
        shapes[0] / shapes[1].norm(dim=(1, 2), keepdim=True),
        shapes[1] / shapes[1].norm(dim=(1, 2), keepdim=True),
        1e-5,
    )
    coefficients = torch.cat([expected.sh0, expected.shN], dim=1)
    names = [f"{EXTENSION}:SH_DEGREE_{d}_COEF_{n}" for d in range(degree + 1) for n in range(2 * d + 1)]
    assert len(columns) == 5 + len(names)
    close(torch.stack([tensors[name] for name in names], dim=1), coefficients, 1e-5)
    colors = (columns["COLOR_0"] / 255)[:, :3]
    on_screen = np.where(colors <= 0.0031308, 12.92 * colors, 1.055 * colors ** (1 / 2.4) - 0.055)
    assert np.abs(on_screen - (SH_C0 * gaussians.sh0[:, 0] + 0.5).clamp(0, 1).numpy()).max() < 0.03


def test_another_program_writes_the_same_glb(tmp_path: Path, splat_transform: str) -> None:  # noqa: F811
    gaussians = model(200)
    write_ply(tmp_path / "a.ply", gaussians)
    theirs = parsed_glb(converted(splat_transform, tmp_path / "a.ply", tmp_path / "theirs.glb"))
    write_gaussians(tmp_path / "a.glb", gaussians)
    ours = parsed_glb(tmp_path / "a.glb")
    assert set(ours[1]) == set(theirs[1])
    assert (
        ours[0]["meshes"][0]["primitives"][0]["extensions"]
        == theirs[0]["meshes"][0]["primitives"][0]["extensions"]
    )
    for name in ours[1]:
        if name == "COLOR_0":
            continue  # theirs are not made linear
        mine, other = ours[1][name], theirs[1][name]
        if name.endswith("ROTATION"):
            mine, other = (
                rotation_matrices(torch.from_numpy(q[:, [3, 0, 1, 2]].copy())).abs().numpy()
                for q in (mine, other)
            )
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-5, err_msg=name)


def test_a_glb_beyond_4_gb_is_refused_before_memory_is_claimed(tmp_path: Path) -> None:
    one = model(1)
    many = one.map(lambda tensor: tensor.expand(20_000_000, *tensor.shape[1:]))
    with pytest.raises(ValueError, match=r"holds 4 GB, this model needs 4\.8 GB"):
        write_gaussians(tmp_path / "a.glb", many)
    assert not list(tmp_path.iterdir())


def check_points(path: Path, gaussians: Gaussians) -> None:
    """Write a model as points, and compare them with what another program reads."""
    write_gaussians(path, gaussians)
    cloud = trimesh.load(path)
    np.testing.assert_array_equal(cloud.vertices, gaussians.means.numpy())  # type: ignore[union-attr]
    expected = (SH_C0 * gaussians.sh0[:, 0] + 0.5).clamp(0, 1).numpy() * 255
    assert np.abs(cloud.colors[:, :3] - expected).max() <= 0.501  # type: ignore[union-attr]
    with pytest.raises(ValueError, match="point cloud or mesh"):
        read_splats(path)


def test_point_clouds(tmp_path: Path) -> None:
    check_points(tmp_path / "a.points.ply", model(333))
