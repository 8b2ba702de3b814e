"""The Scene: cameras, photographs and sparse points in one normalised frame, whatever the files were."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.camera import Camera


@dataclass(frozen=True, eq=False)
class View:
    """One photograph and the camera that took it.

    `camera` is undistorted, in the scene's frame, of the size that `scene.images` delivers.
    """

    name: str  # the image's path below its folder, "0001.jpg": the key for sorting and for the split
    camera: Camera
    image_path: Path
    mask_path: Path | None = None


@dataclass(frozen=True, eq=False)
class Scene:
    """A capture that can be trained on.

    `views` are sorted by name. `points` [P, 3] float32 and `colors` [P, 3] uint8 are the sparse points (P may be 0).
    `transform` [4, 4] float64 is the similarity that brought the files' world to this frame: z up, the cameras'
    common point of attention at the origin, the farthest camera at distance 1 from the cameras' mean.
    `extent` is the radius of the cameras around their mean, the unit of learning rates and of size rules.
    """

    path: Path
    format: str  # "COLMAP", "transforms.json", "Blender"
    views: tuple[View, ...]
    points: np.ndarray
    colors: np.ndarray
    transform: np.ndarray
    extent: float
    test_every: int = 8
    notes: tuple[str, ...] = ()  # plain sentences for the user: missing files counted, points dropped ...

    @property
    def cameras(self) -> tuple[Camera, ...]:
        """Return the cameras of all views, sorted by image name."""
        return tuple(view.camera for view in self.views)
