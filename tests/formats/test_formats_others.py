"""Readers of others for the formats that splat-transform does not read: .glb, gsplat's .pt, and web pages."""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from format_models import Precision, assert_kept, close, model, precision_of
from other_programs import gltf_readers, gsplat_exporter  # noqa: F401  (fixtures)

from splatstudio.formats import FileExtras, read_splats, write_gaussians
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import rotation_matrices

EXTENSION = "KHR_gaussian_splatting"
Y_UP = np.diag([-1.0, -1.0, 1.0, 1.0])  # y down, z forward to glTF's y up, z forward


def read_by_others(packages: Path, path: Path) -> dict[str, Any]:
    """Return what a reader and a validator of glTF find in a file."""
    program = Path(__file__).parents[1] / "support" / "read_glb.mjs"
    command = ["node", str(program), str(packages), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_a_reader_of_gltf_finds_every_value(
    tmp_path: Path,
    gltf_readers: Path,  # noqa: F811
    degree: int,
) -> None:
    gaussians = model(600, degree)
    write_gaussians(tmp_path / "a.glb", gaussians)
    found = read_by_others(gltf_readers, tmp_path / "a.glb")
    assert found["num"] == 1 and found["mode"] == 0
    assert np.array_equal(np.reshape(found["matrix"], (4, 4)), np.eye(4))
    attributes = found["attributes"]
    coefficients = [
        f"{EXTENSION}:SH_DEGREE_{d}_COEF_{n}" for d in range(degree + 1) for n in range(2 * d + 1)
    ]
    types = {"POSITION": "VEC3", f"{EXTENSION}:ROTATION": "VEC4", f"{EXTENSION}:SCALE": "VEC3"}
    types |= {f"{EXTENSION}:OPACITY": "SCALAR", **dict.fromkeys(coefficients, "VEC3")}
    assert set(attributes) == {*types, "COLOR_0"}
    for name, kind in types.items():
        assert (attributes[name]["type"], attributes[name]["kind"]) == (kind, "Float32Array"), name
        assert len(attributes[name]["rows"]) == 600
    values = {name: torch.tensor(attributes[name]["rows"]) for name in types}
    assert attributes["POSITION"]["min"] == values["POSITION"].min(dim=0).values.tolist()
    theirs = Gaussians(
        means=values["POSITION"],
        quats=values[f"{EXTENSION}:ROTATION"][:, [3, 0, 1, 2]],
        scales=values[f"{EXTENSION}:SCALE"].log(),
        opacities=values[f"{EXTENSION}:OPACITY"][:, 0].logit(),
        sh0=values[coefficients[0]][:, None],
        shN=torch.stack([values[n] for n in coefficients[1:]], 1) if degree else torch.zeros(600, 0, 3),
    )
    back = transformed(theirs, Y_UP)
    assert_kept(back, gaussians, Precision(means=1e-6, rotation=2.1, scale=1e-5, opacity=1e-6))
    # An axis of a Gaussian may point the other way: it is as long in both.
    axes, expected = rotation_matrices(back.quats), rotation_matrices(gaussians.quats)
    same_way = (axes * expected).sum(dim=1, keepdim=True).sign()
    close(same_way * axes, expected, 1e-5)
    # Points of programs that do not know the extension: bytes that count as 0..1.
    colors = attributes["COLOR_0"]
    assert (colors["type"], colors["kind"], colors["normalized"]) == ("VEC4", "Uint8Array", True)
    alpha = torch.tensor(colors["rows"])[:, 3]
    assert (alpha - gaussians.opacities.sigmoid()).abs().max() < 0.51 / 255


def test_the_validator_of_gltf_objects_to_nothing_but_not_knowing_the_extension(
    tmp_path: Path,
    gltf_readers: Path,  # noqa: F811
) -> None:
    write_gaussians(tmp_path / "a.glb", model(50, 1))
    content = (tmp_path / "a.glb").read_bytes()
    issues = read_by_others(gltf_readers, tmp_path / "a.glb")["issues"]
    names = {issue["pointer"].rpartition("/")[2] for issue in issues}
    assert "0" in names and len(names) == 1 + 3 + 4
    for issue in issues:
        unknown = issue["code"] == "UNSUPPORTED_EXTENSION" and issue["pointer"] == "/extensionsUsed/0"
        prefixed = f"/attributes/{EXTENSION}:" in issue["pointer"]
        assert unknown or (issue["code"] == "MESH_PRIMITIVE_INVALID_ATTRIBUTE" and prefixed), issue
    # It does look: bounds that are not those of the values are found.
    at = content.index(b'"min":[-') + len(b'"min":[-')
    assert content[at : at + 1] != b"1"
    (tmp_path / "b.glb").write_bytes(content[:at] + b"1" + content[at + 1 :])
    wrong = {issue["code"] for issue in read_by_others(gltf_readers, tmp_path / "b.glb")["issues"]}
    assert "ACCESSOR_MIN_MISMATCH" in wrong


@pytest.mark.parametrize("degree", [0, 2, 3])
def test_gsplat_takes_a_checkpoint_of_ours(
    tmp_path: Path,
    gsplat_exporter: ModuleType,  # noqa: F811
    degree: int,
) -> None:
    """Loaded as its trainer and its viewer load what --ckpt names, then written by gsplat itself."""
    gaussians = model(600, degree)
    gaussians.opacities.clamp_(min=-5.0)  # fainter ones gsplat leaves out of compressed files
    write_gaussians(tmp_path / "a.pt", gaussians, FileExtras(step=29_999))
    loaded = torch.load(tmp_path / "a.pt", map_location="cpu", weights_only=True)
    assert loaded["step"] == 29_999 and isinstance(loaded["step"], int)
    shapes = {"means": (3,), "quats": (4,), "scales": (3,), "opacities": (), "sh0": (1, 3)}
    shapes["shN"] = ((degree + 1) ** 2 - 1, 3)
    # The trainer puts each into a parameter of its own, by these names and no others.
    splats = torch.nn.ParameterDict({name: torch.nn.Parameter(torch.zeros(1)) for name in shapes})
    for name in splats:
        splats[name].data = torch.cat([one["splats"][name] for one in (loaded,)])
    assert set(loaded["splats"]) == set(shapes)
    for name, shape in shapes.items():
        assert splats[name].shape == (600, *shape) and splats[name].dtype == torch.float32, name
    # The viewer joins the coefficients and takes the degree from their number.
    colors = torch.cat([splats["sh0"], splats["shN"]], dim=-2)
    assert int(colors.shape[-2] ** 0.5) - 1 == degree
    for form, ending in (("ply", ".ply"), ("splat", ".splat"), ("ply_compressed", ".compressed.ply")):
        written = tmp_path / f"theirs{ending}"
        gsplat_exporter.export_splats(
            **{name: value.detach() for name, value in splats.items()}, format=form, save_to=str(written)
        )
        theirs = read_splats(written).gaussians
        precision = precision_of(ending, gaussians)
        if ending == ".splat":  # gsplat cuts off what is beyond a byte, where others round
            precision = replace(precision, opacity=1.01 / 255, color=1.01 / 255)
        assert_kept(theirs, gaussians, precision)
