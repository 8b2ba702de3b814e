"""The last stage: from matches to poses, with a lens by evidence, upright, and a report of their worth."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pycolmap

from splatstudio.files.durable import sync_file, write_durably
from splatstudio.operating_system import put_in_place, sync_folder
from splatstudio.poses.earlier import earlier_poses, joined_frame
from splatstudio.poses.features import features_in, image_ids, num_threads, places_by_gps
from splatstudio.poses.growing import GrowthWriter
from splatstudio.poses.records import Announce, Manifest, PoseReport, write_record
from splatstudio.poses.review import SPARSE_POINTS, Links, read_links, review, so_far_only, why_nothing
from splatstudio.poses.store import PoseStore
from splatstudio.poses.upright import Upright, make_upright
from splatstudio.poses.words import report_text
from splatstudio.scene.normalize import KeptFrame, write_kept_frame

SMALLEST_MODEL, FEWEST_POINTS = 3, 8  # photos, and points of each
RUNAWAY = 1.15  # times the focal length that EXIF tells, or its inverse: beyond it the estimate is doubted
AS_GOOD = 1.10  # times the reprojection error, up to which a model with the told focal length is preferred
BETTER_LENS = 0.97  # times the error, from which on a lens with more parameters is believed
# Of a photo with few points, their number over the matches of its strongest link, below which these
# contradict its pose. In one mapping of the demo in four, 0.06, 0.12 and 0.12 of three photos that stood
# far off, and 0.18 or more of the others.
LOOSE = 0.15
LENS_PHOTOS, LENS_POINTS = 8, 2000  # of one camera, without which nothing more can be said of its lens


def estimate(store: PoseStore, manifest: Manifest, announce: Announce) -> None:
    """Estimate the poses of all photos whose matches are in the database, and write models and report.

    Raises ValueError, which says what was seen, where no two photos can be joined.
    """
    ids = image_ids(store.database)
    store.wanted_file.unlink(missing_ok=True)
    store.growing_file.unlink(missing_ok=True)
    told = _told_focals(store.database)
    keeper = _Keeper(store, manifest, ids, told)
    models = _mapped(keeper, announce)
    if not models:
        raise ValueError(why_nothing(store, manifest, features_in(store.database)))
    models, notes = _with_told_focal_lengths(keeper, models, announce)
    announce(0, 0, "lens and upward direction")
    models = [_with_lens_by_evidence(models[0], told), *models[1:]]
    keeper.keep(models, notes)


@dataclass(frozen=True)
class _Keeper:
    """Makes of models what is kept: upright, in the frame of those before, with a report."""

    store: PoseStore
    manifest: Manifest
    ids: Mapping[str, int]
    told: Mapping[int, float]  # focal lengths by EXIF, see `_told_focals`

    def keep_so_far(self, model: pycolmap.Reconstruction) -> bool:
        """Keep what a mapping has found by now, where that was asked for and is a model; return whether."""
        if not self.store.wanted_file.exists() or not _is_model(model):
            return False
        found = pycolmap.Reconstruction(model)
        _take_away(found, _loose(found, read_links(self.store)))
        self.keep([found], (), so_far=True)
        self.store.wanted_file.unlink()
        return True

    def keep(
        self, models: list[pycolmap.Reconstruction], notes: Sequence[str], *, so_far: bool = False
    ) -> None:
        """Put models in the place of those of before, the first upright, and write the report on them."""
        store, manifest = self.store, self.manifest
        with pycolmap.Database.open(store.database) as database:
            places = places_by_gps(database, manifest.used, self.ids)
            photos = {photo.name: photo for photo in manifest.used}
            upright = make_upright(models[0], photos, _by_name(manifest, places))
            upright, frame = _in_frame_of_before(store, models[0], upright)
            report = review(store, manifest, models, database, self.told, upright, notes)
        _keep(store, models, so_far_only(report, manifest) if so_far else report, frame)


def _in_frame_of_before(
    store: PoseStore, model: pycolmap.Reconstruction, upright: Upright
) -> tuple[Upright, KeptFrame | None]:
    """Bring the model to where the poses of before are; return what is told of it, and that frame."""
    earlier, report = earlier_poses(store), store.report()
    if earlier is None or report is None:
        return upright, None
    frame = joined_frame(model, earlier, so_far=report.so_far)
    if frame is None:
        note = "these poses differ from those of before: what was trained on those cannot go on with these"
        return Upright(upright.up, upright.meters, "; ".join(filter(None, [upright.note, note]))), None
    num = len(frame.names) - len(earlier.frame.names)
    note = "the coordinates of the poses of before are kept, so that their runs can go on"
    if num:
        note = f"{num} photos have joined; {note}"
    return Upright(report.up, report.meters, note), frame


def _by_name(manifest: Manifest, places: np.ndarray | None) -> dict[str, np.ndarray]:
    if places is None:
        return {}
    named = zip(manifest.used, places, strict=True)
    return {photo.name: place for photo, place in named if np.isfinite(place).all()}


def _mapped(
    keeper: _Keeper, announce: Announce, constant: frozenset[int] = frozenset()
) -> list[pycolmap.Reconstruction]:
    """Return the models that COLMAP makes, largest first; cameras in `constant` keep their intrinsics."""
    found = _grown(keeper, announce, constant)
    # Of photos from one place COLMAP makes poses without points, which are worth nothing.
    models = sorted(filter(_is_model, found), key=lambda model: -model.num_reg_images())
    return [_with_loose_placed_anew(keeper, announce, constant, models[0]), *models[1:]] if models else []


def _grown(
    keeper: _Keeper,
    announce: Announce,
    constant: frozenset[int],
    start: pycolmap.Reconstruction | None = None,
) -> list[pycolmap.Reconstruction]:
    """Return what COLMAP's incremental mapping comes to, or what `start` grows to."""
    store, num_photos = keeper.store, len(keeper.manifest.used)
    options = pycolmap.IncrementalPipelineOptions()
    options.num_threads = num_threads()
    options.random_seed = 0
    options.min_model_size = SMALLEST_MODEL
    options.image_path = str(store.images)
    options.constant_cameras = set(constant)
    manager = pycolmap.ReconstructionManager()
    if start is not None:
        options.multiple_models = False
        shutil.rmtree(store.mapping, ignore_errors=True)
        store.mapping.mkdir()
        start.write(store.mapping)
        manager.read(store.mapping)
    with pycolmap.Database.open(store.database) as database:
        pipeline = pycolmap.IncrementalPipeline(options, database, manager)
        snapshots = GrowthWriter(store.growing_file, num_photos)

        def tell() -> None:
            growing = [manager.get(number) for number in range(manager.size())]
            posed = {model.image(image).name for model in growing for image in model.reg_image_ids()}
            announce(len(posed), num_photos, "photos with a pose")
            if growing:
                largest = max(growing, key=lambda model: model.num_reg_images())
                keeper.keep_so_far(largest)
                snapshots.write(largest, len(posed))

        for callback in pycolmap.IncrementalPipelineCallback.__members__.values():
            pipeline.add_callback(callback.value, tell)
        announce(0 if start is None else start.num_reg_images(), num_photos, "photos with a pose")
        pipeline.run()
        return [pycolmap.Reconstruction(manager.get(number)) for number in range(manager.size())]


