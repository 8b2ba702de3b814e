"""Gaussians as SOG, PlayCanvas' layout: lossless images and a description, about a fifteenth of a PLY's size.

An image has a pixel for each Gaussian, in the same place in each: positions as 16 bits of their logarithm
(two images), rotations as the three smaller components, scales and colors as bytes that choose from
codebooks, SH as an index into a palette. A .sog is a ZIP archive of them; they may also lie beside their
meta.json in a folder. Written is version 2. Version 1, whose bytes are even steps between a least and a
largest value, is read, too. Source: PlayCanvas' specification of the format, and files of its `sogs`.
"""

from __future__ import annotations

import io
import json
import math
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from splatstudio.error_text import first_line
from splatstudio.files.inputs import can_be_path, open_input, read_input
from splatstudio.formats.model_arrays import (
    NUM_SHN,
    ModelArrays,
    SplatFile,
    arrays_to_write,
    require_memory,
    splats_read,
    write_file,
)
from splatstudio.formats.quantize import (
    opacity_logits,
    rounded,
    sigmoid,
    unit_quats,
    with_largest,
    without_largest,
)
from splatstudio.gaussians.gaussians import Gaussians, morton_order

BOOK_SIZE = 256  # values that a byte can choose from
SAMPLE = 1_000_000  # values that a codebook is fitted to
BRANCHES = 256  # clusters that a set of vectors is split into at a time
ROUNDS = 5

LARGEST = 3e38  # float32 ends there
LARGEST_LOG = 88.7  # and so do positions, whose logarithms are kept
LARGEST_SH = 1e15  # and so do sums of squares of coefficients
# Of models that were trained anti-aliased: as PlayCanvas' programs write it, and as its specification had it.
ANTIALIASED = {"model": "antialiased", "antialias": True}

MOST_GAUSSIANS = 16_380 * 16_380  # pixels of the largest WebP image
PALETTE_SIZE = 65_536  # of SH; two bytes choose from it
PALETTE_WIDTH = 64  # entries side by side in its image
FIRST_TAG = 252  # of a rotation's largest component
SQRT_2 = 2.0**0.5
# Measured: the bytes that decoding takes beside the model, a Gaussian and each of its coefficients.
MORE_EACH, MORE_SHN = 175, 11
LARGEST_META = 16 << 20  # bytes; real ones have a few ten thousand
EFFORT = 2  # of the WebP encoder, 0..6; more takes far longer and gains few percent


