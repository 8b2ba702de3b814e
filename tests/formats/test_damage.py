"""Damaged and hostile files: one sentence that names the file, in bounded memory, or else a finite model."""

from __future__ import annotations

import gzip
import io
import pickle
import re
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
import zstandard
from file_damage import CHANGES, Change, damaged
from format_models import (
    EXTENSION,
    KINDS,
    NAMES,
    Kind,
    check_points,
    close,
    model,
    parsed_glb,
    recorded,
    spz_columns,
    spz_of,
    valid_files,
)
from hypothesis import given
from hypothesis import strategies as st

from splatstudio.formats import FORMATS, read_splats, write_gaussians
from splatstudio.formats.spz import HEADER
from splatstudio.formats.viewer_page import PAGE_SIZE
from splatstudio.gaussians.gaussians import central_bounds
from splatstudio.gaussians.transform import transformed

WRITTEN = [form.endings[0] for form in FORMATS if form.write]


@pytest.mark.parametrize("name", NAMES)
def test_whole_files_are_read(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(valid_files(tmp_path)[name])
    assert len(read_splats(path)) == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_truncation_is_noticed(tmp_path: Path, name: str) -> None:
    whole = valid_files(tmp_path)[name]
    path = tmp_path / name
    step = 1 + len(whole) // 1000
    for length in [*range(0, len(whole), step), *range(len(whole) - 100, len(whole))]:
        if name.endswith(".splat") and length % 32 == 0 and length:
            continue  # a .splat says nowhere how long it is
        if name == "text.ply" and length > whole.rindex(b" "):
            continue  # its last number may have lost digits, which no one can tell
        path.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=name.replace(".", r"\.")) as caught:
            read_splats(path)
        assert "\n" not in str(caught.value) and len(str(caught.value)) < 400


@pytest.mark.parametrize("name", NAMES)
def test_random_damage_gives_a_model_or_a_sentence(tmp_path: Path, name: str) -> None:
    whole = valid_files(tmp_path)[name]
    path = tmp_path / name
    generator = np.random.default_rng(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for position in generator.integers(0, len(whole), generator.integers(1, 4)):
            damaged[position] = generator.integers(0, 256)
        path.write_bytes(damaged)
        try:
            gaussians = read_splats(path).gaussians
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error)
            refused += 1
        else:
            assert all(tensor.isfinite().all() for tensor in gaussians.tensors().values())
    assert refused > 20


@pytest.mark.parametrize("ending", WRITTEN)
@pytest.mark.parametrize("name", ["means", "quats", "scales", "opacities", "sh0", "shN"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nothing_is_written_of_a_model_that_is_not_finite(
    tmp_path: Path, ending: str, name: str, value: float
) -> None:
    path = tmp_path / f"a{ending}"
    write_gaussians(path, model(5, 1))
    before = path.read_bytes()
    gaussians = model(9, 1)
    gaussians.tensors()[name].view(9, -1)[7, 0] = value
    with pytest.raises(ValueError, match=f"a\\{ending} cannot be written: .* 7 is {value}"):
        write_gaussians(path, gaussians)
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", [ending for ending in WRITTEN if ending != ".ply"])
def test_a_model_without_gaussians_is_not_written(tmp_path: Path, ending: str) -> None:
    with pytest.raises(ValueError, match="no splats"):
        write_gaussians(tmp_path / f"a{ending}", model(3)[:0])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", WRITTEN)
def test_a_file_that_cannot_be_written(tmp_path: Path, ending: str) -> None:
    with pytest.raises(ValueError, match="cannot be written: No such file"):
        write_gaussians(tmp_path / "nowhere" / f"a{ending}", model(3))


@pytest.mark.parametrize("name", ["a.spz", "a.splat", "a.pt", "a.pth", "a.ply", "a.compressed.ply", "a.xyz"])
def test_missing_files_folders_and_other_things(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="cannot be read: No such file"):
        read_splats(tmp_path / name)
    (tmp_path / name).mkdir()
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_splats(tmp_path / name)
    (tmp_path / f"b{name}").write_text("These are not splats.")
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        read_splats(tmp_path / f"b{name}")


def refusal(path: Path, content: bytes) -> str:
    """Return the sentence with which a file of `content` is refused, after little memory was used."""
    path.write_bytes(content)
    tracemalloc.start()
    with pytest.raises(ValueError) as caught:
        read_splats(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    return str(caught.value)


def edited(content: bytes, old: bytes, new: bytes) -> bytes:
    assert content.count(old) == 1
    return content.replace(old, new)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            b"element vertex 300",
            b"element vertex 1152921504606846976",
            "SH for 300 splats, but 1152921504606846976",
        ),
        (b"element vertex 300", b"element vertex 0", "SH for 300 splats, but 0"),
        (b"element chunk 2", b"element chunk 3", "3 chunks of 256 do not fit 300"),
        (b"element sh 300", b"element sh 299", "SH for 299 splats, but 300"),
        (b"element sh 300", b"element face 300", "lacks the elements"),
        (b"element chunk 2", b"element vertex 2", "lacks the elements|twice"),
        (b"property float min_scale_y", b"property double min_scale_y", "'min_scale_y' of the type f4"),
        (b"property float max_b", b"property float max_q", "'max_b' of the type f4"),
        (b"property uint packed_scale", b"property int packed_scale", "'packed_scale' of the type u4"),
        (b"property uchar f_rest_8", b"property uchar f_rest_9", "'f_rest_8' of the type u1"),
        (b"property uchar f_rest_8\n", b"", "8 coefficients of SH make no full degree"),
        (b"property uchar f_rest_8", b"property char f_rest_8", "'f_rest_8' of the type u1"),
        (b"binary_little_endian", b"binary_big_endian", "little-endian"),
        (b"binary_little_endian", b"ascii", "little-endian"),
        (b"property float min_x", b"property list uchar float min_x", "'min_x' of the type f4"),
    ],
)
def test_lying_headers_of_compressed_ply(tmp_path: Path, old: bytes, new: bytes, message: str) -> None:
    path = tmp_path / "a.compressed.ply"
    write_gaussians(path, model(300, 1))
    sentence = refusal(path, edited(path.read_bytes(), old, new))
    assert re.search(message, sentence), sentence


