"""The frame of the poses that were estimated first, beside those that replace them: runs go on in it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import read_input

FILE = "frame.json"


@dataclass(frozen=True)
class KeptFrame:
    """What stays when poses are estimated again, in the coordinates of before.

    `transform` [4, 4] is the similarity to the normalized frame as it was made of the first poses. `batches`
    are the photos' names in the order in which they came: those that are held out stay so.
    """

    transform: tuple[tuple[float, float, float, float], ...]
    batches: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if self.matrix.shape != (4, 4) or not np.isfinite(self.matrix).all():
            raise ValueError("the transform is no matrix of 4 x 4 numbers")

    @property
    def matrix(self) -> np.ndarray:
        """Return the transform as an array [4, 4] float64."""
        return np.array(self.transform, dtype=np.float64)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the photos of all batches, in their order."""
        return tuple(name for batch in self.batches for name in batch)


def read_kept_frame(model: Path) -> KeptFrame | None:
    """Return what the folder of a COLMAP model keeps of earlier poses, None where it keeps nothing.

    Raises ValueError for a damaged file: without it the photos of the test would be others.
    """
    import msgspec  # not on every machine that measures the kernels alone

    file = model / FILE
    try:
        return msgspec.json.decode(read_input(file), type=KeptFrame)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise ValueError(
            f"{file} is damaged: delete it, and the scene gets a frame of its own, in which runs of before"
            " cannot go on"
        ) from error


def write_kept_frame(model: Path, frame: KeptFrame) -> None:
    """Write the file; OSError where that is not possible."""
    import msgspec  # not on every machine that measures the kernels alone

    write_durably(model / FILE, msgspec.json.encode(frame) + b"\n")
