"""Gaussians as .ksplat, the layout of mkkellogg's GaussianSplats3D: read only.

A header of 4096 bytes, one of 1024 bytes for each section, then the sections: the fill of the last buckets,
the centers of all, and the splats. Level 0 has float32; level 1 has float16 and positions as steps around the
center of their bucket; level 2 has spherical harmonics in bytes besides. Source: the layout of
GaussianSplats3D (MIT).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.formats.model_arrays import ModelArrays, SplatFile, read_file, require_memory, splats_read
from splatstudio.formats.quantize import opacity_logits, sh0_of, unit_quats

HEADER, SECTION_HEADER = 4096, 1024  # bytes
BUCKET = np.dtype(("<f4", 3))
NUM_SH = (0, 3, 8, 15)  # coefficients beyond the first, by degree
SH_LIMIT = 1.5  # what bytes of level 2 stand for, from its negative on, where the header says nothing
FULL_STEPS = 32767  # from the center of a bucket to its side
MORE_EACH = 150  # bytes a Gaussian that decoding takes beside the model
SMALLEST_SCALE = np.finfo(np.float32).tiny  # a scale of 0 has no logarithm


@dataclass(frozen=True)
class _Section:
    """What the header of a section tells."""

    count: int
    room: int  # splats that there is room for: more than there are where it was written while loading
    bucket_size: int  # splats in a full bucket
    num_buckets: int
    block_size: float  # side of a bucket
    bucket_bytes: int
    steps: int
    num_full: int
    num_partly_full: int
    degree: int

    @property
    def bytes_of_buckets(self) -> int:
        return self.bucket_bytes * self.num_buckets + 4 * self.num_partly_full


def read_ksplat(path: Path | str) -> SplatFile:
    """Return the content of a .ksplat file; the format has no mark of its own but its version, 0.1.

    Raises ValueError, naming the file and the reason, for one that is damaged or of another version.
    """
    path = Path(path)
    content = read_file(path)
    if len(content) < HEADER + SECTION_HEADER or content[0] != 0 or content[1] == 0:
        raise ValueError(f"{path} is no .ksplat file of version 0.1, or is cut off")
    num_sections, _, _, count = struct.unpack_from("<4I", content, 4)
    (level,) = struct.unpack_from("<H", content, 20)
    low, high = struct.unpack_from("<2f", content, 36)
    limits = (low or -SH_LIMIT, high or SH_LIMIT)
    if level > 2:
        raise ValueError(f"{path} is a .ksplat file of level {level}; 0, 1 and 2 can be read")
    start = HEADER + num_sections * SECTION_HEADER
    if start > len(content):
        raise ValueError(f"{path} is cut off or damaged: it ends before its {num_sections} sections")
    sections = [_section(content, HEADER + number * SECTION_HEADER) for number in range(num_sections)]
    if sum(section.count for section in sections) != count or count == 0:
        raise ValueError(f"{path} is damaged: its sections do not hold the {count} splats that it tells of")
    degree = max(section.degree for section in sections)
    if degree >= len(NUM_SH):
        raise ValueError(f"{path} is damaged: it tells of spherical harmonics of degree {degree}")
    require_memory(path, count, NUM_SH[degree], MORE_EACH)
    parts = []
    for section in sections:
        row = _row(level, NUM_SH[section.degree])
        end = start + section.bytes_of_buckets + section.room * row.itemsize
        if end > len(content):
            raise ValueError(f"{path} is cut off: it has {len(content)} of {end} or more bytes")
        parts.append(_decoded(path, content[start:end], section, row, limits, NUM_SH[degree]))
        start = end
    columns = zip(*(vars(part).values() for part in parts), strict=True)
    return splats_read(path, ModelArrays(*(np.concatenate(column) for column in columns)))


def _section(content: bytes, at: int) -> _Section:
    count, room, bucket_size, num_buckets, block_size, bucket_bytes = struct.unpack_from("<4IfH", content, at)
    steps, _, num_full, num_partly_full, degree = struct.unpack_from("<4IH", content, at + 24)
    return _Section(
        min(count, room),
        room,
        bucket_size,
        num_buckets,
        block_size,
        bucket_bytes,
        steps or FULL_STEPS,
        num_full,
        num_partly_full,
        degree,
    )


def _row(level: int, num_sh: int) -> np.dtype:
    """Return the layout of a splat."""
    number = "<f4" if level == 0 else "<f2"
    fields = [
        ("means", "<f4" if level == 0 else "<u2", 3),
        ("scales", number, 3),
        ("quats", number, 4),
        ("rgba", "u1", 4),
        ("sh", "u1" if level == 2 else number, 3 * num_sh),
    ]
    return np.dtype(fields)


def _decoded(
    path: Path, content: bytes, section: _Section, row: np.dtype, limits: tuple[float, float], num_sh: int
) -> ModelArrays:
    """Return the splats of a section, with `num_sh` coefficients each: those that it lacks are zero."""
    rows = np.frombuffer(content, row, section.count, section.bytes_of_buckets)
    means = rows["means"].astype(np.float32)
    if rows["means"].dtype == np.uint16:
        factor = 0.5 * section.block_size / section.steps
        means = (means - section.steps) * np.float32(factor) + _bucket_centers(path, content, section)
    coefficients = rows["sh"].astype(np.float32)
    if rows["sh"].dtype == np.uint8:
        coefficients = limits[0] + coefficients / np.float32(255) * (limits[1] - limits[0])
    shN = np.zeros((len(rows), num_sh, 3), np.float32)
    for degree in range(1, section.degree + 1):
        # Each degree has the coefficients of red first, then those of green and of blue.
        first, num = NUM_SH[degree - 1], 2 * degree + 1
        own = coefficients[:, 3 * first : 3 * (first + num)].reshape(-1, 3, num)
        shN[:, first : first + num] = own.transpose(0, 2, 1)
    scales = rows["scales"].astype(np.float32)
    if (scales < 0).any():
        raise ValueError(f"{path} is damaged: a splat has a negative size")
    with np.errstate(invalid="ignore"):  # what is not finite stays so
        scales = np.log(np.maximum(scales, SMALLEST_SCALE))
    return ModelArrays(
        means=means,
        quats=unit_quats(rows["quats"].astype(np.float32)),
        scales=scales,
        opacities=opacity_logits(rows["rgba"][:, 3]),
        sh0=sh0_of(rows["rgba"][:, :3] / np.float32(255)),
        shN=shN,
    )


def _bucket_centers(path: Path, content: bytes, section: _Section) -> np.ndarray:
    """Return the center [n, 3] of each splat's bucket; those in part full ones tell how many they hold."""
    wrong = ValueError(f"{path} is damaged: its buckets do not hold its {section.count} splats")
    # Before anything is made of the counts: the file has as many bytes as its buckets need.
    told = section.num_full + section.num_partly_full
    if told != section.num_buckets or section.bucket_bytes != BUCKET.itemsize:
        raise wrong
    partly = np.frombuffer(content, "<u4", section.num_partly_full)
    sizes = np.concatenate([np.full(section.num_full, section.bucket_size, np.uint32), partly])
    if not section.count <= int(sizes.sum(dtype=np.int64)) <= section.room:
        raise wrong
    centers = np.frombuffer(content, BUCKET, section.num_buckets, 4 * section.num_partly_full)
    return np.repeat(centers, sizes, axis=0)[: section.count]
