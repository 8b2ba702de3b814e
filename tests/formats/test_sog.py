"""SOG: the codebooks and palette, the archive, the folder, and files that lie."""

from __future__ import annotations

import io
import json
import re
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from format_models import assert_kept, converted, model, precision_of, spz_of
from models_of_programs import write_sog_1
from other_programs import splat_transform  # noqa: F401  (a fixture)
from PIL import Image

from splatstudio.formats import read_splats, write_gaussians
from splatstudio.formats.ply import write_ply
from splatstudio.formats.sog import codebook, nearest, palette
from splatstudio.gaussians.gaussians import Gaussians

Change = Callable[[dict[str, bytes]], None]


@pytest.mark.parametrize("kind", ["normal", "two sides", "far outlier", "few", "one"])
def test_a_codebook_is_close_to_every_value(kind: str) -> None:
    generator = np.random.default_rng(0)
    values = generator.normal(size=30_000).astype(np.float32)
    if kind == "two sides":
        values = np.sign(values) * (100 + values)
    if kind == "far outlier":
        values[777] = 50.0
    if kind == "few":
        values = np.round(values * 10)
    if kind == "one":
        values[:] = 3.25
    book = codebook(values)
    assert book.dtype == np.float32 and len(book) == 256 and (np.diff(book) >= 0).all()
    error = np.abs(book[nearest(book, values)] - values)
    brute = np.abs(book - values[:500, None]).min(axis=1)
    np.testing.assert_allclose(error[:500], brute, atol=1e-6)
    spread = values.max() - values.min()
    # As good as even steps at worst, and better where the values are.
    assert error.max() <= spread / 100 and np.sqrt((error**2).mean()) <= spread / 256 / np.sqrt(12) * 1.01
    if kind in ("few", "one"):
        assert error.max() == 0.0
    if kind == "far outlier":
        assert np.sqrt((error**2).mean()) < 0.02


def test_a_palette_as_large_as_the_vectors_keeps_them() -> None:
    vectors = np.random.default_rng(0).normal(size=(500, 9)).astype(np.float32)
    centers, labels = palette(vectors, 500)
    np.testing.assert_array_equal(centers[labels], vectors)


@pytest.mark.parametrize("num", [1, 16, 256, 300, 2000])
def test_a_palette_stands_for_more_vectors(num: int) -> None:
    generator = np.random.default_rng(1)
    towns = generator.normal(size=(16, 24)) * 10
    vectors = (towns[generator.integers(0, 16, 6000)] + generator.normal(size=(6000, 24))).astype(np.float32)
    centers, labels = palette(vectors, num)
    assert len(centers) <= num and labels.min() >= 0 and labels.max() < len(centers)
    error = np.sqrt(((centers[labels] - vectors) ** 2).sum(axis=1).mean())
    # Within a town the vectors lie sqrt(24) from its middle; the towns lie ten times as far apart.
    assert error < {1: 55.0, 16: 25.0, 256: 5.0, 300: 5.0, 2000: 4.0}[num]
    if num >= 256:
        np.testing.assert_allclose(centers[labels].mean(axis=0), vectors.mean(axis=0), atol=0.5)


def test_a_palette_of_equal_vectors_and_some_others() -> None:
    vectors = np.zeros((5000, 9), np.float32)
    vectors[::100] = np.random.default_rng(0).normal(size=(50, 9))
    centers, labels = palette(vectors, 400)
    assert len(centers) <= 400
    assert np.square(centers[labels] - vectors).sum() < 0.1 * np.square(vectors).sum()
    vectors[0, 0] = 3e38  # of which no square is a number
    assert np.isfinite(palette(vectors, 400)[0]).all()
    centers, labels = palette(np.ones((1000, 9), np.float32), 300)
    np.testing.assert_array_equal(centers[labels], 1.0)


def test_more_gaussians_than_the_palette_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splatstudio.formats.sog.PALETTE_SIZE", 512)
    gaussians = model(4000, 2)
    write_gaussians(tmp_path / "a.sog", gaussians)
    back = read_splats(tmp_path / "a.sog").gaussians
    monkeypatch.undo()
    write_gaussians(tmp_path / "b.sog", gaussians)
    exact = read_splats(tmp_path / "b.sog").gaussians
    assert torch.equal(back.means, exact.means) and back.sh_degree == 2
    wrong = (back.shN - exact.shN).square().mean().sqrt()
    assert 0 < wrong < 0.9 * exact.shN.square().mean().sqrt()


