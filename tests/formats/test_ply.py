"""PLY files: what is written is read again, by us and by others; damaged files get one sentence."""

from __future__ import annotations

import subprocess
import tracemalloc
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from format_models import columns_of, write_other
from other_programs import splat_transform  # noqa: F401  (a fixture)

from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import rotation_matrices

SHARED_PLY = Path(__file__).parents[3] / "shared" / "bench" / "banana_114k.ply"


def random_gaussians(num: int, degree: int = 3) -> Gaussians:
    generator = torch.Generator().manual_seed(num)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Gaussians(
        means=normal(num, 3),
        quats=normal(num, 4),
        scales=normal(num, 3) - 4.0,
        opacities=normal(num),
        sh0=normal(num, 1, 3),
        shN=normal(num, (degree + 1) ** 2 - 1, 3) * 0.1,
    )


def assert_equal(actual: Gaussians, expected: Gaussians) -> None:
    for name, tensor in expected.tensors().items():
        assert torch.equal(actual.tensors()[name], tensor), name
        assert actual.tensors()[name].dtype == torch.float32 and actual.tensors()[name].is_contiguous()


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("num", [0, 1, 7, 10_000])
def test_there_and_back(tmp_path: Path, degree: int, num: int) -> None:
    gaussians = random_gaussians(num, degree)
    write_ply(tmp_path / "a.ply", gaussians)
    back = read_ply(tmp_path / "a.ply").gaussians
    assert back.sh_degree == degree
    assert_equal(back, gaussians)
    assert [path.name for path in tmp_path.iterdir()] == ["a.ply"]


def test_the_layout(tmp_path: Path) -> None:
    """The bytes, read with nothing of ours: the usual order, all float32, coefficients by channel."""
    gaussians = random_gaussians(5)
    write_ply(tmp_path / "a.ply", gaussians)
    header, _, data = (tmp_path / "a.ply").read_bytes().partition(b"end_header\n")
    lines = header.decode("ascii").splitlines()
    assert lines[:2] == ["ply", "format binary_little_endian 1.0"] and "element vertex 5" in lines
    properties = [line.split()[1:] for line in lines if line.startswith("property")]
    assert {kind for kind, _ in properties} == {"float"}
    names = [name for _, name in properties]
    rest = [f"f_rest_{index}" for index in range(45)]
    expected = ["x", "y", "z", "nx", "ny", "nz", "f_dc_0", "f_dc_1", "f_dc_2", *rest, "opacity"]
    assert names == [*expected, "scale_0", "scale_1", "scale_2", "rot_0", "rot_1", "rot_2", "rot_3"]
    table = np.frombuffer(data, "<f4").reshape(5, len(names))
    for name, column in columns_of(gaussians).items():
        np.testing.assert_array_equal(table[:, names.index(name)], column, err_msg=name)
    assert not table[:, 3:6].any()


@pytest.mark.parametrize("byte_order", ["<", ">", ""], ids=["little", "big", "text"])
def test_files_of_other_programs(tmp_path: Path, byte_order: str) -> None:
    """Another order of properties, more of them, other elements around, other types."""
    gaussians = random_gaussians(20, 2)
    columns = dict(reversed(columns_of(gaussians).items()))
    columns = {"red": np.arange(20, dtype="u1"), **columns, "label": np.arange(20, dtype="i4")}
    columns["opacity"] = columns["opacity"].astype("f8")
    binary = bool(byte_order)
    camera = b"\x01\x02\x03\x04\x05" * 2 if binary else b"7 8\n9 10\n"
    before = ("element camera 2\nproperty int a\nproperty uchar b\n", camera)
    after = ("element face 1\nproperty list uchar int vertex_indices\n", b"\x00" if binary else b"0\n")
    path = tmp_path / "a.ply"
    write_other(path, columns, byte_order=byte_order, before=before, after=after)
    assert_equal(read_ply(path).gaussians, gaussians)


def test_windows_line_ends_and_half_floats(tmp_path: Path) -> None:
    columns = {name: column.astype("f2") for name, column in columns_of(random_gaussians(3, 0)).items()}
    path = tmp_path / "a.ply"
    write_other(path, columns)
    header, end, data = path.read_bytes().partition(b"end_header\n")
    path.write_bytes((header + end).replace(b"\n", b"\r\n") + data)
    np.testing.assert_array_equal(
        read_ply(path).gaussians.scales[:, 1].numpy(), columns["scale_1"].astype("f4")
    )


