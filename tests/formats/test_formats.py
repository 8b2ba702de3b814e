"""Every format that is written and read: each keeps what it says it keeps, of any model."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from format_models import KINDS, Kind, Precision, assert_kept, close, converted, model, precision_of
from hypothesis import given
from hypothesis import strategies as st
from other_programs import (  # noqa: F401  (fixtures)
    gltf_readers,
    gsplat_exporter,
    read_by_others,
    splat_transform,
)

from splatstudio.formats import FORMATS, FileExtras, format_to_write, read_splats, write_gaussians
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import rotation_matrices
from splatstudio.models.model import load_model
from tests.bench.formats import in_process

BOTH_WAYS = [form.endings[0] for form in FORMATS if form.read and form.write]
EXACT = [ending for ending in BOTH_WAYS if not format_to_write(f"a{ending}").loses]
COMPACT = [ending for ending in BOTH_WAYS if ending not in EXACT]


@pytest.mark.parametrize("ending", BOTH_WAYS)
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("num", [1, 2, 255, 256, 257, 1000])
def test_there_and_back(tmp_path: Path, ending: str, degree: int, num: int) -> None:
    gaussians = model(num, degree, seed=num + degree)
    path = tmp_path / f"a{ending}"
    write_gaussians(path, gaussians)
    back = read_splats(path).gaussians
    precision = precision_of(ending, gaussians)
    assert_kept(back, gaussians, precision)
    assert back.sh_degree == (0 if precision.sh is None else degree)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [ending for ending in COMPACT if ending != ".splat"])
def test_colors_that_nobody_has_taught_give_no_cast(tmp_path: Path, ending: str) -> None:
    """Degrees that a short training has not reached are zeros, as are those of splats that came late."""
    gaussians = model(4000, 3)
    late = torch.arange(len(gaussians)) % 3 > 0
    gaussians.shN[:, 3:] = 0.0
    gaussians.shN[late] = 0.0
    write_gaussians(tmp_path / f"a{ending}", gaussians)
    back = read_splats(tmp_path / f"a{ending}").gaussians
    assert not (back.shN[:, 3:].abs() > 1e-6).any()
    nearest = torch.cdist(back.means, gaussians.means).argmin(1)  # the order is another
    cast = back.shN[late[nearest], :3].mean(dim=0)
    assert cast.abs().max() < 0.002


@pytest.mark.parametrize("ending", COMPACT)
def test_a_second_trip_loses_nothing_more(tmp_path: Path, ending: str) -> None:
    """What was read is written as the same numbers again, so that copies do not fade."""
    write_gaussians(tmp_path / f"a{ending}", model(700))
    first = read_splats(tmp_path / f"a{ending}").gaussians
    write_gaussians(tmp_path / f"b{ending}", first)
    # A rotation in .splat has a length, which is lost; one in .sog may round to another largest component.
    rotation = 0.012 if ending in (".splat", ".sog") else 0.003
    again = Precision(means=1e-5, rotation=rotation, scale=1e-4, opacity=1e-5, color=1e-4, sh=1e-5)
    assert_kept(read_splats(tmp_path / f"b{ending}").gaussians, first, again)


@given(ending=st.sampled_from(BOTH_WAYS), kind=KINDS)
def test_models_of_any_kind(tmp_path_factory: pytest.TempPathFactory, ending: str, kind: Kind) -> None:
    """Huge and tiny scenes, certain and invisible Gaussians, needles, glaring colors, odd quaternions."""
    gaussians = kind.model()
    path = tmp_path_factory.mktemp("any") / f"a{ending}"
    write_gaussians(path, gaussians)
    back = read_splats(path).gaussians
    if ending in EXACT:
        for name, tensor in back.tensors().items():
            assert torch.equal(tensor, gaussians.tensors()[name]), name
        return
    # Unit quaternions are stored; what has no direction becomes the identity.
    gaussians.quats[:] = torch.nn.functional.normalize(gaussians.quats.double(), dim=1, eps=1e-300)
    gaussians.quats[gaussians.quats.norm(dim=1) == 0, 0] = 1.0
    assert_kept(back, gaussians, precision_of(ending, gaussians))


# Peak over the file's size: what is read is the model itself, what is written passes by in parts.
RANGES = {"write": (0.0, 0.2), "read": (0.9, 1.2)}


@pytest.mark.parametrize("action", RANGES)
def test_a_ply_takes_little_more_memory_than_its_size(tmp_path: Path, action: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of a process can be counted anew on Linux only")
    num, path = 200_000, tmp_path / "a.ply"
    if action == "read":
        write_ply(path, model(num, 3))
    found = in_process(action, path, num, 3)
    size = path.stat().st_size
    assert size > 248 * num
    least, most = RANGES[action]
    assert least * size <= found["extra_bytes"] < most * size, found


EXTENSION = "KHR_gaussian_splatting"
Y_UP = np.diag([-1.0, -1.0, 1.0, 1.0])  # y down, z forward to glTF's y up, z forward


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
    harmonics = [f"SH_DEGREE_{degree}_COEF_{n}" for degree in (0, 1) for n in range(2 * degree + 1)]
    unknown = [f"{EXTENSION}:{name}" for name in ("ROTATION", "SCALE", "OPACITY", *harmonics)]
    assert names == {"0", *unknown} and len(issues) == len(names)  # "0": the extension itself
    for issue in issues:
        whole = issue["code"] == "UNSUPPORTED_EXTENSION" and issue["pointer"] == "/extensionsUsed/0"
        prefixed = f"/attributes/{EXTENSION}:" in issue["pointer"]
        assert whole or (issue["code"] == "MESH_PRIMITIVE_INVALID_ATTRIBUTE" and prefixed), issue
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


# Between two readers of one file only rounding differs; .splat's bytes of rotation are centered differently.
SAME = Precision(means=1e-5, rotation=1e-5, scale=1e-4, opacity=1e-5, color=1e-5, sh=1e-5)
SAME_SPLAT = Precision(means=1e-5, rotation=0.03, scale=1e-4, opacity=0.001, color=1e-5, sh=1e-5)


@pytest.mark.parametrize(
    ("ending", "degree"),
    [(".compressed.ply", 3), (".compressed.ply", 0), (".spz", 3), (".spz", 1), (".splat", 0)],
)
def test_it_reads_what_we_write(
    tmp_path: Path,
    splat_transform: str,  # noqa: F811
    ending: str,
    degree: int,
) -> None:
    gaussians = model(600, degree)
    path = tmp_path / f"a{ending}"
    write_gaussians(path, gaussians)
    theirs = read_ply(converted(splat_transform, path, tmp_path / "theirs.ply")).gaussians
    assert theirs.sh_degree == degree
    assert_kept(theirs, gaussians, precision_of(ending, gaussians))
    assert_kept(theirs, read_splats(path).gaussians, SAME_SPLAT if ending == ".splat" else SAME)


@pytest.mark.parametrize(
    ("ending", "options"),
    [(".compressed.ply", []), (".spz", ["--spz-version", "3"]), (".spz", ["--spz-version", "4"])],
    ids=["compressed", "spz3", "spz4"],
)
def test_we_read_what_it_writes(
    tmp_path: Path,
    splat_transform: str,  # noqa: F811
    ending: str,
    options: list[str],
) -> None:
    gaussians = model(600)
    write_ply(tmp_path / "a.ply", gaussians)
    path = converted(splat_transform, tmp_path / "a.ply", tmp_path / f"theirs{ending}", *options)
    back = read_splats(path).gaussians
    assert back.sh_degree == 3
    assert_kept(back, gaussians, precision_of(ending, gaussians))
    # Theirs and ours hold the same numbers, not only numbers as close to the model.
    write_gaussians(tmp_path / f"ours{ending}", gaussians)
    ours = read_splats(tmp_path / f"ours{ending}").gaussians
    assert_kept(
        back, ours, Precision(means=0.001, rotation=1e-5, scale=1e-5, opacity=0.003, color=1e-5, sh=0.0626)
    )
    assert torch.equal(ours.scales, back.scales)


@pytest.mark.parametrize("name", ["a.splat", "a.pt"])
def test_other_formats_leave_out_what_is_not_finite_too(tmp_path: Path, name: str) -> None:
    path, gaussians = tmp_path / name, model(9, 0)
    write_gaussians(path, gaussians)
    if name == "a.splat":
        content = bytearray(path.read_bytes())
        content[32 * 4 : 32 * 4 + 4] = struct.pack("<f", np.nan)  # a position
        content[32 * 6 + 12 : 32 * 6 + 16] = struct.pack("<f", np.inf)  # a size
        path.write_bytes(content)
    else:
        state = torch.load(path, weights_only=True)
        state["splats"]["means"][4, 0] = torch.nan
        state["splats"]["quats"][6, 1] = torch.inf
        torch.save(state, path)
    whole = read_splats(path)
    assert len(whole) == 7 and whole.notes[0].startswith(f"2 of the 9 splats in {path}")
    shown = load_model(path)
    assert shown.notes == whole.notes and len(shown) == 7


@pytest.mark.parametrize("ending", [form.endings[0] for form in FORMATS if form.read])
def test_an_empty_file_is_told_as_that(tmp_path: Path, ending: str) -> None:
    (tmp_path / f"a{ending}").touch()
    with pytest.raises(ValueError, match="is empty: copy or download it again"):
        read_splats(tmp_path / f"a{ending}")