@pytest.mark.parametrize("degree", [0, 3])
def test_another_program_reads_ours(tmp_path: Path, splat_transform: str, degree: int) -> None:  # noqa: F811
    gaussians = model(600, degree)
    gaussians.opacities.clamp_(-5, 5)
    write_gaussians(tmp_path / "a.sog", gaussians)
    theirs = read_splats(converted(splat_transform, tmp_path / "a.sog", tmp_path / "theirs.ply")).gaussians
    assert theirs.sh_degree == degree
    assert_kept(theirs, gaussians, precision_of(".sog", gaussians))
    ours = read_splats(tmp_path / "a.sog").gaussians
    for name, tensor in ours.tensors().items():
        torch.testing.assert_close(theirs.tensors()[name], tensor, rtol=1e-5, atol=1e-5)


def test_we_read_what_another_program_writes(tmp_path: Path, splat_transform: str) -> None:  # noqa: F811
    gaussians = model(600, 1)
    gaussians.opacities.clamp_(-5, 5)
    write_ply(tmp_path / "a.ply", gaussians)
    options = ["-g", "cpu", "-i", "1"]
    path = converted(splat_transform, tmp_path / "a.ply", tmp_path / "theirs.sog", *options)
    theirs = read_splats(path).gaussians
    unpacked = read_splats(converted(splat_transform, path, tmp_path / "theirs.ply")).gaussians
    for name, tensor in unpacked.tensors().items():
        torch.testing.assert_close(theirs.tensors()[name], tensor, rtol=1e-5, atol=1e-5)
    assert theirs.sh_degree == 1
    folder = tmp_path / "folder"
    folder.mkdir()
    with zipfile.ZipFile(path) as archive:
        archive.extractall(folder)
    for name, tensor in read_splats(folder / "meta.json").gaussians.tensors().items():
        assert torch.equal(tensor, theirs.tensors()[name]), name


def test_equal_models_give_equal_files(tmp_path: Path) -> None:
    write_gaussians(tmp_path / "a.sog", model(300))
    write_gaussians(tmp_path / "b.sog", model(300))
    assert (tmp_path / "a.sog").read_bytes() == (tmp_path / "b.sog").read_bytes()


def changed(path: Path, change: Change, compression: int = zipfile.ZIP_STORED) -> None:
    """Rewrite the archive at `path` with its entries changed."""
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)


def meta_with(*keys: str, value: Any) -> Change:
    def change(entries: dict[str, bytes]) -> None:
        meta = part = json.loads(entries["meta.json"])
        for key in keys[:-1]:
            part = part[key]
        part[keys[-1]] = value
        entries["meta.json"] = json.dumps(meta).encode()

    return change


