"""Between Gaussians and the arrays that files are made of: whole files, checked values, unit quaternions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import ALWAYS_READ, read_input
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.operating_system import free_memory
from splatstudio.scene.ply_header import UNSAID, Orientation

NUM_SHN = {0: 0, 3: 1, 8: 2, 15: 3}  # coefficients beyond the first, and the SH degree that they make
OPAQUE = 15.0  # the logit of an opacity that cannot be told from 1
NO_SIZE = -30.0  # the logarithm of a size that cannot be told from 0
CHUNK = 65_536  # Gaussians handled at a time, so that temporary arrays stay small

ABOUT_X = (1.0, -1.0, -1.0)
ABOUT_Z = (-1.0, -1.0, 1.0)
# The axes of which each SH basis function beyond the first holds an odd power, in the coefficients' order.
ODD_AXES = ["y", "z", "x", "xy", "yz", "", "xz", "", "y", "xyz", "y", "z", "x", "z", "x"]


MODEL_BYTES, SHN_BYTES = 56, 12  # of a Gaussian, and of each of its coefficients above degree 0


@dataclass(frozen=True, eq=False)
class SplatFile:
    """What a file of Gaussians holds: they, in the file's coordinates, and what it says of them."""

    gaussians: Gaussians
    antialiased: bool = False  # trained so, and so to be drawn
    step: int | None = None  # of the training, where the file tells it
    notes: tuple[str, ...] = ()  # sentences for the user on what was left out or taken otherwise
    num_left_out: int = 0  # splats with a value that is not finite
    orientation: Orientation = UNSAID

    def __len__(self) -> int:
        return len(self.gaussians)

    @property
    def sh_degree(self) -> int:
        """Return the degree of the spherical harmonics, 0..3."""
        return self.gaussians.sh_degree


@dataclass(frozen=True)
class ModelArrays:
    """The six tensors of Gaussians as float32 arrays in memory, every value finite."""

    means: np.ndarray  # [N, 3]
    quats: np.ndarray  # [N, 4] w, x, y, z
    scales: np.ndarray  # [N, 3] natural logarithm
    opacities: np.ndarray  # [N] logit
    sh0: np.ndarray  # [N, 3]
    shN: np.ndarray  # [N, K-1, 3]

    def __len__(self) -> int:
        return len(self.means)

    @property
    def sh_degree(self) -> int:
        """Return the degree of the spherical harmonics, 0..3."""
        return NUM_SHN[self.shN.shape[1]]

    def __getitem__(self, index: slice | np.ndarray) -> ModelArrays:
        """Return views of a slice of rows, or copies of the rows of the indices [M]."""
        if isinstance(index, slice):
            return ModelArrays(*(part[index] for part in vars(self).values()))
        # `take` needs half the time of part[index].
        return ModelArrays(*(part.take(index, axis=0) for part in vars(self).values()))

    def without_shN(self) -> ModelArrays:
        """Return the same Gaussians without view-dependent color, the bulk of what a choice copies."""
        return replace(self, shN=self.shN[:, :0])

    def chunks(self) -> list[tuple[slice, ModelArrays]]:
        """Return views of consecutive rows, with the rows they are."""
        rows = [slice(start, min(start + CHUNK, len(self))) for start in range(0, len(self), CHUNK)]
        return [(part, self[part]) for part in rows]


def arrays_to_write(path: Path, gaussians: Gaussians) -> ModelArrays:
    """Return the values of `gaussians`, to be written to `path`.

    Raises ValueError when there are none, or when one is not finite.
    """
    if len(gaussians) == 0:
        raise ValueError(f"{path} is not written: the model has no splats")
    arrays = {name: part.detach().float().cpu().numpy() for name, part in gaussians.tensors().items()}
    for name, array in arrays.items():
        _refuse_non_finite(path, name, array, "cannot be written")
    return ModelArrays(**{**arrays, "sh0": arrays["sh0"][:, 0]})


