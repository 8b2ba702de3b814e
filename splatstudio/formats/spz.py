"""Gaussians as SPZ, Niantic's layout: about a tenth of a PLY's size.

After a header come all positions (24-bit fixed point), opacities, colors, scales (bytes), rotations and SH
(bytes), in the axes of OpenGL (x right, y up, z back). Versions 2 and 3 are one gzip stream, and differ in
their rotations; version 4 has a stream of zstd each. Written is version 3, which every reader knows.
Source: the description and reference implementation of nianticlabs/spz (MIT).
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from splatstudio.formats.model_arrays import (
    ABOUT_X,
    ModelArrays,
    SplatFile,
    arrays_to_write,
    half_turned,
    read_file,
    require_memory,
    splats_read,
    write_file,
)
from splatstudio.formats.quantize import (
    opacity_bytes,
    opacity_logits,
    rounded,
    unit_quats,
    with_largest,
    without_largest,
)
from splatstudio.gaussians.gaussians import Gaussians

MAGIC = b"NGSP"
HEADER = struct.Struct("<4sIIBBBB")  # magic, version, count, SH degree, fractional bits, flags, streams
HEADER_4_BYTES = 32
GZIP = b"\x1f\x8b"
ANTIALIASED, HAS_EXTENSIONS = 0x1, 0x2  # flags
COORDINATE_SYSTEM = 0xADBE0003  # the extension that says which axes; 4 is the usual one
RIGHT_UP_BACK = 4
COLOR_SCALE = 0.15  # of the first coefficient, so that colors somewhat outside 0..1 fit
SQRT_HALF = 0.5**0.5
NUM_COEFFICIENTS = (0, 3, 8, 15)  # a channel, by SH degree
SH_STEPS = np.array([8] * 3 + [16] * 12, np.float32)[
    :, None
]  # 5 bits for degree 1 and 4 beyond, as the reference
# Measured: the bytes that decoding takes beside the model, a Gaussian and each of its coefficients.
MORE_EACH, MORE_SHN = 80, 8
MOST_EXPANSION = 1032  # times: a bit for a length and one for a distance stand for 258 bytes in gzip
READ_AT_ONCE = 1 << 20  # bytes of a stream whose true length is not known
GZIP_BLOCK = 1 << 21  # bytes that one core compresses at a time
EMPTY_LAST_BLOCK = b"\x03\x00"  # of deflate
LOG_SCALE_STEPS, LOG_SCALE_SHIFT = 16.0, 10.0  # a size is its logarithm in a byte
SMALLER = (
    "{0:,} of the {1:,} splats are thinner than {2:.1g}, the least that SPZ can hold: they are written as"
    " thin as that."
)
LARGER = (
    "{0:,} of the {1:,} splats are larger than {3:.0f}, the most that SPZ can hold: they are written as large"
    " as that. If the scene is in very small units, choose --upright (in the studio: Align upright)."
)
NEARER = (
    "{:,} of the {:,} splats lie too far out for SPZ: they are written nearer, and smaller by as much:"
    " from the middle of the model it looks the same. Other formats keep their places."
)
FEW_BEYOND = 0.01  # of all splats: so few are not seen
FARTHEST = 2**23 - 1  # of a 24-bit number
NEAR = 256.0  # times the extent of most splats: what lies farther out need not keep its place
WXYZ_OF_XYZW = [3, 0, 1, 2]
XYZW_OF_WXYZ = [1, 2, 3, 0]


@dataclass(frozen=True)
class _Packed:
    """The columns of a file, before they mean anything."""

    fractional_bits: int
    flags: int
    positions: np.ndarray  # [N, 3, 3] uint8, little-endian
    opacities: np.ndarray  # [N] uint8
    colors: np.ndarray  # [N, 3] uint8
    scales: np.ndarray  # [N, 3] uint8
    rotations: np.ndarray  # [N, 4] uint8, or [N, 3] in version 2
    sh: np.ndarray  # [N, K-1, 3] uint8


def write_spz(path: Path | str, gaussians: Gaussians, *, antialiased: bool = False) -> None:
    """Write the Gaussians to `path` as SPZ version 3, in their order.

    `antialiased`: a flag says that they were trained so. Raises ValueError, and writes nothing, when there
    are none, a parameter is not finite, one lies too far out, or the file cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    try:
        grid = _grid_of(model.means)
    except ValueError as error:
        raise ValueError(f"{path} cannot be written: {error}") from error
    num, num_shn = len(model), model.shN.shape[1]
    packed = _Packed(
        grid.bits,
        ANTIALIASED if antialiased else 0,
        positions=np.empty((num, 3, 3), np.uint8),
        opacities=np.empty(num, np.uint8),
        colors=np.empty((num, 3), np.uint8),
        scales=np.empty((num, 3), np.uint8),
        rotations=np.empty((num, 4), np.uint8),
        sh=np.empty((num, num_shn, 3), np.uint8),
    )
    for rows, chunk in model.chunks():
        part = half_turned(grid.within(chunk), ABOUT_X)
        fixed = np.floor(np.ldexp(part.means.astype(np.float64), grid.bits) + 0.5).astype("<i4")
        packed.positions[rows] = fixed.view(np.uint8).reshape(len(part), 3, 4)[:, :, :3]
        packed.opacities[rows] = opacity_bytes(part.opacities)
        packed.colors[rows] = rounded(255.0 * COLOR_SCALE * part.sh0 + 127.5, 0, 255)
        packed.scales[rows] = rounded(LOG_SCALE_STEPS * (part.scales + LOG_SCALE_SHIFT), 0, 255)
        packed.rotations[rows] = _smallest_three(part.quats)
        steps = SH_STEPS[:num_shn]
        codes = np.floor(np.floor(128.0 * part.shN + 128.5) / steps + 0.5) * steps
        packed.sh[rows] = np.clip(codes, 0, 255)
    header = HEADER.pack(MAGIC, 3, num, gaussians.sh_degree, grid.bits, packed.flags, 0)
    columns = (packed.positions, packed.opacities, packed.colors, packed.scales, packed.rotations, packed.sh)
    write_file(path, _gzipped(header + b"".join(column.tobytes() for column in columns)))


