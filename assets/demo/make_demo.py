"""Make the bundled demo scene: 48 ray-traced photos of a garden table as a COLMAP dataset.

Run `python assets/demo/make_demo.py` (a few minutes on two cores). It writes images/ and sparse/0/ beside
itself; the same machine gives the same bytes each time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
from pathlib import Path

# One thread each: the processes below already use every core.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import cv2
import numpy as np
from colmap_writer import (
    NO_POINT,
    ImageRecord,
    PointRecord,
    quat_from_matrix,
    write_cameras,
    write_images,
    write_points,
)
from demo_points import KEYPOINT_SIGMA, SparsePoints, corners, sparse_points
from demo_render import Pinhole, render

WIDTH, HEIGHT, FOCAL = 640, 400, 560.0
JPEG_QUALITY = 82
UNMATCHED = 40  # keypoints an image that found no partner, as a real reconstruction has
RINGS = ((17, 1.42, 1.10, 0.81, 0.0), (17, 1.26, 1.50, 0.76, 9.0), (14, 0.92, 1.16, 0.82, 4.0))


def cameras() -> list[Pinhole]:
    """Return the 48 views: two rings around the table and a closer one, held by hand, in meters, z up."""
    rng = np.random.default_rng(501)
    views = []
    for count, radius, height, aim, first in RINGS:
        for number in range(count):
            azimuth = np.radians(first + 360 * number / count + rng.normal(0, 1.6))
            r, h = radius + rng.normal(0, 0.05), height + rng.normal(0, 0.04)
            position = np.array([r * np.cos(azimuth), r * np.sin(azimuth), h])
            target = np.array([*rng.normal(0, 0.03, 2), aim + rng.normal(0, 0.015)])
            roll = np.radians(rng.normal(0, 1.0))
            forward = (target - position) / np.linalg.norm(target - position)
            right = np.cross(forward, [0, 0, 1])
            right /= np.linalg.norm(right)
            down = np.cross(forward, right)
            right, down = (
                np.cos(roll) * right + np.sin(roll) * down,
                np.cos(roll) * down - np.sin(roll) * right,
            )
            views.append(Pinhole(np.stack([right, down, forward]), position, FOCAL, WIDTH, HEIGHT))
    return views


def file_frame() -> tuple[np.ndarray, float, np.ndarray]:
    """Return rotation [3, 3], scale and shift [3] that take meters to the files' world.

    A reconstruction from photos knows neither size nor the vertical, so the files do not either.
    """
    rotation, _ = np.linalg.qr(np.random.default_rng(502).normal(size=(3, 3)))
    return rotation * np.sign(np.linalg.det(rotation)), 2.37, np.array([0.83, -1.92, 3.41])


def photo_name(number: int) -> str:
    """Return the file name of view `number`, from 0."""
    return f"table_{number + 1:03d}.jpg"


def _take(job: tuple[int, Pinhole, Path]) -> int:
    number, camera, folder = job
    photo = render(camera)
    settings = [cv2.IMWRITE_JPEG_QUALITY, JPEG_QUALITY, cv2.IMWRITE_JPEG_OPTIMIZE, 1]
    if not cv2.imwrite(str(folder / photo_name(number)), photo[..., ::-1], settings):
        raise OSError(f"could not write {folder / photo_name(number)}")
    return number


def _photo(path: Path) -> np.ndarray:
    image = cv2.imread(str(path))
    if image is None:
        raise OSError(f"could not read {path} back")
    return image[..., ::-1]


def write_sparse(folder: Path, views: list[Pinhole], photos: list[np.ndarray], sparse: SparsePoints) -> None:
    """Write cameras.bin, images.bin and points3D.bin in the files' world."""
    rotation, scale, shift = file_frame()
    rng = np.random.default_rng(503)
    folder.mkdir(parents=True, exist_ok=True)
    write_cameras(folder / "cameras.bin", WIDTH, HEIGHT, (FOCAL, FOCAL, WIDTH / 2, HEIGHT / 2))
    tracks: list[list[tuple[int, int]]] = [[] for _ in sparse.position]
    images = []
    for number, view in enumerate(views):
        mine = np.flatnonzero(sparse.view == number)
        extra, _ = corners(photos[number])
        extra = extra[rng.choice(len(extra), UNMATCHED, replace=False)] + rng.normal(
            0, KEYPOINT_SIGMA, (UNMATCHED, 2)
        )
        for index, point in enumerate(sparse.point[mine]):
            tracks[point].append((number + 1, index))
        turn = view.rotation @ rotation.T
        center = scale * rotation @ view.position + shift
        ids = np.concatenate(
            [sparse.point[mine].astype(np.uint64) + 1, np.full(UNMATCHED, NO_POINT, np.uint64)]
        )
        keypoints = np.concatenate([sparse.keypoint[mine], extra])
        images.append(
            ImageRecord(
                number + 1, photo_name(number), quat_from_matrix(turn), -turn @ center, keypoints, ids
            )
        )
    write_images(folder / "images.bin", images)
    projected = np.stack(
        [
            views[v].project(sparse.position[p][:, None])[0][:, 0]
            for v, p in zip(sparse.view, sparse.point, strict=True)
        ]
    )
    errors = np.bincount(sparse.point, np.linalg.norm(projected - sparse.keypoint, axis=1)) / np.bincount(
        sparse.point
    )
    place = scale * sparse.position @ rotation.T + shift
    points = [PointRecord(i + 1, place[i], sparse.color[i], errors[i], tracks[i]) for i in range(len(place))]
    write_points(folder / "points3D.bin", points)
    print(f"{len(points)} points, {len(sparse.view)} observations, mean error {errors.mean():.3f} px")


def main() -> None:
    """Render the photos and write the dataset."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    folder = arguments.output / "images"
    folder.mkdir(parents=True, exist_ok=True)
    views = cameras()
    jobs = [(number, view, folder) for number, view in enumerate(views)]
    with multiprocessing.get_context("spawn").Pool(arguments.jobs) as pool:
        for number in pool.imap_unordered(_take, jobs):
            print(f"{photo_name(number)} taken", flush=True)
    photos = [_photo(folder / photo_name(number)) for number in range(len(views))]
    write_sparse(arguments.output / "sparse" / "0", views, photos, sparse_points(views, photos))
    files = [*folder.glob("*.jpg"), *(arguments.output / "sparse" / "0").glob("*.bin")]
    print(f"{sum(file.stat().st_size for file in files) / 1e6:.2f} MB in {len(files)} files")


if __name__ == "__main__":
    main()
