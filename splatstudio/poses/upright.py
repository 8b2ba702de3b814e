"""Which way is up in a model, and how large it is: by GPS, by phones' sense of gravity, by the cameras."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pycolmap

from splatstudio.poses.records import InputPhoto
from splatstudio.scene.normalize import held, median_distance, rotation_to_z, upward

FEWEST_PLACES = 5  # photos with GPS; with fewer, chance decides
GPS_METERS = 3.0  # by which phones and small drones are wrong
# Cameras whose places spread less than these times that tell neither size nor direction.
SPREAD_FOR_SIZE, SPREAD_FOR_UP = 5.0, 4.0
AGREEING_DEGREES = 12.0  # within which phones agree on what is down, at the median


@dataclass(frozen=True)
class Upright:
    """Where the upward direction is from, how far GPS is from the model (meters, None: no size), a note."""

    up: str
    meters: float | None = None
    note: str = ""


def make_upright(
    model: pycolmap.Reconstruction, photos: Mapping[str, InputPhoto], places: Mapping[str, np.ndarray]
) -> Upright:
    """Turn the model so that z is up, in meters where GPS tells the size; say how well that is known.

    `photos` are those of the model by name, `places` [3] meters (east, north, up) by GPS, where known.
    """
    images = [model.image(image) for image in model.reg_image_ids()]
    aligned = _by_gps(model, images, places)
    down = _gravity(images, photos)
    if down is not None:
        _turn(model, -down)
        return Upright("gravity, as the phone measured it", *(aligned or (None, "")))
    if aligned is not None and _flatness(places) > SPREAD_FOR_UP:
        return Upright("GPS", *aligned)
    rotations = np.stack([image.cam_from_world().rotation.matrix() for image in images])
    centers = np.stack([image.projection_center() for image in images])
    orientations = tuple(photos[image.name].orientation for image in images)
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    depth = median_distance(points, centers.mean(axis=0))
    _turn(model, upward(held(rotations, orientations), centers, depth))
    return Upright("how the cameras were held", *(aligned or (None, "")))


def _by_gps(
    model: pycolmap.Reconstruction, images: list[pycolmap.Image], places: Mapping[str, np.ndarray]
) -> tuple[float, str] | None:
    """Bring the model to the places of GPS; return the typical distance in meters and a note, or None."""
    known = [image for image in images if image.name in places]
    if len(known) < FEWEST_PLACES:
        return None
    theirs = np.stack([places[image.name] for image in known])
    spread = float(np.linalg.norm(theirs - theirs.mean(axis=0), axis=1).max())
    if spread < SPREAD_FOR_SIZE * GPS_METERS:
        return None
    ours = np.stack([image.projection_center() for image in known])
    options = pycolmap.RANSACOptions()
    options.max_error = 2 * GPS_METERS
    options.random_seed = 0
    found = pycolmap.estimate_sim3d_robust(ours, theirs, options)
    if found is None:
        return None
    # One position that is far off, as a first one often is, makes no large capture of a small one.
    inliers = found["inlier_mask"]  # pyright: ignore[reportIndexIssue] - the stubs call it a Sim3d
    agreeing = theirs[np.asarray(inliers, bool)]
    spread = float(np.linalg.norm(agreeing - agreeing.mean(axis=0), axis=1).max()) if len(agreeing) else 0.0
    if len(agreeing) < FEWEST_PLACES or spread < SPREAD_FOR_SIZE * GPS_METERS:
        return None
    model.transform(found["tgt_from_src"])  # pyright: ignore[reportIndexIssue] - the stubs call it a Sim3d
    after = np.stack([image.projection_center() for image in known])
    typical = float(np.median(np.linalg.norm(after - theirs, axis=1)))
    share = 100 * typical / (2 * spread)
    return typical, f"sizes are in meters by GPS, good to about {max(share, 0.1):.1f} % ({len(known)} photos)"


def _flatness(places: Mapping[str, np.ndarray]) -> float:
    """Return how far the places spread across their main direction, in errors of GPS: 0 for a line."""
    spread = np.stack(list(places.values()))
    values = np.linalg.svd(spread - spread.mean(axis=0), compute_uv=False) / np.sqrt(len(spread))
    return float(values[1]) / GPS_METERS


def _gravity(images: list[pycolmap.Image], photos: Mapping[str, InputPhoto]) -> np.ndarray | None:
    """Return the unit vector [3] downward in which the photos' phones agree, None where they do not."""
    downward = [
        image.cam_from_world().rotation.matrix().T @ np.array(gravity)
        for image in images
        if (gravity := photos[image.name].gravity) is not None
    ]
    if len(downward) < min(FEWEST_PLACES, len(images)):
        return None
    vectors = np.stack(downward)
    middle = np.median(vectors, axis=0)
    length = float(np.linalg.norm(middle))
    if not length > 0.5:
        return None
    angles = np.degrees(np.arccos(np.clip(vectors @ middle / length, -1, 1)))
    return middle / length if float(np.median(angles)) < AGREEING_DEGREES else None


def _turn(model: pycolmap.Reconstruction, up: np.ndarray) -> None:
    rotation = pycolmap.Rotation3d(rotation_to_z(up))
    model.transform(pycolmap.Sim3d(1.0, rotation, np.zeros(3)))