def beyond_spz(gaussians: Gaussians) -> list[str]:
    """Return a sentence on each kind of sizes and places for which SPZ has no number, if there are any."""
    low, high = -LOG_SCALE_SHIFT, 255 / LOG_SCALE_STEPS - LOG_SCALE_SHIFT
    scales = gaussians.scales.detach()
    sentences = []
    for beyond, text in ((scales < low, SMALLER), (scales > high, LARGER)):
        num = int(beyond.any(dim=1).sum())
        if num > FEW_BEYOND * len(gaussians):
            sentences.append(text.format(num, len(gaussians), math.exp(low), math.exp(high)))
    means = gaussians.means.detach().cpu().numpy()
    moved = int((np.abs(means).max(axis=1) > _grid_of(means).limit).sum()) if len(means) else 0
    if moved > FEW_BEYOND * len(means):
        sentences.append(NEARER.format(moved, len(means)))
    return sentences


def _gzipped(content: bytes) -> bytes:
    """Return `content` as one gzip stream, its blocks compressed by all cores."""
    view = memoryview(content)
    blocks = [view[start : start + GZIP_BLOCK] for start in range(0, len(view), GZIP_BLOCK)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        deflated = list(pool.map(_deflated, blocks))
    start = GZIP + bytes([8, 0, 0, 0, 0, 0, 0, 255])
    end = struct.pack("<II", zlib.crc32(content), len(content) & 0xFFFFFFFF)
    return b"".join([start, *deflated, EMPTY_LAST_BLOCK, end])


def _deflated(block: memoryview) -> bytes:
    # Runs and few distinct values are what there is: a search for longer repeats takes four times as long;
    # it makes files without view-dependent color half a percent smaller, and others larger.
    compressor = zlib.compressobj(wbits=-15, memLevel=9, strategy=zlib.Z_RLE)
    return compressor.compress(block) + compressor.flush(zlib.Z_FULL_FLUSH)


@dataclass(frozen=True)
class _Grid:
    """The numbers that coordinates have in a file: 24 bits, of which `bits` lie behind the point.

    What lies beyond `limit` is brought nearer to `center` [3] and made smaller by as much: from there it
    looks the same.
    """

    bits: int
    center: np.ndarray
    limit: float

    def within(self, model: ModelArrays) -> ModelArrays:
        """Return splats all of which the file can place."""
        if not np.abs(model.means).max(initial=0.0) > self.limit:
            return model
        offset = model.means.astype(np.float64) - self.center
        room = np.where(offset > 0.0, self.limit - self.center, self.limit + self.center)
        nearer = np.min(room / np.maximum(np.abs(offset), room), axis=1, keepdims=True)
        return replace(model, means=self.center + nearer * offset, scales=model.scales + np.log(nearer))


def _grid_of(means: np.ndarray) -> _Grid:
    """Return the grid of a model: its step follows most Gaussians' extent, as scenes have any scale.

    Of 24 bits 12 lie behind the point, as usual, in a scene of 4 units. A few splats far away must not make
    it coarse: they need not fit. Raises ValueError for a model too far from the origin.
    """
    sample = means[:: max(1, len(means) // 100_000)].astype(np.float64)
    center = np.median(sample, axis=0)
    extent = max(float(np.quantile(np.abs(sample - center), 0.9)), 1e-6)
    reach = float(np.abs(center).max()) + min(NEAR * extent, float(np.abs(means - center).max()))
    if not reach < FARTHEST - 1:
        raise ValueError(f"SPZ holds coordinates up to {FARTHEST}, one is {reach:g}")
    wanted = 14 - math.floor(math.log2(extent))
    possible = math.floor(math.log2((FARTHEST - 1) / max(reach, 1e-6)))
    bits = max(0, min(wanted, possible, 24))
    return _Grid(bits, center, math.ldexp(FARTHEST - 1, -bits))


def _smallest_three(quats: np.ndarray) -> np.ndarray:
    """Return rotations as [n, 4] bytes: the largest's index, three signs and magnitudes in 1 + 9 bits."""
    index, others = without_largest(unit_quats(quats)[:, XYZW_OF_WXYZ])
    sizes = rounded(np.abs(others) * (511.0 / SQRT_HALF), 0, 511)
    thirds = (others < 0.0).astype(np.uint32) << 9 | sizes
    codes = index.astype(np.uint32) << 30 | thirds[:, 0] << 20 | thirds[:, 1] << 10 | thirds[:, 2]
    return codes.astype("<u4").view(np.uint8).reshape(-1, 4)


def read_spz(path: Path | str) -> SplatFile:
    """Return the content of an SPZ file, version 2, 3 or 4, with SH up to degree 3.

    Raises ValueError, naming the file and the reason, for a file that is missing, damaged or of another kind.
    """
    path = Path(path)
    content = read_file(path)
    packed = _streams_of_zstd(path, content) if content[:4] == MAGIC else _stream_of_gzip(path, content)
    num = len(packed.opacities)
    model = ModelArrays(
        means=np.empty((num, 3), np.float32),
        quats=np.empty((num, 4), np.float32),
        scales=packed.scales.astype(np.float32) / LOG_SCALE_STEPS - LOG_SCALE_SHIFT,
        opacities=opacity_logits(packed.opacities),
        sh0=(packed.colors.astype(np.float32) / 255 - 0.5) / COLOR_SCALE,
        shN=np.empty(packed.sh.shape, np.float32),
    )
    fixed = np.zeros((min(num, 65_536), 3, 4), np.uint8)
    for rows, chunk in model.chunks():
        # The lowest byte stays 0, so that the sign is the sign of a 32-bit number.
        fixed[: len(chunk), :, 1:] = packed.positions[rows]
        whole = fixed[: len(chunk)].reshape(-1).view("<i4").reshape(-1, 3)
        chunk.means[:] = np.ldexp(whole.astype(np.float64), -8 - packed.fractional_bits)
        chunk.quats[:] = _rotations(packed.rotations[rows])
        chunk.shN[:] = (packed.sh[rows].astype(np.float32) - 128) / 128
        turned = half_turned(chunk, ABOUT_X)
        chunk.means[:], chunk.quats[:], chunk.shN[:] = turned.means, turned.quats, turned.shN
    return splats_read(path, model, antialiased=bool(packed.flags & ANTIALIASED))


def _rotations(codes: np.ndarray) -> np.ndarray:
    """Return the quaternions (w, x, y, z) of [n, 4] bytes of version 3, or [n, 3] of version 2."""
    if codes.shape[1] == 3:
        xyz = codes.astype(np.float32) / 127.5 - 1
        w = np.sqrt(np.maximum(0.0, 1 - (xyz * xyz).sum(axis=1, keepdims=True)))
        return unit_quats(np.concatenate([w, xyz], axis=1))
    whole = np.ascontiguousarray(codes).view("<u4")[:, 0]
    thirds = np.stack([whole >> np.uint32(shift) & np.uint32(1023) for shift in (20, 10, 0)], axis=1)
    sizes = (thirds & np.uint32(511)).astype(np.float32) * np.float32(SQRT_HALF / 511)
    others = np.where(thirds >> np.uint32(9), -sizes, sizes)
    return with_largest((whole >> np.uint32(30)).astype(np.intp), others)[:, WXYZ_OF_XYZW]


def _column_shapes(path: Path, header: bytes) -> list[tuple[int, ...]]:
    """Return the shapes of the columns that a header promises."""
    if len(header) < HEADER.size:
        raise ValueError(f"{path} is cut off within its header")
    magic, version, num, degree, _, _, _ = HEADER.unpack_from(header)
    if magic != MAGIC:
        raise ValueError(f"{path} is compressed by gzip, but no SPZ file: unpack it and open what is in it")
    if version not in (2, 3, 4):
        raise ValueError(f"{path} is SPZ version {version}; versions 2, 3 and 4 can be read")
    if degree >= len(NUM_COEFFICIENTS):
        raise ValueError(f"{path} has SH of degree {degree}; degrees 0 to 3 can be read")
    if num == 0:
        raise ValueError(f"{path} holds no splats")
    rotation = 3 if version == 2 else 4
    return [(num, 3, 3), (num,), (num, 3), (num, 3), (num, rotation), (num, NUM_COEFFICIENTS[degree], 3)]


def _require_memory(path: Path, shapes: list[tuple[int, ...]]) -> None:
    num_shN = shapes[-1][1]
    require_memory(path, shapes[0][0], num_shN, MORE_EACH + MORE_SHN * num_shN)


def _stream_of_gzip(path: Path, content: bytes) -> _Packed:
    """Return the columns of version 2 or 3."""
    if content[:2] != GZIP:
        raise ValueError(f"{path} is not an SPZ file: it is neither gzip nor begins with {MAGIC.decode()}")
    stream = zlib.decompressobj(wbits=31)
    try:
        header = stream.decompress(content, HEADER.size)
        shapes = _column_shapes(path, header)
        if sum(math.prod(shape) for shape in shapes) > MOST_EXPANSION * len(content):
            raise ValueError(f"{path} is damaged: its header promises {shapes[0][0]} splats, too many for it")
        _require_memory(path, shapes)
        _, version, _, _, bits, flags, _ = HEADER.unpack(header)
        if version == 4:
            raise ValueError(f"{path} is damaged: SPZ version 4 is not gzip")
        columns = []
        for shape in shapes:
            column = _inflated(stream, math.prod(shape))
            if len(column) < math.prod(shape):
                raise ValueError(f"{path} is cut off: it ends before {shape[0]} splats are complete")
            columns.append(np.frombuffer(column, np.uint8).reshape(shape))
        extensions = _inflated(stream, 1 << 20)
    except zlib.error as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if flags & HAS_EXTENSIONS:
        _refuse_other_axes(path, extensions)
    elif extensions:
        raise ValueError(f"{path} is damaged: data follow its splats")
    if not stream.eof:
        raise ValueError(f"{path} is cut off: its last bytes, with the checksum, are missing")
    return _Packed(bits, flags, *columns)


def _inflated(stream: zlib._Decompress, num_bytes: int) -> bytes:  # type: ignore[name-defined]
    """Return the next `num_bytes` of the stream, or fewer at its end."""
    return stream.decompress(stream.unconsumed_tail, num_bytes) if num_bytes else b""


def _up_to(size: int, read: Callable[[int], bytes]) -> bytes:
    """Return the next `size` bytes of a stream, or fewer at its end; memory is claimed as they come."""
    parts, left = [], size
    while left and (part := read(min(left, READ_AT_ONCE))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _streams_of_zstd(path: Path, content: bytes) -> _Packed:
    """Return the columns of version 4."""
    import zstandard

    shapes = _column_shapes(path, content)
    _require_memory(path, shapes)
    _, version, _, _, bits, flags, num_streams = HEADER.unpack_from(content)
    if version != 4 or len(content) < HEADER_4_BYTES:
        raise ValueError(f"{path} is SPZ version {version} without its compression: compress it with gzip")
    (table,) = struct.unpack_from("<I", content, HEADER.size)
    end = table + 16 * num_streams
    filled = [shape for shape in shapes if math.prod(shape)]
    if table < HEADER_4_BYTES or end > len(content) or num_streams != len(filled):
        raise ValueError(f"{path} is damaged: its table of {num_streams} streams is not complete")
    if flags & HAS_EXTENSIONS:
        _refuse_other_axes(path, content[HEADER_4_BYTES:table])
    columns = []
    for number, shape in enumerate(filled):
        packed_size, size = struct.unpack_from("<QQ", content, table + 16 * number)
        if size != math.prod(shape) or end + packed_size > len(content):
            raise ValueError(f"{path} is cut off or damaged: stream {number} has the wrong size")
        try:
            # Read as a stream, since what a frame says of its own size may be a lie.
            stream = zstandard.ZstdDecompressor().stream_reader(content[end : end + packed_size])
            column = _up_to(size, stream.read)
        except zstandard.ZstdError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        if len(column) != size:
            raise ValueError(f"{path} is damaged: stream {number} ends too early")
        columns.append(np.frombuffer(column, np.uint8).reshape(shape))
        end += packed_size
    if end != len(content):
        raise ValueError(f"{path} is damaged: data follow its last stream")
    columns += [np.empty(shape, np.uint8) for shape in shapes[len(filled) :]]
    return _Packed(bits, flags, *columns)


def _refuse_other_axes(path: Path, extensions: bytes) -> None:
    """Raise ValueError when the records of extensions say that the axes are not right, up, back."""
    position = 0
    while position + 8 <= len(extensions):
        kind, size = struct.unpack_from("<II", extensions, position)
        value = extensions[position + 8 : position + 8 + size]
        if kind == COORDINATE_SYSTEM and value not in (bytes(4), RIGHT_UP_BACK.to_bytes(4, "little")):
            raise ValueError(f"{path} has axes other than SPZ's usual right, up, back, which cannot be read")
        position += 8 + size
