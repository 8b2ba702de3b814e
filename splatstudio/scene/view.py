"""A view of a scene: one photograph and the camera that took it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from splatstudio.cameras.camera import Camera
from splatstudio.scene.lens import Lens


@dataclass(frozen=True, eq=False)
class View:
    """One photograph and the camera that took it.

    `camera` is undistorted, in the scene's frame, of the size that `scene.photo` delivers. `lens` and
    `orientation` (EXIF 1..8, to be applied; 1: as stored) tell how the file differs from that.
    """

    name: str  # the image's path below its folder, "0001.jpg": the key for sorting and for the split
    camera: Camera
    image_path: Path
    lens: Lens
    mask_path: Path | None = None
    orientation: int = 1
