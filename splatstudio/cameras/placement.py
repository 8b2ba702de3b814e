"""How an exported model lies: in the coordinates of the scene's files, or upright for other viewers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

# From the studio's frame, z up, to the axes that files of Gaussians are read in, y down. Formats with y up
# turn it further.
Z_UP_TO_Y_DOWN = np.array([[1.0, 0, 0, 0], [0, 0, -1.0, 0], [0, 1.0, 0, 0], [0, 0, 0, 1.0]])


@dataclass(frozen=True)
class Placement:
    """Where an exported model lies, and what else tells of it.

    Args:
        upright: Turn it to stand upright in other viewers, centered and scaled as in the studio; by default
            it lies in the coordinates of the scene's files.
        cameras: Also write the photos' cameras, in the same coordinates, to this cameras.json; as the
            training refined them, where it learned poses.
        scene: The scene, for --upright and --cameras; a run and a checkpoint remember theirs.
        images: The scene's folder of photos, where it is another one.
    """

    upright: bool = False
    cameras: Path | None = None
    scene: Path | None = None
    images: str = ""


AS_IN_THE_FILES = Placement()


def knows_no_scene(transform: np.ndarray) -> bool:
    """Return whether a model's `transform` is that of a file of Gaussians that was opened alone."""
    return np.array_equal(transform, np.eye(4))


def export_transform(transform: np.ndarray, *, upright: bool) -> np.ndarray:
    """Return the [4, 4] similarity from a model's frame to that of its exported file.

    `transform` [4, 4] leads from the coordinates of the scene's files to the model's frame. Raises ValueError
    when a model that knows of no scene is to stand upright.
    """
    if not upright:
        return np.linalg.inv(transform)
    if knows_no_scene(transform):
        raise ValueError(
            "a file of splats does not say how it lies in its scene: export it as it is, or name its scene as"
            " well"
        )
    return Z_UP_TO_Y_DOWN