def _with_loose_placed_anew(
    keeper: _Keeper, announce: Announce, constant: frozenset[int], model: pycolmap.Reconstruction
) -> pycolmap.Reconstruction:
    """Return the model with poses found again for photos that came to stand where their matches do not fit.

    Where the others are there, such a photo finds its place; one that does not is left out.
    """
    links = read_links(keeper.store)
    loose = _loose(model, links)
    if not loose:
        return model
    _take_away(model, loose)
    model = next(filter(_is_model, _grown(keeper, announce, constant, model)), model)
    _take_away(model, _loose(model, links))
    return model


def _loose(model: pycolmap.Reconstruction, links: Links) -> list[int]:
    """Return the photos whose matches contradict their poses; none where that would leave too little."""
    images = {number: model.image(number) for number in model.reg_image_ids()}
    names = frozenset(image.name for image in images.values())
    loose = [
        number
        for number, image in images.items()
        if image.num_points3D < min(SPARSE_POINTS, LOOSE * links.of(image.name, names)[0])
    ]
    return loose if len(images) - len(loose) >= max(SMALLEST_MODEL, len(images) / 2) else []


def _take_away(model: pycolmap.Reconstruction, images: Sequence[int]) -> None:
    for number in images:
        model.deregister_frame(model.image(number).frame_id)


def _is_model(model: pycolmap.Reconstruction) -> bool:
    """Return whether there are enough photos and points for a scene."""
    num = model.num_reg_images()
    return num >= SMALLEST_MODEL and model.num_points3D() >= FEWEST_POINTS * num


def _told_focals(path: Path) -> dict[int, float]:
    """Return the focal lengths in pixels that the photos' files tell, by camera."""
    with pycolmap.Database.open(path) as database:
        cameras = database.read_all_cameras()
        return {c.camera_id: float(c.mean_focal_length()) for c in cameras if c.has_prior_focal_length}


def _with_told_focal_lengths(
    keeper: _Keeper, models: list[pycolmap.Reconstruction], announce: Announce
) -> tuple[list[pycolmap.Reconstruction], list[str]]:
    """Return models whose focal lengths did not run away, where such a one explains the matches as well.

    Cameras that all look the same way from one height do not tell their focal length: many fit.
    """
    told = keeper.told
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
    held = _mapped(keeper, announce, astray)
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


def _keep(
    store: PoseStore, models: list[pycolmap.Reconstruction], report: PoseReport, frame: KeptFrame | None
) -> None:
    """Put models and report in the place of those of before."""
    shutil.rmtree(store.mapping, ignore_errors=True)
    for number, model in enumerate(models):
        folder = store.mapping / str(number)
        folder.mkdir(parents=True)
        model.write(folder)
        if frame is not None and number == 0:
            write_kept_frame(folder, frame)
        for file in folder.iterdir():
            sync_file(file)
        sync_folder(folder)
    sync_folder(store.mapping)
    # A crash between these lines leaves no poses rather than those of one and the report of another. Who
    # reads them meanwhile sees by `replaced` that there are others at once.
    shutil.rmtree(store.replaced, ignore_errors=True)
    if store.sparse.exists():
        put_in_place(store.sparse, store.replaced)
    put_in_place(store.mapping, store.sparse)
    shutil.rmtree(store.replaced, ignore_errors=True)
    write_record(store.report_file, report)
    write_durably(store.path / "report.txt", (report_text(report) + "\n").encode())
    store.growing_file.unlink(missing_ok=True)
    sync_folder(store.path)