def edited(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) == 1
    path.write_bytes(content.replace(old, new))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"element vertex 9", b"element vertex %d" % 2**60, "promises 1152921504606846976 .* record 9 "),
        (b"element vertex 9", b"element vertex %d" % 10**400, "line 4 .* makes no sense"),
        (b"element vertex 9", b"element vertex 10", "record 9 is not complete"),
        (b"element vertex 9", b"element vertex 8", "promises 8 splats, but there are data for 9"),
        (b"element vertex 9", b"element vertex -9", "line 4 .* makes no sense: 'element vertex -9'"),
        (b"element vertex 9", b"element vertex 9.0", "makes no sense"),
        (b"element vertex 9", b"element vertex", "makes no sense"),
        (b"element vertex 9", b"element point 9", "no element 'vertex'"),
        (b"element vertex 9\n", b"", "makes no sense: 'property float x'"),
        (b"element vertex 9", b"element a %d\nproperty int b\nelement vertex 9" % 2**60, "record 0"),
        (b"element vertex 9", b"element a 1\nproperty list uchar int b\nelement vertex 9", "holds lists"),
        (b"property float opacity", b"property float opaque", "point cloud or mesh.*'opacity'"),
        (b"property float opacity", b"property banana opacity", "'property banana opacity'"),
        (b"property float opacity", b"property int opacity", "'opacity' must be a floating-point number"),
        (b"property float opacity", b"property list uchar float opacity", "must be a floating-point"),
        (b"property float nx", b"property list uchar float nx", "list property"),
        (b"property float nx", b"property list nonsense float nx", "makes no sense"),
        (b"property float opacity", b"property float x", "makes no sense: 'property float x'"),
        (b"property float scale_1", b"property float scale_7", "'scale_1'"),
        (b"property float scale_2", b"property int scale_2", "'scale_2' must be a floating-point"),
        (b"property float f_rest_3\n", b"property float f_rest_9\n", "none called 'f_rest_3'"),
        (b"property float f_rest_3\n", b"property float nothing\n", "8 properties f_rest"),
        (b"format binary_little_endian 1.0", b"format binary 1.0", "makes no sense"),
        (b"format binary_little_endian 1.0", b"comment", "no line 'format'"),
        (b"ply\nformat", b"plx\nformat", "not a PLY file"),
        (b"end_header", b"\xff\xfe\x00", "line 31 .* makes no sense"),
        (b"property float x", b"property float packed_position", "compressed"),
    ],
)  # fmt: skip
def test_lying_headers(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    path = tmp_path / "a.ply"
    write_ply(path, random_gaussians(9, 1))
    edited(path, old, new)
    tracemalloc.start()
    with pytest.raises(ValueError, match=message) as caught:
        read_ply(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10e6
    assert str(path) in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 300


@pytest.mark.parametrize(("name", "value"), [("scale_2", np.nan), ("x", -np.inf), ("f_dc_1", np.inf)])
@pytest.mark.parametrize("byte_order", ["<", ""], ids=["binary", "text"])
def test_splats_with_a_value_that_is_not_finite_are_left_out(
    tmp_path: Path, byte_order: str, name: str, value: float
) -> None:
    gaussians = random_gaussians(20_000, 0)
    columns = {name: column.copy() for name, column in columns_of(gaussians).items()}
    columns[name][[12_345, 3]] = value
    write_other(tmp_path / "a.ply", columns, byte_order=byte_order)
    file = read_ply(tmp_path / "a.ply")
    kept = torch.ones(20_000, dtype=torch.bool)
    kept[[12_345, 3]] = False
    assert_equal(file.gaussians, gaussians[kept])
    told = "have values that are not finite and are left out"
    assert (
        file.notes == (f"2 of the 20,000 splats in {tmp_path / 'a.ply'} {told}",) and file.num_left_out == 2
    )
    columns[name][:10_001] = value
    write_other(tmp_path / "a.ply", columns, byte_order=byte_order)
    with pytest.raises(ValueError, match=f"is damaged: '{name}' of record 0 is {value}"):
        read_ply(tmp_path / "a.ply")


@pytest.mark.parametrize("byte_order", ["<", ">", ""])
def test_flat_splats_get_a_thin_axis_and_are_named(tmp_path: Path, byte_order: str) -> None:
    gaussians = random_gaussians(50)
    columns = columns_of(gaussians)
    del columns["scale_2"]
    write_other(tmp_path / "a.ply", columns, byte_order=byte_order)
    file = read_ply(tmp_path / "a.ply")
    scales = gaussians.scales.clone()
    scales[:, 2] = np.log(1e-6)
    assert_equal(file.gaussians, replace(gaussians, scales=scales))
    assert file.notes[0].endswith("is of 2D Gaussian splatting: its flat splats get a third axis of 1e-06")


def test_infinities_that_mean_something_are_kept(tmp_path: Path) -> None:
    columns = {name: column.copy() for name, column in columns_of(random_gaussians(4, 0)).items()}
    columns["opacity"][:2] = [np.inf, -np.inf]  # the logits of 1 and 0
    columns["scale_1"][2] = -np.inf  # the logarithm of 0
    write_other(tmp_path / "a.ply", columns)
    file = read_ply(tmp_path / "a.ply")
    assert len(file) == 4 and file.notes == ()
    assert file.gaussians.opacities[:2].sigmoid().tolist() == pytest.approx([1, 0], abs=1e-6)
    assert file.gaussians.scales[2, 1].exp() < 1e-12


def test_a_number_too_large_for_float32(tmp_path: Path) -> None:
    columns = {name: column.astype("f8") for name, column in columns_of(random_gaussians(3, 0)).items()}
    columns["x"][1] = 1e300
    write_other(tmp_path / "a.ply", columns)
    assert len(read_ply(tmp_path / "a.ply")) == 2


def test_large_but_finite_values_are_accepted(tmp_path: Path) -> None:
    gaussians = random_gaussians(3)
    gaussians.means[:] = 3e38  # their sum is infinite
    write_ply(tmp_path / "a.ply", gaussians)
    assert_equal(read_ply(tmp_path / "a.ply").gaussians, gaussians)


@pytest.mark.parametrize("line", [b"1 2 3", b"", b"a b c"])
def test_a_bad_line_of_text(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "a.ply"
    write_other(path, columns_of(random_gaussians(4, 0)), byte_order="")
    lines = path.read_bytes().split(b"\n")
    lines[-3] = line
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ValueError, match="record 2 does not hold 14 numbers"):
        read_ply(path)


def test_paths_that_cannot_be_read_or_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"missing\.ply cannot be read: No such file"):
        read_ply(tmp_path / "missing.ply")
    with pytest.raises(ValueError, match="cannot be read"):
        read_ply(tmp_path)
    with pytest.raises(ValueError, match="cannot be written: No such file"):
        write_ply(tmp_path / "nowhere" / "a.ply", random_gaussians(1))


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "a.ply"
    write_ply(path, random_gaussians(4))
    broken = random_gaussians(6)
    broken.shN[5, 2, 1] = torch.nan
    with pytest.raises(ValueError, match="cannot be written: 'f_rest_17' of record 5 is nan"):
        write_ply(path, broken)
    assert_equal(read_ply(path).gaussians, random_gaussians(4))
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.ply"]


def test_a_model_of_another_trainer(tmp_path: Path) -> None:
    if not SHARED_PLY.exists():
        pytest.skip(f"{SHARED_PLY.name} is not at hand")
    gaussians = read_ply(SHARED_PLY).gaussians
    assert len(gaussians) == 113_684 and gaussians.sh_degree == 3
    write_ply(tmp_path / "a.ply", gaussians)
    assert_equal(read_ply(tmp_path / "a.ply").gaussians, gaussians)


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_an_independent_program_reads_our_files(tmp_path: Path, splat_transform: str, degree: int) -> None:  # noqa: F811
    gaussians = random_gaussians(777, degree)
    write_ply(tmp_path / "a.ply", gaussians)
    command = [splat_transform, "-q", str(tmp_path / "a.ply"), "-m", "null"]
    report = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    assert "**Row Count:** 777" in report
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in report.splitlines() if "|" in line]
    names, statistics = rows[0], {row[0]: row for row in rows[2:]}
    columns = columns_of(gaussians)
    assert set(statistics) == {*columns, "nx", "ny", "nz"}
    for name, column in columns.items():
        values = dict(zip(names, statistics[name], strict=True))
        assert values["nans"] == values["infs"] == "0"
        if name.startswith(("x", "y", "z", "f_rest")):  # others are shown as colors and sizes
            assert float(values["mean"]) == pytest.approx(column.mean(dtype=float), abs=2e-6)
            assert float(values["max"]) == pytest.approx(column.max(), abs=2e-6)