def test_bounds_that_are_not_finite(tmp_path: Path) -> None:
    path = tmp_path / "a.compressed.ply"
    write_gaussians(path, model(300, 0))
    content = bytearray(path.read_bytes())
    start = content.index(b"end_header\n") + len(b"end_header\n")
    content[start + 72 : start + 76] = struct.pack("<f", np.nan)
    path.write_bytes(content)
    file = read_splats(path)
    assert len(file) == 256 and file.notes[0].startswith(f"44 of the 300 splats in {path} have values")
    content[start : start + 4] = struct.pack("<f", np.inf)
    assert "is damaged: 'means' of splat 0 is inf" in refusal(path, bytes(content))


@pytest.mark.parametrize("version", [2, 3, 4])
def test_lying_headers_of_spz(tmp_path: Path, version: int) -> None:
    path = tmp_path / "a.spz"
    columns = spz_columns(4, 3 if version == 2 else 4)
    most = refusal(path, spz_of(version, columns, num=2**32 - 1))
    # Which of them holds first depends on the machine's memory.
    assert re.search("too many for it|has the wrong size|4,294,967,295 splats, which need", most)
    assert re.search("too many for it|has the wrong size", refusal(path, spz_of(version, columns, num=10**6)))
    assert "holds no splats" in refusal(path, spz_of(version, columns, num=0))
    more = refusal(path, spz_of(version, columns, num=5))
    assert "cut off" in more
    fewer = refusal(path, spz_of(version, columns, num=3))
    assert "damaged" in fewer
    assert "SH of degree 4" in refusal(path, spz_of(version, columns, num=4, degree=4))
    assert "SPZ version" in refusal(path, spz_of(1, columns, num=4))
    assert "version 77" in refusal(path, gzip.compress(HEADER.pack(b"NGSP", 77, 4, 0, 12, 0, 0)))


@pytest.mark.parametrize("version", [3, 4])
def test_other_axes_in_spz_are_refused_not_misread(tmp_path: Path, version: int) -> None:
    def extension(value: int) -> bytes:
        return struct.pack("<III", 0xADBE0002, 4, 7) + struct.pack("<III", 0xADBE0003, 4, value)

    path = tmp_path / "a.spz"
    content = spz_of(version, spz_columns(3), num=3, flags=2, extensions=extension(6))
    assert "axes other than" in refusal(path, content)
    path.write_bytes(spz_of(version, spz_columns(3), num=3, flags=2, extensions=extension(4)))
    assert len(read_splats(path)) == 3


