"""Writers of COLMAP's three binary files, from the format's description in COLMAP's documentation.

All numbers are little endian. Camera model 1 is PINHOLE (fx, fy, cx, cy).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

NO_POINT = 2**64 - 1  # what COLMAP stores for a keypoint without a 3-D point


@dataclass(frozen=True, eq=False)
class ImageRecord:
    """One registered image: world-to-camera `quat` (w, x, y, z) and `translation`, keypoints [K, 2] px.

    `point_ids` [K] uint64 names each keypoint's 3-D point, or is NO_POINT.
    """

    image_id: int
    name: str
    quat: np.ndarray
    translation: np.ndarray
    keypoints: np.ndarray
    point_ids: np.ndarray


@dataclass(frozen=True, eq=False)
class PointRecord:
    """One 3-D point, its color, mean error in pixels and track of (image id, keypoint index)."""

    point_id: int
    position: np.ndarray
    color: np.ndarray
    error: float
    track: Sequence[tuple[int, int]]


def quat_from_matrix(rotation: np.ndarray) -> np.ndarray:
    """Return the unit quaternion (w, x, y, z), w >= 0, of a rotation [3, 3]."""
    m = rotation
    # The eigenvector of the largest eigenvalue of this matrix is the quaternion (Bar-Itzhack 2000).
    k = np.array(
        [
            [m[0, 0] + m[1, 1] + m[2, 2], 0, 0, 0],
            [m[2, 1] - m[1, 2], m[0, 0] - m[1, 1] - m[2, 2], 0, 0],
            [m[0, 2] - m[2, 0], m[0, 1] + m[1, 0], m[1, 1] - m[0, 0] - m[2, 2], 0],
            [m[1, 0] - m[0, 1], m[0, 2] + m[2, 0], m[1, 2] + m[2, 1], m[2, 2] - m[0, 0] - m[1, 1]],
        ]
    )
    _, vectors = np.linalg.eigh(k, UPLO="L")
    quat = vectors[:, -1]
    return quat if quat[0] >= 0 else -quat


def write_cameras(path: Path, width: int, height: int, params: Sequence[float]) -> None:
    """Write cameras.bin with one PINHOLE camera of id 1; `params` are fx, fy, cx, cy."""
    path.write_bytes(struct.pack("<QIiQQ4d", 1, 1, 1, width, height, *params))


def write_images(path: Path, images: Sequence[ImageRecord]) -> None:
    """Write images.bin; every image is of camera 1."""
    out = [struct.pack("<Q", len(images))]
    keypoint = np.dtype([("xy", "<f8", 2), ("point", "<u8")])
    for image in images:
        out.append(struct.pack("<I7dI", image.image_id, *image.quat, *image.translation, 1))
        out.append(image.name.encode() + b"\0")
        rows = np.empty(len(image.keypoints), keypoint)
        rows["xy"], rows["point"] = image.keypoints, image.point_ids
        out.append(struct.pack("<Q", len(rows)) + rows.tobytes())
    path.write_bytes(b"".join(out))


def write_points(path: Path, points: Sequence[PointRecord]) -> None:
    """Write points3D.bin."""
    out = [struct.pack("<Q", len(points))]
    for point in points:
        color = (int(c) for c in point.color)
        out.append(
            struct.pack("<Q3d3BdQ", point.point_id, *point.position, *color, point.error, len(point.track))
        )
        out.append(np.array(point.track, "<u4").tobytes())
    path.write_bytes(b"".join(out))
