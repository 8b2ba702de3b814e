"""Poses that are estimated again come into the frame of those of before: what was trained stays in place."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pycolmap

from splatstudio.poses.store import PoseStore
from splatstudio.scene.normalize import KeptFrame, normalizing_transform, read_kept_frame

FEWEST_PAIRS = 30  # points that both models have
MOST_PAIRS = 4000
CLOSE = 0.02  # times the points' distance from their middle: points that are farther apart do not agree
FEWEST_AGREEING = 0.5  # of the pairs
# Of the photos that both have, at the median: beyond it splats and photos would not fit. Measured
# of 14 photos of a drawn room: 0.03 of the radius after 4 of them, 0.007 after 7, 0.002 after 10.
CENTERS_WITHIN = 0.05  # times the cameras' radius
TURNED_WITHIN = 2.0  # degrees
# Times these of poses that were kept while the mapping went on: who trains on them wants to go on, and splats
# follow photos that have moved by a little.
SO_FAR = 3.0


@dataclass(frozen=True, eq=False)
class EarlierPoses:
    """The model of before and its frame."""

    model: pycolmap.Reconstruction
    frame: KeptFrame


def earlier_poses(store: PoseStore) -> EarlierPoses | None:
    """Return the poses that are in the store, None where there are none or they are damaged."""
    folder = store.sparse / "0"
    if not store.has_poses:
        return None
    try:
        model, kept = pycolmap.Reconstruction(folder), read_kept_frame(folder)
    except (ValueError, RuntimeError, OSError):  # they are made anew
        return None
    return EarlierPoses(model, kept or _frame_of(model))


def _frame_of(model: pycolmap.Reconstruction) -> KeptFrame:
    """Return the frame that a scene of this model, whose z is up, gets."""
    images = sorted((model.image(number) for number in model.reg_image_ids()), key=lambda image: image.name)
    viewmats = np.tile(np.eye(4), (len(images), 1, 1))
    viewmats[:, :3] = [image.cam_from_world().matrix() for image in images]
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    transform = normalizing_transform(viewmats, points, up=np.array([0.0, 0.0, 1.0]))
    rows = tuple(tuple(row) for row in transform.tolist())
    return KeptFrame(rows, (tuple(image.name for image in images),))


def joined_frame(
    model: pycolmap.Reconstruction, earlier: EarlierPoses, *, so_far: bool = False
) -> KeptFrame | None:
    """Bring `model` into the frame of the poses of before; return that, with what photos have joined.

    None, and the model as it is, where the two do not agree; `so_far`: those of before were of a mapping that
    had not ended, and may differ by more.
    """
    tolerance = SO_FAR if so_far else 1.0
    pairs = _common_points(model, earlier.model)
    if len(pairs[0]) < FEWEST_PAIRS:
        return None
    ours, theirs = pairs
    options = pycolmap.RANSACOptions()
    options.max_error = (
        tolerance * CLOSE * float(np.median(np.linalg.norm(theirs - np.median(theirs, axis=0), axis=1)))
    )
    options.random_seed = 0
    found = pycolmap.estimate_sim3d_robust(ours, theirs, options)
    if found is None:
        return None
    transform, num_inliers = found["tgt_from_src"], found["num_inliers"]  # pyright: ignore[reportIndexIssue]
    if num_inliers < FEWEST_AGREEING * len(ours):
        return None
    moved = pycolmap.Reconstruction(model)
    moved.transform(transform)
    if not _agree(moved, earlier.model, tolerance):
        return None
    model.transform(transform)
    known = set(earlier.frame.names)
    names = {model.image(number).name for number in model.reg_image_ids()}
    new = tuple(sorted(names - known))
    return KeptFrame(earlier.frame.transform, (*earlier.frame.batches, *([new] if new else [])))


def _common_points(
    model: pycolmap.Reconstruction, earlier: pycolmap.Reconstruction
) -> tuple[np.ndarray, np.ndarray]:
    """Return the places [P, 3] of points in both models that come from the same feature of a photo."""
    ours = {model.image(number).name: model.image(number) for number in model.reg_image_ids()}
    numbers = np.array(sorted(earlier.point3D_ids()), dtype=np.int64)
    if len(numbers) > MOST_PAIRS:
        numbers = np.random.default_rng(0).choice(numbers, MOST_PAIRS, replace=False)
    pairs: list[tuple[np.ndarray, np.ndarray]] = []
    for number in numbers.tolist():
        point = earlier.point3D(number)
        for element in point.track.elements:
            then = earlier.image(element.image_id)
            now = ours.get(then.name)
            if now is None or element.point2D_idx >= now.num_points2D():
                continue
            feature = now.points2D[element.point2D_idx]
            # A photo that has changed has other features.
            same = np.allclose(feature.xy, then.points2D[element.point2D_idx].xy, atol=0.01)
            if same and feature.has_point3D():
                pairs.append((model.point3D(feature.point3D_id).xyz, point.xyz))
                break
    places = np.array(pairs, dtype=np.float64).reshape(-1, 2, 3)
    return places[:, 0], places[:, 1]


def _agree(model: pycolmap.Reconstruction, earlier: pycolmap.Reconstruction, tolerance: float) -> bool:
    """Return whether the photos that both have stand and look the same."""
    ours = {model.image(number).name: model.image(number) for number in model.reg_image_ids()}
    theirs = [earlier.image(number) for number in earlier.reg_image_ids()]
    common = [(ours[image.name], image) for image in theirs if image.name in ours]
    if 2 * len(common) < len(theirs):
        return False
    centers = np.array([[a.projection_center(), b.projection_center()] for a, b in common])
    radius = float(np.linalg.norm(centers[:, 1] - centers[:, 1].mean(axis=0), axis=1).max())
    apart = float(np.median(np.linalg.norm(centers[:, 0] - centers[:, 1], axis=1)))
    turned = [
        np.degrees((a.cam_from_world().rotation * b.cam_from_world().rotation.inverse()).angle())
        for a, b in common
    ]
    turned_by = float(np.median(turned))
    return apart < tolerance * CENTERS_WITHIN * radius and turned_by < tolerance * TURNED_WITHIN