def test_a_stream_that_expands_without_end(tmp_path: Path) -> None:
    """Much more than the header says is neither held in memory nor taken for a model."""
    header = HEADER.pack(b"NGSP", 3, 2, 0, 12, 0, 0)
    bomb = gzip.compress(header + bytes(200_000_000), compresslevel=9)
    assert "data follow" in refusal(tmp_path / "a.spz", bomb)
    columns = [np.zeros((2, size), np.uint8) for size in (9, 1, 3, 3, 4)]
    content = spz_of(4, columns, num=2)
    huge = zstandard.compress(bytes(200_000_000))
    table = 32 + 16 * 4
    content = content[:table] + struct.pack("<QQ", len(huge), 8) + content[table + 16 :]
    last = len(zstandard.compress(columns[4].tobytes()))
    tracemalloc.start()
    path = tmp_path / "b.spz"
    path.write_bytes(content[:-last] + huge)
    assert len(read_splats(path)) == 2  # the columns are whole; what follows in the stream is left there
    assert tracemalloc.get_traced_memory()[1] < 20e6
    tracemalloc.stop()


class Program:
    """Runs when it is unpickled."""

    def __reduce__(self) -> tuple:
        return (exec, ("open('ran', 'w')",))


def saved(content: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getvalue()


def test_a_checkpoint_with_a_program_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    whole = dict(model(3).tensors())
    assert "could be a program" in refusal(
        tmp_path / "a.pt", saved({"step": 1, "splats": whole, "x": Program()})
    )
    assert not (tmp_path / "ran").exists()
    with pytest.raises(ValueError, match=r"not a file of PyTorch 1\.6"):
        (tmp_path / "b.pt").write_bytes(pickle.dumps(Program()))
        read_splats(tmp_path / "b.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("means", torch.zeros(3, 2), "'means' is 3 x 2, where splats need 3 x 3"),
        ("means", torch.zeros(()), "no splats"),
        ("means", torch.zeros(0, 3), "no splats"),
        ("quats", torch.zeros(4, 4), "'quats' is 4 x 4"),
        ("scales", torch.zeros(3, 2), "'scales' is 3 x 2"),
        ("shN", torch.zeros(3, 7, 3), "'shN' is 3 x 7 x 3"),
        ("sh0", torch.zeros(3, 3), "'sh0' is 3 x 3"),
        ("opacities", torch.zeros(3, dtype=torch.int64), "not a dense tensor of floating-point"),
        ("opacities", "three", "not a dense tensor"),
        ("quats", torch.zeros(3, 4).to_sparse(), "not a dense tensor"),
        ("quats", torch.zeros(3, 4, device="meta"), "not a dense tensor|no values|damaged|claims more"),
        ("scales", torch.tensor([1.0]).expand(3, 3), "claims more numbers than it has"),
        ("shN", torch.full((3, 15, 3), torch.inf), "'shN' of splat 0 is inf"),
        ("means", torch.full((3, 3), 1e300, dtype=torch.float64), "'means' of splat 0 is inf"),
        ("sh0", None, "no 'sh0'"),
    ],
)
def test_tensors_that_are_no_gaussians(tmp_path: Path, name: str, tensor: object, message: str) -> None:
    splats: dict[str, object] = dict(model(3).tensors())
    if tensor is None:
        del splats[name]
    else:
        splats[name] = tensor
    sentence = refusal(tmp_path / "a.pt", saved({"step": 1, "splats": splats}))
    assert re.search(message, sentence), sentence


@pytest.mark.parametrize("content", [{}, {"splats": 3}, [], ((1, 2), 3), (("a",) * 12, 3), torch.zeros(3)])
def test_other_files_of_torch(tmp_path: Path, content: object) -> None:
    assert "no checkpoint of" in refusal(tmp_path / "a.pt", saved(content))


def test_an_appearance_network_is_named(tmp_path: Path) -> None:
    splats = dict(model(3).tensors())
    del splats["sh0"], splats["shN"]
    splats |= {"features": torch.zeros(3, 32), "colors": torch.zeros(3, 3)}
    assert "appearance network" in refusal(tmp_path / "a.pt", saved({"step": 1, "splats": splats}))