def test_an_independent_program_turns_gaussians_as_we_do(tmp_path: Path, splat_transform: str) -> None:  # noqa: F811
    """Its file, read by us, against our own transform: positions, rotations, sizes and SH of all bands."""
    gaussians = random_gaussians(50)
    write_ply(tmp_path / "a.ply", gaussians)
    actions = ["-r", "30,50,-70", "-s", "2", "-t", "1,2,3"]
    command = [splat_transform, "-q", str(tmp_path / "a.ply"), *actions, str(tmp_path / "b.ply")]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    theirs = read_ply(tmp_path / "b.ply").gaussians
    # What the program takes its angles and its order to mean follows from the positions.
    points = np.column_stack([gaussians.means.double().numpy(), np.ones(50)])
    similarity = np.eye(4)
    similarity[:3] = np.linalg.lstsq(points, theirs.means.double().numpy(), rcond=None)[0].T
    assert np.cbrt(np.linalg.det(similarity[:3, :3])) == pytest.approx(2.0, rel=1e-5)
    ours = transformed(gaussians, similarity)
    for name in ("means", "scales", "opacities", "sh0", "shN"):
        torch.testing.assert_close(theirs.tensors()[name], ours.tensors()[name], rtol=1e-5, atol=1e-5)
    rotations = rotation_matrices(theirs.quats)
    torch.testing.assert_close(rotations, rotation_matrices(ours.quats), rtol=0, atol=1e-5)
