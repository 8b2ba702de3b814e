"""The first stages with COLMAP: features of each photo, and matches between photos.

Both go on where they were ended: what the database holds is not made again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from itertools import groupby
from pathlib import Path

import numpy as np
import pycolmap

from splatstudio.operating_system import free_memory, num_processors
from splatstudio.poses.pairs import in_blocks, pairs_of_frames, pairs_of_photos
from splatstudio.poses.records import Announce, InputPhoto, Manifest
from splatstudio.poses.store import PoseStore

# Photos are made smaller for the search of features: more finds hardly more of use, and takes longer.
LONGER_SIDE = 1600
MAX_FEATURES = 8192
THREAD_BYTES = 600_000_000  # that a thread needs at most: the scales of one photo, and its pixels
FIRST_MODEL = "SIMPLE_RADIAL"  # of a lens; the mapping tries one with more parameters at its end


def num_threads() -> int:
    """Return how many threads work: one a processor, fewer where the memory is short."""
    return max(1, min(num_processors(), free_memory() // THREAD_BYTES))


def find_features(store: PoseStore, manifest: Manifest, announce: Announce) -> None:
    """Write the features of all photos into the database; `announce` is told how many are done.

    Photos of one camera share its intrinsics, whose first values are those that EXIF tells.
    """
    options = pycolmap.FeatureExtractionOptions()
    options.num_threads = num_threads()
    options.max_image_size = LONGER_SIDE
    options.sift.max_num_features = MAX_FEATURES
    done = features_in(store.database)
    cameras = _cameras(store, manifest)
    order = sorted(manifest.used, key=lambda photo: (photo.camera, photo.mask is not None, photo.name))
    num_done = sum(photo.name in done for photo in order)
    for (camera, masked), group in groupby(order, key=lambda photo: (photo.camera, photo.mask is not None)):
        names = [photo.name for photo in group if photo.name not in done]
        reader = pycolmap.ImageReaderOptions()
        reader.existing_camera_id = cameras[camera]
        if masked:
            reader.mask_path = str(store.masks)
        size = 2 * options.num_threads
        for chunk in (names[start : start + size] for start in range(0, len(names), size)):
            announce(num_done, len(order), "photos")
            pycolmap.extract_features(
                store.database,
                store.images,
                image_names=chunk,
                reader_options=reader,
                extraction_options=options,
                device=pycolmap.Device.cpu,
            )
            num_done += len(chunk)
    announce(len(order), len(order), "photos")


def features_in(database: Path) -> dict[str, int]:
    """Return how many features each photo in the database has, by name; none where there is no file."""
    if not database.exists():
        return {}
    query = "SELECT images.name, keypoints.rows FROM images JOIN keypoints USING (image_id)"
    query += " JOIN descriptors USING (image_id)"
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute(query).fetchall())


def _cameras(store: PoseStore, manifest: Manifest) -> dict[str, int]:
    """Return the database's number of each camera of the photos; those that are new are written."""
    options = pycolmap.ImageReaderOptions()
    options.camera_model = FIRST_MODEL
    with pycolmap.Database.open(store.database) as database:
        there = {image.name: image.camera_id for image in database.read_all_images()}
        numbers: dict[str, int] = {}
        for photo in manifest.used:
            if photo.name in there:
                numbers.setdefault(photo.camera, there[photo.name])
        for photo in manifest.used:
            if photo.camera not in numbers:
                camera = pycolmap.infer_camera_from_image(store.images / photo.name, options)
                numbers[photo.camera] = camera.camera_id = database.write_camera(camera)
                rig = pycolmap.Rig()
                rig.add_ref_sensor(camera.sensor_id)
                database.write_rig(rig)
        return numbers


def match_features(store: PoseStore, manifest: Manifest, announce: Announce) -> None:
    """Match and verify the photos that may show the same; `announce` is told how many pairs are done."""
    announce(0, 0, "pairs")
    names = [photo.name for photo in manifest.used]
    ids = image_ids(store.database)
    done = _matched(store.database)
    pairs = _pairs(store, manifest.used, ids)
    left = {(i, j) for i, j in pairs if pair_id(ids[names[i]], ids[names[j]]) not in done}
    num_done = len(pairs) - len(left)
    options = pycolmap.FeatureMatchingOptions()
    options.num_threads = num_threads()
    verification = pycolmap.TwoViewGeometryOptions()
    verification.ransac.random_seed = 0
    listed = store.path / "pairs.txt"
    pairing = pycolmap.ImportedPairingOptions()
    pairing.match_list_path = str(listed)
    for block in in_blocks(left):
        announce(num_done, len(pairs), "pairs")
        listed.write_text("".join(f"{names[i]} {names[j]}\n" for i, j in block))
        pycolmap.match_image_pairs(
            store.database,
            matching_options=options,
            pairing_options=pairing,
            verification_options=verification,
            device=pycolmap.Device.cpu,
        )
        num_done += len(block)
    listed.unlink(missing_ok=True)
    announce(len(pairs), len(pairs), "pairs")


def image_ids(database: Path) -> dict[str, int]:
    """Return the database's numbers of the photos, by name."""
    with closing(sqlite3.connect(database)) as connection:
        return dict(connection.execute("SELECT name, image_id FROM images").fetchall())


def pair_id(first: int, second: int) -> int:
    """Return COLMAP's number of a pair of images."""
    return pycolmap.image_pair_to_pair_id(first, second)


def _matched(database: Path) -> set[int]:
    with closing(sqlite3.connect(database)) as connection:
        return {row[0] for row in connection.execute("SELECT pair_id FROM two_view_geometries")}


def _pairs(store: PoseStore, photos: tuple[InputPhoto, ...], ids: Mapping[str, int]) -> set[tuple[int, int]]:
    with pycolmap.Database.open(store.database) as database:

        def descriptors(number: int) -> np.ndarray:
            return database.read_descriptors(ids[photos[number].name]).data

        if all(photo.seconds is not None for photo in photos):
            sources = [photo.source for photo in photos]
            videos = [sources.index(source) for source in sources]
            return pairs_of_frames(videos, descriptors)
        return pairs_of_photos(len(photos), descriptors, places_by_gps(database, photos, ids))


def places_by_gps(
    database: pycolmap.Database, photos: Iterable[InputPhoto], ids: Mapping[str, int]
) -> np.ndarray | None:
    """Return where photos were taken, [N, 3] in meters (east, north, up) from the first one with GPS.

    NaN where one has no position, None where none has. A position without a height is at that of the others.
    """
    told = {prior.corr_data_id.id: prior for prior in database.read_all_pose_priors() if prior.has_position()}
    world = pycolmap.PosePriorCoordinateSystem.WGS84
    known = [told.get(ids[photo.name]) for photo in photos]
    positions = np.array(
        [p.position if p is not None and p.coordinate_system == world else [np.nan] * 3 for p in known]
    )
    positions = positions.reshape(-1, 3)
    heights = positions[np.isfinite(positions[:, 2]), 2]
    without = np.isfinite(positions[:, 0]) & ~np.isfinite(positions[:, 2])
    positions[without, 2] = np.median(heights) if len(heights) else 0.0
    rows = np.flatnonzero(np.isfinite(positions).all(axis=1))
    if not len(rows):
        return None
    places = np.full(positions.shape, np.nan)
    latitude, longitude, height = positions[rows[0]]
    transform = pycolmap.GPSTransform(pycolmap.GPSTransformEllipsoid.WGS84)
    places[rows] = transform.ellipsoid_to_enu(positions[rows], latitude, longitude, height)
    return places