def test_a_compressed_archive_is_refused_before_it_expands(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("archive/data.pkl", bytes(100_000_000))
    assert "compressed" in refusal(tmp_path / "a.pt", buffer.getvalue())


def test_scales_below_zero_in_splat(tmp_path: Path) -> None:
    path = tmp_path / "a.splat"
    write_gaussians(path, model(3, 0))
    content = bytearray(path.read_bytes())
    content[32 + 16 : 32 + 20] = struct.pack("<f", -1.0)
    assert "splat 1 has the scales" in refusal(path, bytes(content))


def test_spz_is_a_plain_gzip_stream_however_many_blocks_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.spz"
    write_gaussians(path, model(3000))
    whole = gzip.decompress(path.read_bytes())
    assert whole[:12] == struct.pack("<4sII", b"NGSP", 3, 3000) and len(whole) == 16 + 3000 * (20 + 45)
    monkeypatch.setattr("splatstudio.formats.spz.GZIP_BLOCK", 777)
    write_gaussians(path, model(3000))
    assert gzip.decompress(path.read_bytes()) == whole
    assert len(read_splats(path)) == 3000


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    files = valid_files(folder)
    write_gaussians(folder / "many.compressed.ply", model(300, 3))
    return files | {"many.compressed.ply": (folder / "many.compressed.ply").read_bytes()}


@pytest.mark.parametrize("name", [*NAMES, "many.compressed.ply"])
def test_any_damage_gives_a_finite_model_or_a_sentence_in_bounded_memory(
    whole_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    path = tmp_path_factory.mktemp("damaged") / name
    whole = whole_files[name]

    @given(changes=st.lists(CHANGES, min_size=1, max_size=3))
    def check(changes: list[Change]) -> None:
        content = whole
        for change in changes:
            content = damaged(content, change) or b"\0"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            gaussians = read_splats(path).gaussians
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 500
        else:
            assert 0 < len(gaussians) < 10_000
            assert all(tensor.isfinite().all() for tensor in gaussians.tensors().values())
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 50e6

    check()


@given(kind=KINDS)
def test_a_glb_of_any_model(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> None:
    gaussians = kind.model()
    path = tmp_path_factory.mktemp("any") / "a.glb"
    write_gaussians(path, gaussians)
    _, columns = parsed_glb(path)
    expected = transformed(gaussians, np.diag([-1.0, -1.0, 1.0, 1.0]))
    tensors = {name: torch.from_numpy(column.astype(np.float32)) for name, column in columns.items()}
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert torch.equal(tensors["POSITION"], gaussians.means * torch.tensor([-1.0, -1.0, 1.0]))
    close(tensors[f"{EXTENSION}:ROTATION"].norm(dim=1), torch.ones(len(gaussians)), 1e-5)
    sizes, largest = tensors[f"{EXTENSION}:SCALE"], gaussians.scales.clamp(max=88.0).exp()
    torch.testing.assert_close(sizes, largest, rtol=1e-5, atol=0.0)
    close(tensors[f"{EXTENSION}:OPACITY"][:, 0], gaussians.opacities.sigmoid(), 1e-6)
    names = [
        f"{EXTENSION}:SH_DEGREE_{d}_COEF_{n}" for d in range(1, kind.degree + 1) for n in range(2 * d + 1)
    ]
    found = torch.stack([tensors[name] for name in names], dim=1) if names else expected.shN
    torch.testing.assert_close(found, expected.shN, rtol=1e-5, atol=1e-5)


@given(kind=KINDS)
def test_points_of_any_model(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> None:
    check_points(tmp_path_factory.mktemp("any") / "a.points.ply", kind.model())


@given(kind=KINDS)
def test_a_page_of_any_model(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> None:
    gaussians = kind.model()
    path = tmp_path_factory.mktemp("any") / "a.html"
    write_gaussians(path, gaussians)
    rows = np.frombuffer(recorded(path)["GaussianSplatsMessage"]["buffer"], np.uint8).reshape(-1, 32)
    means = rows[:, :12].copy().view(np.float32)
    assert np.isfinite(means).all() and np.isfinite(rows[:, 16:28].copy().view(np.float16)).all()
    # z is up where y was down, and the scene is as large as a page wants it.
    _, radius = central_bounds(gaussians)
    x, y, z = gaussians.means.double().numpy().T * PAGE_SIZE / radius
    expected = np.stack([x, z, -y], axis=1)
    np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert np.abs(rows[:, 31] - 255 * gaussians.opacities.sigmoid().numpy()).max() < 0.51