def image(width: int, height: int) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (width, height)).save(buffer, "WEBP", lossless=True)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (meta_with("version", value=3), "another version than 1 and 2"),
        (meta_with("count", value=0), "'count' .* must be a whole number"),
        (meta_with("count", value=True), "'count' .* must be a whole number"),
        (meta_with("count", value=1e3), "'count' .* must be a whole number"),
        (meta_with("count", value=2**28), "where 268435456 are needed|268,435,456 splats, which need"),
        (meta_with("count", value=2**70), "'count' .* must be a whole number"),
        (meta_with("count", value=20_000), "has 300 pixels, where 20000 are needed"),
        (meta_with("means", value=None), "no 'means'"),
        (meta_with("means", "mins", value=[0.0, 1.0]), "'mins' .* must be 3 numbers"),
        (meta_with("means", "maxs", value=[0.0, 1.0, None]), "'maxs' .* must be 3 numbers"),
        (meta_with("means", "maxs", value=[0.0, 1.0, 1e39]), "'maxs' .* must be 3 numbers"),
        (meta_with("means", "maxs", value=[0.0, 1.0, 10**400]), "'maxs' .* must be 3 numbers"),
        (meta_with("means", "maxs", value=[0.0, 1.0, float("nan")]), "'maxs' .* must be 3 numbers"),
        (meta_with("means", "maxs", value=[0.0, 1.0, 1e30]), "'maxs' .* 3 numbers up to 88.7"),
        (meta_with("scales", "codebook", value=[0.0]), "'codebook' .* must be 256 numbers"),
        (meta_with("sh0", "files", value=["../sh0.webp"]), "not the name of a file beside it"),
        (meta_with("sh0", "files", value=["/etc/passwd"]), "not the name of a file beside it"),
        (meta_with("sh0", "files", value=[3]), "not the name of a file beside it"),
        (meta_with("sh0", "files", value="sh0.webp"), "'files' .* must be 1 names"),
        (meta_with("sh0", "files", value=["nothing.webp"]), "no item named 'nothing.webp'"),
        (meta_with("shN", "bands", value=4), "'bands' .* from 1 to 3"),
        (meta_with("shN", "bands", value=2), "pixels, where"),
        (meta_with("shN", "count", value=290), "an index into its palette is"),
        (meta_with("shN", "count", value=70_000), "'count' .* from 1 to 65536"),
        (lambda entries: entries.update({"meta.json": b"[" * 100_000}), "meta.json is damaged"),
        (lambda entries: entries.update({"meta.json": b"[]"}), "does not describe splats"),
        (lambda entries: entries.update({"quats.webp": b"RIFF"}), "quats.webp is not a whole image"),
        (lambda entries: entries.update({"quats.webp": image(4, 4)}), "quats.webp has 16 pixels"),
        (lambda entries: entries.update({"quats.webp": image(4000, 4000)}), "quats.webp has 16000000 pixels"),
        (lambda entries: entries.update({"quats.webp": entries["quats.webp"][:-9]}), "not a whole image"),
    ],
)  # fmt: skip
def test_archives_that_lie(tmp_path: Path, change: Change, message: str) -> None:
    path = tmp_path / "a.sog"
    write_gaussians(path, model(300, 1))
    changed(path, change)
    tracemalloc.start()
    with pytest.raises(ValueError) as caught:
        read_splats(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20e6
    sentence = str(caught.value)
    assert str(path) in sentence and "\n" not in sentence and re.search(message, sentence), sentence


def test_an_entry_that_expands_without_end(tmp_path: Path) -> None:
    path = tmp_path / "a.sog"
    write_gaussians(path, model(300, 1))
    changed(path, lambda entries: entries.update({"meta.json": b" " * 100_000_000}), zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="expand too much"):
        read_splats(path)


@pytest.mark.parametrize("name", ["a.sog", "a.spz", "a.compressed.ply", "version4.spz"])
def test_equal_splats_need_next_to_no_bytes(tmp_path: Path, name: str) -> None:
    num, one = 400_000, model(1, 0)
    path = tmp_path / name
    if name.startswith("version4"):
        path.write_bytes(spz_of(4, [np.full((num, size), 99, np.uint8) for size in (9, 1, 3, 3, 4)], num=num))
    else:
        parts = {key: part.repeat(num, *[1] * (part.ndim - 1)) for key, part in one.tensors().items()}
        write_gaussians(path, Gaussians(**parts))
    back = read_splats(path).gaussians
    assert len(back) == num
    for tensor in back.tensors().values():
        assert torch.equal(tensor, tensor[:1].expand_as(tensor))


@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_version_1_is_read(tmp_path: Path, degree: int) -> None:
    expected = model(300, degree)
    write_sog_1(tmp_path / "a.sog", expected)
    read = read_splats(tmp_path / "a.sog")
    assert read.sh_degree == degree
    spread = max(
        float(part.max() - part.min()) for part in (expected.scales, expected.sh0, expected.opacities)
    )
    precision = precision_of(".sog", expected)
    half = 0.51 * spread / 255
    own = replace(precision, scale=half, color=half, opacity=half, sh=0.51 * 2 / 255)
    assert_kept(read.gaussians, expected, own)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (meta_with("means", "shape", value=None), "'count' .* must be a whole number"),
        (meta_with("sh0", "mins", value=[0.0, 1.0, 2.0]), "'mins' .* must be 4 numbers"),
        (meta_with("scales", "maxs", value=None), "'maxs' .* must be 3 numbers"),
        (meta_with("shN", "shape", value=[300, 10]), "is not that of spherical harmonics"),
        (meta_with("shN", "mins", value=[0.0]), "'mins' .* must be 1 numbers"),
    ],
)
def test_version_1_that_lies(tmp_path: Path, change: Change, message: str) -> None:
    path = tmp_path / "a.sog"
    write_sog_1(path, model(300, 1))
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    change(entries)
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    with pytest.raises(ValueError, match=message):
        read_splats(path)