def splats_read(
    path: Path, arrays: ModelArrays, *, antialiased: bool = False, step: int | None = None
) -> SplatFile:
    """Return the content of a file at `path` whose values are `arrays`.

    Splats with a value that is not finite are left out, and a note counts them. Raises ValueError where that
    is more than half of them: then the file is damaged.
    """
    bounded = replace(
        arrays,
        opacities=without_infinite_opacities(arrays.opacities),
        scales=without_infinite_scales(arrays.scales),
    )
    finite = np.ones(len(arrays), bool)
    for part in vars(bounded).values():
        if not all_finite(part):
            finite &= np.isfinite(part.reshape(len(arrays), -1)).all(axis=1)
    kept, notes, num_out = bounded, (), len(arrays) - int(finite.sum())
    if num_out:
        if 2 * num_out > len(arrays):
            for name, part in vars(bounded).items():
                _refuse_non_finite(path, name, part, "is damaged")
        kept = bounded[np.flatnonzero(finite)]
        notes = (left_out_note(path, num_out, len(arrays)),)
    parts = {**vars(kept), "sh0": kept.sh0.reshape(len(kept), 1, 3)}
    gaussians = Gaussians(**{name: torch.from_numpy(_owned(part)) for name, part in parts.items()})
    return SplatFile(gaussians, antialiased, step, notes, num_out)


def without_infinite_opacities(logits: np.ndarray) -> np.ndarray:
    """Return the logits with finite ones for opacities of exactly 0 and 1, whose logits are infinite."""
    return logits if all_finite(logits) else np.where(np.isinf(logits), np.copysign(OPAQUE, logits), logits)


def without_infinite_scales(scales: np.ndarray) -> np.ndarray:
    """Return the log scales with finite ones for sizes of exactly 0, as of flat splats."""
    return scales if all_finite(scales) else np.where(np.isneginf(scales), NO_SIZE, scales)


def left_out_note(path: Path, num_out: int, num: int) -> str:
    """Return the sentence that counts the splats that are left out, `num_out` of `num`."""
    verb = (
        "have values that are not finite and are" if num_out > 1 else "has a value that is not finite and is"
    )
    return f"{num_out:,} of the {num:,} splats in {path} {verb} left out"


def _owned(array: np.ndarray) -> np.ndarray:
    """Return `array` as contiguous float32 that may be written to; a copy only where it must be one."""
    array = np.ascontiguousarray(array, np.float32)
    return array if array.flags.writeable else array.copy()


def all_finite(array: np.ndarray) -> bool:
    """Return whether no value is infinite or not a number."""
    # A sum is finite only if all its terms are, and needs no table of booleans; large terms may overflow it.
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum())) or bool(np.isfinite(array).all())


def _refuse_non_finite(path: Path, name: str, array: np.ndarray, verdict: str) -> None:
    """Raise ValueError naming the first value that is not finite."""
    if all_finite(array):
        return
    wrong = np.argwhere(~np.isfinite(array))
    if len(wrong):
        value = array[tuple(wrong[0])]
        raise ValueError(f"{path} {verdict}: {name!r} of splat {wrong[0][0]} is {value}")


def require_memory(path: Path, num: int, num_shN: int, more_each: float) -> None:
    """Raise ValueError where the memory that is free holds no `num` Gaussians, and what decoding them takes.

    `num_shN`: the coefficients of each above degree 0; `more_each`: bytes a Gaussian beside the model itself.
    """
    needed = num * (MODEL_BYTES + SHN_BYTES * num_shN + more_each)
    if needed > ALWAYS_READ and needed > (free := free_memory()):
        raise ValueError(
            f"{path} holds {num:,} splats, which need {needed / 1e9:.1f} GB of memory to be opened, and"
            f" {free / 1e9:.1f} GB are free: close other programs, or open it on a machine with more memory"
        )


def read_file(path: Path) -> bytes:
    """Return the whole content of `path`; ValueError when it cannot be read."""
    try:
        return read_input(path)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error


def write_file(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path`, where an older file stays until it is complete; ValueError on failure."""
    try:
        write_durably(path, content)
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror or error}") from error


def half_turned(arrays: ModelArrays, signs: tuple[float, float, float]) -> ModelArrays:
    """Return the same Gaussians in a world whose axes have the signs ABOUT_X or ABOUT_Z.

    Quaternions are conjugated: the own axes of a Gaussian turn along, which its shape does not show.
    """
    axis_signs = np.array(signs, np.float32)
    by_axis = dict(zip("xyz", signs, strict=True))
    sh_signs = np.array([np.prod([by_axis[axis] for axis in axes]) for axes in ODD_AXES], np.float32)
    return ModelArrays(
        means=arrays.means * axis_signs,
        quats=arrays.quats * np.array([1.0, *signs], np.float32),
        scales=arrays.scales,
        opacities=arrays.opacities,
        sh0=arrays.sh0,
        shN=arrays.shN * sh_signs[: arrays.shN.shape[1], None],
    )