def codebook(values: np.ndarray) -> np.ndarray:
    """Return 256 float32, ascending, with little squared distance from the nearest to each of `values`.

    Lloyd's algorithm on sorted values, started where Panter and Dite's rule puts them: as dense as the cube
    root of the values' own density.
    """
    flat = values.reshape(-1)
    ordered = np.sort(flat[:: max(1, flat.size // SAMPLE)].astype(np.float64))
    ordered[0], ordered[-1] = flat.min(), flat.max()
    distinct = ordered[np.concatenate([[True], np.diff(ordered) > 0])]
    if len(distinct) <= BOOK_SIZE:
        return np.pad(distinct, (0, BOOK_SIZE - len(distinct)), mode="edge").astype(np.float32)
    counts, edges = np.histogram(ordered, bins=4096)
    density = np.cbrt(counts)
    # A quarter is spread evenly: the few Gaussians far from the others may be the largest of all.
    density = 0.75 * density / density.sum() + 0.25 / len(density)
    share = np.concatenate([[0.0], np.cumsum(density)])
    book = np.interp((np.arange(BOOK_SIZE) + 0.5) / BOOK_SIZE * share[-1], share, edges)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    for _ in range(20):
        ends = np.searchsorted(ordered, 0.5 * (book[1:] + book[:-1]))
        ends = np.concatenate([[0], ends, [len(ordered)]])
        num = np.diff(ends)
        # A value that none is nearest to stays where it is.
        book = np.sort(np.where(num > 0, np.diff(sums[ends]) / np.maximum(num, 1), book))
    return book.astype(np.float32)


def nearest(book: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return for each of `values` the index (uint8) of the nearest in an ascending `book`."""
    middles = 0.5 * (book[1:].astype(np.float64) + book[:-1])
    return np.searchsorted(middles, values).astype(np.uint8)


def palette(vectors: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return up to `num` vectors and for each of `vectors` [N, D] the index of the one that stands for it.

    Split and split again, since k-means of a million vectors with 65,536 centers would take hours on a CPU.
    Of what there is each part gets as much as it has squared distance left, which loses least in many
    dimensions.
    """
    # Squares of distances must be numbers; what is so large has no color anyway.
    rows = np.clip(np.ascontiguousarray(vectors, np.float32), -LARGEST_SH, LARGEST_SH)
    labels = np.empty(len(rows), np.intp)
    centers: list[np.ndarray] = []
    pending = [(np.arange(len(rows)), num)]
    generator = np.random.default_rng(0)
    total = 0
    while pending:
        index, share = pending.pop()
        part = rows[index]
        if len(part) <= share:
            means, nearest_mean = part, np.arange(len(part))
        else:
            # Parts to be split further get about half of the branches each, so that they need no third split.
            branches = share if share <= BRANCHES else min(BRANCHES, -(-2 * share // BRANCHES))
            means, nearest_mean, distances = _clusters(part, branches, generator)
            order, starts = _grouped(nearest_mean, branches)
            missed = np.maximum(distances.astype(np.float64), 0.0)
            if share > BRANCHES and np.diff(starts).max() < len(part) and missed.any():
                for cluster in np.split(order, starts[1:-1]):
                    # One each, and the rest by distance: the shares never exceed what there is.
                    more = int((share - branches) * missed[cluster].sum() / missed.sum())
                    pending.append((index[cluster], 1 + more))
                continue
        centers.append(means)
        labels[index] = total + nearest_mean
        total += len(means)
    return np.concatenate(centers), labels


def _clusters(rows: np.ndarray, num: int, generator: np.random.Generator) -> tuple[np.ndarray, ...]:
    """Return `num` centers [num, D] of k-means, and for each row the nearest's index and squared distance."""
    means = rows[generator.permutation(len(rows))[:num]]
    sample = rows
    if len(rows) > 128 * num:
        sample = rows[generator.integers(0, len(rows), 128 * num)]
    for _ in range(ROUNDS):
        labels, distances = _nearest_rows(sample, means)
        order, starts = _grouped(labels, num)
        counts = np.diff(starts)
        filled = counts > 0
        sums = np.add.reduceat(sample[order], starts[:-1][filled], axis=0)
        means[filled] = sums / counts[filled, None]
        # A center that none is nearest to goes where one is missed most.
        means[~filled] = sample[np.argsort(distances)[len(sample) - (num - len(sums)) :]]
    return means, *_nearest_rows(rows, means)


def _grouped(labels: np.ndarray, num: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows ordered by label, and where each of the `num` labels starts and the last ends."""
    order = np.argsort(labels, kind="stable")
    return order, np.searchsorted(labels[order], np.arange(num + 1))


def _nearest_rows(rows: np.ndarray, means: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return for each row the index of the nearest of `means`, and the square of its distance."""
    centers = torch.from_numpy(means)
    offsets = 0.5 * (centers * centers).sum(dim=1)
    labels, halves = np.empty(len(rows), np.intp), np.empty(len(rows), np.float32)
    for start in range(0, len(rows), 16_384):
        part = torch.from_numpy(rows[start : start + 16_384])
        least = torch.addmm(offsets, part, centers.T, alpha=-1).min(dim=1)
        labels[start : start + 16_384] = least.indices.numpy()
        halves[start : start + 16_384] = least.values.numpy()
    return labels, 2 * halves + (rows * rows).sum(axis=1)


@dataclass(frozen=True)
class SogPalette:
    """Where the spherical harmonics are, and how many."""

    count: int | None  # entries of the palette; version 1 does not tell it
    degree: int
    book: np.ndarray  # [256] values of a coefficient
    centroids: str
    labels: str


@dataclass(frozen=True)
class SogDescription:
    """How many Gaussians there are, in which files, and what their bytes stand for."""

    count: int
    mins: list[float]  # of the logarithms of positions
    maxs: list[float]
    means: list[str]  # low bytes, high bytes
    quats: str
    scales: str
    scale_books: np.ndarray  # [256, 3] logarithms of sizes
    sh0: str
    color_books: np.ndarray  # [256, 4] the first coefficient, and the logit of the opacity
    sh: SogPalette | None
    antialiased: bool = False  # trained so

    @property
    def num_shN(self) -> int:
        """Return the number of coefficients beyond the first."""
        return 0 if self.sh is None else (self.sh.degree + 1) ** 2 - 1


def parsed_description(path: Path, content: bytes) -> SogDescription:
    """Return what the meta.json `content` of the model at `path` says.

    Raises ValueError, naming the part, for what is missing or makes no sense.
    """
    try:
        meta = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its meta.json is damaged") from error
    if not isinstance(meta, dict) or "means" not in meta:
        raise ValueError(f"{path} is no SOG: its meta.json does not describe splats")
    means, scales, quats, sh0 = (_part(path, meta, name) for name in ("means", "scales", "quats", "sh0"))
    mins, maxs = (_numbers(path, means, name, 3, LARGEST_LOG) for name in ("mins", "maxs"))
    version = meta.get("version", 1)
    if version == 1:
        count = _whole(path, {"count": _first(means.get("shape"))}, "count", 2**28)
        scale_books, color_books = _steps(path, scales, 3), _steps(path, sh0, 4)
    elif version == 2:
        count = _whole(path, meta, "count", 2**28)
        books = [_numbers(path, part, "codebook", BOOK_SIZE) for part in (scales, sh0)]
        scale_books = np.column_stack([books[0]] * 3)
        color_books = np.column_stack([*[books[1]] * 3, opacity_logits(np.arange(BOOK_SIZE))])
    else:
        raise ValueError(f"{path} is SOG of another version than 1 and 2; convert it with a newer program")
    return SogDescription(
        count=count,
        mins=mins,
        maxs=maxs,
        means=_files(path, means, 2),
        quats=_files(path, quats, 1)[0],
        scales=_files(path, scales, 1)[0],
        scale_books=scale_books.astype(np.float32),
        sh0=_files(path, sh0, 1)[0],
        color_books=color_books.astype(np.float32),
        sh=None if meta.get("shN") is None else _palette_of(path, _part(path, meta, "shN")),
        antialiased=any(meta.get(name) == value for name, value in ANTIALIASED.items()),
    )


def _palette_of(path: Path, part: dict[str, Any]) -> SogPalette:
    centroids, labels = _files(path, part, 2)
    if "codebook" in part:
        count, degree = _whole(path, part, "count", PALETTE_SIZE), _whole(path, part, "bands", 3)
        book = np.array(_numbers(path, part, "codebook", BOOK_SIZE))
    else:
        shape = part.get("shape")
        degrees = {str(3 * num): degree for num, degree in NUM_SHN.items() if degree}
        count, degree = None, degrees.get(str(shape[-1]) if isinstance(shape, list) and shape else "")
        if degree is None:
            raise ValueError(f"{path}: 'shape' in its meta.json is not that of spherical harmonics: {shape}")
        limits = {name: [part.get(name)] for name in ("mins", "maxs")}
        book = _steps(path, limits, 1)[:, 0]
    return SogPalette(count, degree, book.astype(np.float32), centroids, labels)


def _steps(path: Path, part: dict[str, Any], num: int) -> np.ndarray:
    """Return what each byte stands for in version 1: steps [256, num] from `mins` to `maxs`."""
    mins, maxs = (_numbers(path, part, name, num) for name in ("mins", "maxs"))
    return np.linspace(mins, maxs, BOOK_SIZE)


def _first(shape: Any) -> Any:
    return shape[0] if isinstance(shape, list) and shape else shape


def _part(path: Path, meta: dict[str, Any], name: str) -> dict[str, Any]:
    part = meta.get(name)
    if not isinstance(part, dict):
        raise ValueError(f"{path}: its meta.json has no {name!r}")
    return part


def _whole(path: Path, part: dict[str, Any], name: str, most: int) -> int:
    value = part.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{path}: {name!r} in its meta.json must be a whole number from 1 to {most}")
    return value


def _numbers(path: Path, part: dict[str, Any], name: str, num: int, largest: float = LARGEST) -> list[float]:
    values = part.get(name)
    if not isinstance(values, list) or len(values) != num:
        raise ValueError(f"{path}: {name!r} in its meta.json must be {num} numbers")
    for value in values:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and -largest < value < largest):
            raise ValueError(f"{path}: {name!r} in its meta.json must be {num} numbers up to {largest:g}")
    return [float(value) for value in values]


def _files(path: Path, part: dict[str, Any], num: int) -> list[str]:
    files = part.get("files")
    if not isinstance(files, list) or len(files) != num:
        raise ValueError(f"{path}: 'files' in its meta.json must be {num} names")
    for name in files:
        # Only what lies beside it: a description from elsewhere must not choose any file of this machine.
        if (
            not isinstance(name, str)
            or not name
            or "/" in name
            or "\\" in name
            or name.startswith(".")
            or not can_be_path(name)
        ):
            raise ValueError(
                f"{path}: {str(name)[:60]!r} in its meta.json is not the name of a file beside it"
            )
    return files


def write_sog(path: Path | str, gaussians: Gaussians, *, antialiased: bool = False) -> None:
    """Write the Gaussians to `path`, sorted in space.

    `antialiased`: the description says that they were trained so. Raises ValueError, and writes nothing, when
    there are none or too many, a parameter is not finite or the file cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    if len(model) > MOST_GAUSSIANS:
        raise ValueError(f"{path} cannot be written: SOG holds {MOST_GAUSSIANS:,} splats at most")
    model = model[morton_order(model.means)]
    width = 4 * math.ceil(math.sqrt(len(model)) / 4)
    meta: dict[str, Any] = {"version": 2, "asset": {"generator": "splatstudio"}, "count": len(model)}
    if antialiased:
        meta |= ANTIALIASED
    images: dict[str, np.ndarray] = {}
    meta["means"], images["means_l.webp"], images["means_u.webp"] = _packed_means(model.means)
    images["quats.webp"] = _packed_rotations(model.quats)
    scales, colors = codebook(model.scales), codebook(model.sh0)
    images["scales.webp"] = nearest(scales, model.scales)
    opacities = rounded(255.0 * sigmoid(model.opacities), 0, 255).astype(np.uint8)
    images["sh0.webp"] = np.column_stack([nearest(colors, model.sh0), opacities])
    meta["scales"] = {"codebook": _short(scales), "files": ["scales.webp"]}
    meta["quats"] = {"files": ["quats.webp"]}
    meta["sh0"] = {"codebook": _short(colors), "files": ["sh0.webp"]}
    content = {name: _webp(pixels, width) for name, pixels in images.items()}
    if model.sh_degree:
        centers, labels = palette(model.shN.reshape(len(model), -1), PALETTE_SIZE)
        values = codebook(centers)
        entries = nearest(values, centers).reshape(len(centers), -1, 3)
        table = np.zeros((-(-len(centers) // PALETTE_WIDTH) * PALETTE_WIDTH, *entries.shape[1:]), np.uint8)
        table[: len(entries)] = entries
        files = ["shN_centroids.webp", "shN_labels.webp"]
        content[files[0]] = _webp(table.reshape(-1, 3), PALETTE_WIDTH * entries.shape[1])
        label_bytes = np.column_stack([labels & 255, labels >> 8, np.zeros_like(labels)]).astype(np.uint8)
        content[files[1]] = _webp(label_bytes, width)
        counts = {"count": len(centers), "bands": model.sh_degree}
        meta["shN"] = {**counts, "codebook": _short(values), "files": files}
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, data in {"meta.json": json.dumps(meta).encode(), **content}.items():
            # Without the time of day, equal models give equal files.
            archive.writestr(zipfile.ZipInfo(name), data)
    write_file(path, buffer.getbuffer())


def _short(book: np.ndarray) -> list[float]:
    """Return float32 as numbers of as few digits as tell them apart."""
    return [float(str(value)) for value in book]


def _packed_means(means: np.ndarray) -> tuple[dict[str, Any], np.ndarray, np.ndarray]:
    """Return the bounds, and the low and high bytes [N, 3] of positions between them."""
    logs = np.sign(means) * np.log1p(np.abs(means.astype(np.float64)))
    low, high = logs.min(axis=0), logs.max(axis=0)
    extent = np.where(high > low, high - low, 1.0)
    codes = rounded((logs - low) / extent * 65_535, 0, 65_535)
    bounds = {"mins": low.tolist(), "maxs": high.tolist(), "files": ["means_l.webp", "means_u.webp"]}
    return bounds, (codes & 255).astype(np.uint8), (codes >> 8).astype(np.uint8)


def _packed_rotations(quats: np.ndarray) -> np.ndarray:
    index, others = without_largest(unit_quats(quats))
    codes = rounded(255.0 * (others / SQRT_2 + 0.5), 0, 255)
    return np.column_stack([codes, index + FIRST_TAG]).astype(np.uint8)


def _webp(pixels: np.ndarray, width: int) -> bytes:
    """Return a lossless image of `pixels` [N, 3 or 4], `width` a row; the last row is filled up."""
    height = -(-len(pixels) // width)
    image = np.zeros((height * width, pixels.shape[1]), np.uint8)
    image[: len(pixels)] = pixels
    buffer = io.BytesIO()
    # `exact` keeps the colors of transparent pixels, which are numbers here.
    Image.fromarray(image.reshape(height, width, -1)).save(
        buffer, "WEBP", lossless=True, exact=True, method=EFFORT, quality=50
    )
    return buffer.getvalue()


def read_sog(path: Path | str) -> SplatFile:
    """Return the content of a .sog archive, or of a meta.json with its images beside it.

    Raises ValueError, naming the file and the reason, for a file that is missing, damaged or of another kind.
    """
    path = Path(path)
    try:
        if path.suffix.lower() == ".json":
            return _content(path, read_input(path), lambda name, most: read_input(path.parent / name))
        with open_input(path) as file, zipfile.ZipFile(file) as archive:
            meta = _entry(archive, "meta.json", LARGEST_META)
            return _content(path, meta, lambda name, most: _entry(archive, name, most))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, UnicodeError) as error:
        raise ValueError(f"{path} is cut off or damaged: {first_line(error)[:200]}") from error
    except (KeyError, RuntimeError) as error:
        raise ValueError(f"{path} is not a whole SOG archive: {first_line(error)[:200]}") from error


def _entry(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return the content of an entry, which has `most` bytes at most."""
    info = archive.getinfo(name)
    if info.file_size > most:
        raise zipfile.BadZipFile(f"{name} would expand too much, to {info.file_size} bytes")
    return archive.read(info)


def _content(path: Path, meta: bytes, content_of: Callable[[str, int], bytes]) -> SplatFile:
    """Return the Gaussians that `meta` describes.

    `content_of` returns the file of a name, which has as many bytes at most as it is told. The count bounds
    what is read and decoded; how well the pixels are compressed says nothing, since equal ones need no bytes.
    """
    description = parsed_description(path, meta)
    num = description.count
    require_memory(path, num, description.num_shN, MORE_EACH + MORE_SHN * description.num_shN)

    def pixels(name: str, channels: int) -> np.ndarray:
        most = 4 * num + 65_536
        return _pixels(path, name, content_of(name, _most_bytes(most)), num, most)[:num, :channels]

    low, high = (pixels(name, 3).astype(np.int32) for name in description.means)
    mins, maxs = np.array(description.mins), np.array(description.maxs)
    logs = mins + (maxs - mins) * ((high << 8 | low) / 65_535)
    rotations, colors = pixels(description.quats, 4), pixels(description.sh0, 4)
    with np.errstate(over="ignore"):
        means = np.sign(logs) * np.expm1(np.abs(logs))
        model = ModelArrays(
            means=means.astype(np.float32),
            quats=_unpacked_rotations(rotations),
            scales=_looked_up(description.scale_books, pixels(description.scales, 3)),
            opacities=description.color_books[colors[:, 3], 3],
            sh0=_looked_up(description.color_books, colors[:, :3]),
            shN=np.zeros((num, 0, 3), np.float32),
        )
    if description.sh is not None:
        model = ModelArrays(**{**vars(model), "shN": _sh(path, description, content_of, pixels)})
    return splats_read(path, model, antialiased=description.antialiased)


def _looked_up(books: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Return what the bytes [N, C] stand for, each channel by its own column of `books` [256, C or more]."""
    return np.stack([books[codes[:, channel], channel] for channel in range(codes.shape[1])], axis=1)


def _unpacked_rotations(pixels: np.ndarray) -> np.ndarray:
    others = (pixels[:, :3].astype(np.float32) / 255 - 0.5) * np.float32(SQRT_2)
    quats = with_largest(np.clip(pixels[:, 3].astype(np.intp) - FIRST_TAG, 0, 3), others)
    quats[pixels[:, 3] < FIRST_TAG] = (1.0, 0.0, 0.0, 0.0)  # as other readers take what has no tag
    return quats


def _sh(
    path: Path,
    description: SogDescription,
    content_of: Callable[[str, int], bytes],
    pixels: Callable[[str, int], np.ndarray],
) -> np.ndarray:
    """Return the coefficients [N, K-1, 3] of a file with a palette of SH."""
    sh = description.sh
    assert sh is not None
    num_coefficients = description.num_shN
    labels = pixels(sh.labels, 2).astype(np.intp)
    labels = labels[:, 0] | labels[:, 1] << 8
    count = int(labels.max()) + 1 if sh.count is None else sh.count
    if labels.max() >= count:
        raise ValueError(f"{path} is damaged: an index into its palette is {labels.max()} of {count}")
    num_pixels = count * num_coefficients
    most = num_pixels + PALETTE_WIDTH * num_coefficients * 4 if sh.count else PALETTE_SIZE * num_coefficients
    content = content_of(sh.centroids, _most_bytes(most))
    table = _pixels(path, sh.centroids, content, num_pixels, most)
    entries = sh.book[table[:num_pixels, :3]].reshape(count, num_coefficients, 3)
    return entries[labels]


def _most_bytes(num_pixels: int) -> int:
    """Return how many bytes a lossless image may have: a little more than its pixels, as they are."""
    return 5 * num_pixels + 1_000_000


def _pixels(path: Path, name: str, content: bytes, least: int, most: int) -> np.ndarray:
    """Return the pixels [n, 4] of an image that has from `least` to `most` of them."""
    try:
        with Image.open(io.BytesIO(content), formats=["WEBP", "PNG"]) as image:
            num = image.width * image.height
            if not least <= num <= most:
                raise ValueError(f"{path} is damaged: {name} has {num} pixels, where {least} are needed")
            return np.asarray(image.convert("RGBA")).reshape(-1, 4)
    except (OSError, SyntaxError, RuntimeError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is damaged: {name} is not a whole image") from error
