"""Read the poses of apps that record with Apple's ARKit: Polycam, Record3D, 3D Scanner App.

ARKit's poses are camera to world; the camera looks along -z with y up, and y is up in the world, too.
Sources: the apps' documentation of their raw data, and Apple's of ARCamera.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from splatstudio.scene.capture import read_json
from splatstudio.scene.colmap_model import colmap_pose
from splatstudio.scene.posed_frames import (
    OPENGL_CAMERA,
    Y_UP_TO_Z_UP,
    PosedFrame,
    PosedFrames,
    Values,
    fixed,
    focal_lens,
    view_of,
)

FEW_PICTURES = "3D Scanner App keeps a pose and a depth of each frame, but pictures of some only"


def read_polycam(folder: Path) -> PosedFrames:
    """Return the keyframes of Polycam's raw data: a JSON file of `t_00`..`t_23`, fx, fy, cx, cy for each."""
    frames = []
    for path in _files(folder):
        values = Values(f"{path}", _object(path))
        matrix = np.array([[values.number(f"t_{row}{column}") for column in range(4)] for row in range(3)])
        lens = focal_lens(values, values.size(), *(values.number(name) for name in ("fx", "fy", "cx", "cy")))
        frames.append(PosedFrame(path.stem, _view(values, matrix), fixed(lens)))
    return _frames(folder, frames)


def read_scanner_app(folder: Path) -> PosedFrames:
    """Return the frames of 3D Scanner App: frame_N.json with cameraPoseARFrame and intrinsics, row by row."""
    frames = []
    for path in _files(folder):
        if not path.stem.startswith("frame_"):
            continue
        values = Values(f"{path}", _object(path))
        matrix = values.numbers("cameraPoseARFrame", 16).reshape(4, 4)[:3]
        k = values.numbers("intrinsics", 9).reshape(3, 3)
        frames.append(
            PosedFrame(
                path.stem,
                _view(values, matrix),
                lambda width, height, k=k, values=values: focal_lens(
                    values, (width, height), k[0, 0], k[1, 1], k[0, 2], k[1, 2]
                ),
            )
        )
    return replace(_frames(folder, frames), few_pictures=FEW_PICTURES)


def read_record3d(path: Path) -> PosedFrames:
    """Return the frames of Record3D's metadata: K column by column, poses as quaternions xyzw and places.

    Newer ones tell fx, fy, cx, cy of each frame, too: a phone focuses while it records.
    """
    top = Values(f"{path}", _object(path))
    k, size = top.numbers("K", 9).reshape(3, 3).T, top.size("w", "h")
    lens = focal_lens(top, size, k[0, 0], k[1, 1], k[0, 2], k[1, 2])
    poses, each = top.values.get("poses"), top.values.get("perFrameIntrinsicCoeffs")
    if not isinstance(poses, list):
        raise top.error("has no list of poses")
    if each and not (isinstance(each, list) and len(each) == len(poses)):
        raise top.error("does not have as many perFrameIntrinsicCoeffs as poses")
    frames = []
    for number, pose in enumerate(poses):
        own = {"perFrameIntrinsicCoeffs": each[number]} if each else {}
        values = Values(f"{path}, pose {number},", {"pose": pose, **own})
        if each:
            lens = focal_lens(values, size, *values.numbers("perFrameIntrinsicCoeffs", 4))
        x, y, z, w, *place = values.numbers("pose", 7)
        axes = colmap_pose(np.array([w, x, y, z]), np.zeros(3), values.where)[:3, :3]
        frames.append(PosedFrame(str(number), _view(values, np.column_stack([axes, place])), fixed(lens)))
    return _frames(path, frames)


def _view(values: Values, matrix: np.ndarray) -> np.ndarray:
    """Return world to camera of ARKit's camera to world [3, 4], in a world whose z is up."""
    turned = Y_UP_TO_Z_UP @ matrix
    return view_of(values.error, turned[:, :3] @ OPENGL_CAMERA, turned[:, 3])


def _frames(where: Path, frames: list[PosedFrame]) -> PosedFrames:
    if not frames:
        raise ValueError(f"{where} holds no frame with a pose: export the recording again")
    return PosedFrames(tuple(frames), upright=True)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix == ".json")


def _object(path: Path) -> dict[str, Any]:
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError(f"{path} is no JSON object; export the recording again")
    return values
