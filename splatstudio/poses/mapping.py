"""The last stage: from matches to poses, with a lens by evidence, upright, and a report of their worth."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pycolmap

from splatstudio.files.durable import sync_folder, write_durably
from splatstudio.poses.features import features_in, image_ids, num_threads, places_by_gps
from splatstudio.poses.records import Announce, Manifest, PoseReport, write_record
from splatstudio.poses.review import review, why_nothing
from splatstudio.poses.store import PoseStore
from splatstudio.poses.upright import make_upright
from splatstudio.poses.words import report_text

SMALLEST_MODEL, FEWEST_POINTS = 3, 8  # photographs, and points of each
RUNAWAY = 1.15  # times the focal length that EXIF tells, or its inverse: beyond it the estimate is doubted
AS_GOOD = 1.10  # times the reprojection error, up to which a model with the told focal length is preferred
BETTER_LENS = 0.97  # times the error, from which on a lens with more parameters is believed
LENS_PHOTOS, LENS_POINTS = 8, 2000  # of one camera, without which nothing more can be said of its lens


def estimate(store: PoseStore, manifest: Manifest, announce: Announce) -> None:
    """Estimate the poses of all photographs whose matches are in the database, and write models and report.

    Raises ValueError, which says what was seen, where no two photographs can be joined.
    """
    ids = image_ids(store.database)
    models = _mapped(store, len(manifest.used), announce)
    if not models:
        raise ValueError(why_nothing(store, manifest, features_in(store.database)))
    told = _told_focals(store.database)
    models, notes = _with_told_focal_lengths(store, manifest, models, told, announce)
    announce(0, 0, "lens and upward direction")
    models = [_with_lens_by_evidence(models[0], told), *models[1:]]
    database = pycolmap.Database.open(store.database)
    try:
        places = places_by_gps(database, manifest.used, ids)
        upright = make_upright(
            models[0], {photo.name: photo for photo in manifest.used}, _by_name(manifest, places)
        )
        report = review(store, manifest, models, database, told, upright, notes)
    finally:
        database.close()
    _keep(store, models, report)


def _by_name(manifest: Manifest, places: np.ndarray | None) -> dict[str, np.ndarray]:
    if places is None:
        return {}
    named = zip(manifest.used, places, strict=True)
    return {photo.name: place for photo, place in named if np.isfinite(place).all()}


def _mapped(
    store: PoseStore, num_photos: int, announce: Announce, constant: frozenset[int] = frozenset()
) -> list[pycolmap.Reconstruction]:
    """Return the models that COLMAP makes, largest first; cameras in `constant` keep their intrinsics."""
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads = num_threads()
    options.random_seed = 0
    options.min_model_size = SMALLEST_MODEL
    options.image_path = str(store.images)
    options.constant_cameras = set(constant)
    database = pycolmap.Database.open(store.database)
    try:
        manager = pycolmap.ReconstructionManager()
        pipeline = pycolmap.IncrementalPipeline(options, database, manager)

        def tell() -> None:
            posed = set[str]()
            for number in range(manager.size()):
                model = manager.get(number)
                posed |= {model.image(image).name for image in model.reg_image_ids()}
            announce(len(posed), num_photos, "photos with a pose")

        for callback in pycolmap.IncrementalPipelineCallback.__members__.values():
            pipeline.add_callback(callback.value, tell)
        announce(0, num_photos, "photos with a pose")
        pipeline.run()
        models = [pycolmap.Reconstruction(manager.get(number)) for number in range(manager.size())]
    finally:
        database.close()
    # Of photographs from one place COLMAP makes poses without points, which are worth nothing.
    models = [
        model
        for model in models
        if model.num_reg_images() >= SMALLEST_MODEL
        and model.num_points3D() >= FEWEST_POINTS * model.num_reg_images()
    ]
    return sorted(models, key=lambda model: -model.num_reg_images())


def _told_focals(path: Path) -> dict[int, float]:
    """Return the focal lengths in pixels that the photographs' files tell, by camera."""
    database = pycolmap.Database.open(path)
    try:
        cameras = database.read_all_cameras()
        return {c.camera_id: float(c.mean_focal_length()) for c in cameras if c.has_prior_focal_length}
    finally:
        database.close()


def _with_told_focal_lengths(
    store: PoseStore,
    manifest: Manifest,
    models: list[pycolmap.Reconstruction],
    told: Mapping[int, float],
    announce: Announce,
) -> tuple[list[pycolmap.Reconstruction], list[str]]:
    """Return models whose focal lengths did not run away, where such a one explains the matches as well.

    Cameras that all look the same way from one height do not tell their focal length: many fit.
    """
    astray = frozenset(
        number
        for number, camera in models[0].cameras.items()
        if number in told and not 1 / RUNAWAY < camera.mean_focal_length() / told[number] < RUNAWAY
    )
    if not astray:
        return models, []
    found = ", ".join(
        f"{models[0].camera(n).mean_focal_length():.0f} instead of {told[n]:.0f} px" for n in sorted(astray)
    )
    held = _mapped(store, len(manifest.used), announce, astray)
    as_many = bool(held) and held[0].num_reg_images() >= models[0].num_reg_images()
    if as_many and _error(held[0]) <= AS_GOOD * _error(models[0]):
        note = "the matches do not tell the focal length, so that of the photos' EXIF is kept"
        return held, [f"{note} (left free it came out as {found})"]
    note = f"the focal length is doubtful: it came out as {found} that the photos' EXIF tells"
    return models, [f"{note}, which does not fit the matches"]


def _error(model: pycolmap.Reconstruction) -> float:
    return float(model.compute_mean_reprojection_error())


def _with_lens_by_evidence(
    model: pycolmap.Reconstruction, told: Mapping[int, float]
) -> pycolmap.Reconstruction:
    """Return the model with lenses of more parameters, where these explain its points clearly better."""
    num_photos = Counter(model.image(image).camera_id for image in model.reg_image_ids())
    richer = [
        number
        for number, camera in model.cameras.items()
        if num_photos[number] >= LENS_PHOTOS
        and model.num_points3D() >= LENS_POINTS
        and not (number in told and camera.mean_focal_length() == told[number])  # held at what EXIF tells
    ]
    if not richer:
        return model
    other = pycolmap.Reconstruction(model)
    for number in richer:
        camera = other.camera(number)
        focal, x, y, radial = camera.params
        camera.model = pycolmap.CameraModelId.OPENCV
        camera.params = [focal, focal, x, y, radial, 0.0, 0.0, 0.0]
    options = pycolmap.BundleAdjustmentOptions()
    options.print_summary = False
    options.ceres.solver_options.num_threads = num_threads()
    pycolmap.bundle_adjustment(other, options)
    other.update_point_3d_errors()
    square = all(
        0.97 < other.camera(n).focal_length_x / other.camera(n).focal_length_y < 1.03 for n in richer
    )
    return other if square and _error(other) < BETTER_LENS * _error(model) else model


def _keep(store: PoseStore, models: list[pycolmap.Reconstruction], report: PoseReport) -> None:
    """Put models and report in the place of those of before."""
    shutil.rmtree(store.mapping, ignore_errors=True)
    for number, model in enumerate(models):
        folder = store.mapping / str(number)
        folder.mkdir(parents=True)
        model.write(folder)
    # A crash between these lines leaves no poses rather than those of one and the report of another.
    shutil.rmtree(store.sparse, ignore_errors=True)
    os.replace(store.mapping, store.sparse)
    write_record(store.report_file, report)
    write_durably(store.path / "report.txt", (report_text(report) + "\n").encode())
    sync_folder(store.path)
