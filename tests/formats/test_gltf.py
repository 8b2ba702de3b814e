"""Formats that are written and not read: glTF and point clouds, taken apart byte by byte."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from format_models import EXTENSION, check_points, close, converted, model, parsed_glb
from other_programs import splat_transform  # noqa: F401  (a fixture)

from splatstudio.formats import write_gaussians
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.gaussians import SH_C0
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import rotation_matrices


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


def test_point_clouds(tmp_path: Path) -> None:
    check_points(tmp_path / "a.points.ply", model(333))
