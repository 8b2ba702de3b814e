"""The photographs' cameras beside an exported model: the cameras.json that viewers of Gaussians open."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.files.durable import write_durably


def write_cameras(path: Path, cameras: Iterable[tuple[str, Camera]], transform: np.ndarray) -> None:
    """Write named cameras to `path` after every point p of the world became `transform` [4, 4] @ p.

    The layout is that of the original trainer: `rotation` holds the camera's axes (right, down, forward) as
    columns, `position` its centre, `fx`, `fy` pixels; `cx`, `cy` are the principal point. The cameras are
    those of the undistorted photographs. Raises OSError when the file cannot be written.
    """
    rows = [
        _row(number, name, camera.transformed(transform)) for number, (name, camera) in enumerate(cameras)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, (json.dumps(rows, indent=1) + "\n").encode())


def _row(number: int, name: str, camera: Camera) -> dict[str, Any]:
    return {
        "id": number,
        "img_name": name,
        "width": camera.width,
        "height": camera.height,
        "position": camera.position.tolist(),
        "rotation": camera.camera_to_world[:3, :3].tolist(),
        "fx": float(camera.K[0, 0]),
        "fy": float(camera.K[1, 1]),
        "cx": float(camera.K[0, 2]),
        "cy": float(camera.K[1, 2]),
    }
