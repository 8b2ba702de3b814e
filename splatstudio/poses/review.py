"""What a model is worth: how well each photo is placed, what was left out and why, what looks wrong."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import msgspec
import numpy as np
import pycolmap

from splatstudio.error_text import first_of
from splatstudio.poses.doubts import LINK_MATCHES, doubtful_links
from splatstudio.poses.features import features_in
from splatstudio.poses.records import (
    InputPhoto,
    LeftPhoto,
    Manifest,
    PoseCamera,
    PosedPhoto,
    PoseGroup,
    PoseReport,
)
from splatstudio.poses.store import PoseStore, fingerprint
from splatstudio.poses.upright import Upright

ONE_PLACE = (
    "are taken from nearly one place, and depth is seen only from several: walk around the subject, do not"
    " turn on the spot"
)
GRID = 8
NARROW = 6.0  # degrees; photos from around a subject have 15 to 45 at the median
FLAT = (4, 5, 6)  # COLMAP's numbers of planar and panoramic pairs, and of those that may be either
FEW_FEATURES = 150  # a sharp photo of nearly anything has ten times as many
BLURRED = 0.25  # of the median sharpness
SPARSE_POINTS, POOR_COVERAGE = 100, 0.15  # of a photo, below which its pose is loose
LARGE_ERROR = 1.5  # pixels: a model of sharp photos has half of it
WIDEST, LONGEST = 0.35, 4.0  # focal lengths in longer sides, beyond which no photo is taken
FEW_PHOTOS = 20


@dataclass(frozen=True)
class Links:
    """The verified matches between photos: their number by the pair of names."""

    counts: Mapping[tuple[str, str], int]

    def of(self, name: str, others: frozenset[str]) -> tuple[int, str]:
        """Return the most matches of a photo with one of `others`, and with which; 0 and "": none."""
        found = [
            (count, pair[0] if pair[1] == name else pair[1])
            for pair, count in self.counts.items()
            if name in pair and (pair[0] in others or pair[1] in others)
        ]
        return max(found, default=(0, ""))


def read_links(store: PoseStore) -> Links:
    """Return the verified matches of all pairs in the database."""
    with closing(sqlite3.connect(store.database)) as connection:
        names = dict(connection.execute("SELECT image_id, name FROM images").fetchall())
        rows = connection.execute("SELECT pair_id, rows FROM two_view_geometries WHERE rows > 0").fetchall()
    counts = {}
    for pair, count in rows:
        first, second = pycolmap.pair_id_to_image_pair(pair)
        if first in names and second in names:
            counts[names[first], names[second]] = count
    return Links(counts)


def why_nothing(store: PoseStore, manifest: Manifest, features: Mapping[str, int]) -> str:
    """Return the sentence that says why no poses could be estimated, and what to do."""
    used, source = manifest.used, manifest.source
    poor = [photo for photo in used if features.get(photo.name, 0) < FEW_FEATURES]
    if 2 * len(poor) > len(used):
        masks = sum(photo.mask is not None for photo in poor)
        masked = f". {masks} of them have masks: what is black there is hidden" if masks else ""
        return (
            f"no poses can be estimated: {len(poor)} of the {len(used)} photos of {source} show too"
            " little to recognize, as plain walls, darkness or blur do; photo what has texture, sharp"
            " and well lit" + masked
        )
    best = max(read_links(store).counts.values(), default=0)
    if best < LINK_MATCHES:
        return (
            f"no poses can be estimated: no two of the {len(used)} photos of {source} show the same"
            f" ({best} matches at most); walk around one subject, and let neighbors overlap by two thirds"
        )
    if _from_one_place(store):
        return f"no poses can be estimated: the {len(used)} photos of {source} {ONE_PLACE}"
    return (
        f"no poses can be estimated: the {len(used)} photos of {source} match in pairs ({best} matches"
        " at most), but not three with each other: take more between them, so that all is in three photos"
    )


def _from_one_place(store: PoseStore) -> bool:
    """Return whether most pairs that match can be laid on each other, as only a plane or one place allows."""
    with closing(sqlite3.connect(store.database)) as connection:
        query = "SELECT config, count(*) FROM two_view_geometries WHERE rows >= ? GROUP BY config"
        counts = dict(connection.execute(query, (LINK_MATCHES,)).fetchall())
    return 2 * sum(counts.get(config, 0) for config in FLAT) > sum(counts.values())


def review(
    store: PoseStore,
    manifest: Manifest,
    models: Sequence[pycolmap.Reconstruction],
    database: pycolmap.Database,
    told: Mapping[int, float],
    upright: Upright,
    notes: Sequence[str],
) -> PoseReport:
    """Return the report on the first of `models`, which is used, and the others.

    `told` are the focal lengths of cameras that EXIF tells, in pixels.
    """
    model, links = models[0], read_links(store)
    model.update_point_3d_errors()
    posed = tuple(sorted((_posed(model, image) for image in model.reg_image_ids()), key=lambda p: p.name))
    names = frozenset(photo.name for photo in posed)
    groups = tuple(_group(number, other, names, links) for number, other in enumerate(models[1:], start=1))
    report = PoseReport(
        store=str(store.path),
        source=manifest.source,
        fingerprint=fingerprint(manifest),
        num_photos=len(manifest.photos),
        posed=posed,
        left_out=tuple(_left_out(manifest, names, groups, links, features_in(store.database))),
        groups=tuple(group for group in groups if group.names),
        doubtful=doubtful_links(model, database),
        cameras=tuple(_cameras(model, told)),
        num_points=model.num_points3D(),
        error=float(model.compute_mean_reprojection_error()),
        up=upright.up,
        meters=upright.meters,
        seconds={},
        peak_bytes=0,
        notes=(*manifest.notes, *notes, *filter(None, [upright.note])),
    )
    if _from_one_place(store) and _widest_angles(model) < NARROW:
        report = msgspec.structs.replace(
            report,
            notes=(*report.notes, f"all {len(posed)} photos {ONE_PLACE}; what depth there is may be a guess"),
        )
    return _advised(report, manifest)


def so_far_only(report: PoseReport, manifest: Manifest) -> PoseReport:
    """Return the report on a model that still grows: who has no pose yet is not left out."""
    posed = {photo.name for photo in report.posed}
    left = [photo for photo in report.left_out if photo.reason in {p.left_out for p in manifest.photos}]
    waiting = [photo.name for photo in manifest.used if photo.name not in posed]
    left += [LeftPhoto(name, "no pose yet") for name in waiting]
    advice = ("train with these; the others can join when they have a pose",)
    return msgspec.structs.replace(report, so_far=True, left_out=tuple(left), advice=advice)


def _widest_angles(model: pycolmap.Reconstruction) -> float:
    """Return the median of the widest angle in degrees under which the photos see each point."""
    centers = {
        number: np.asarray(model.image(number).projection_center()) for number in model.reg_image_ids()
    }
    angles: list[float] = []
    for point in model.points3D.values():
        rays = np.stack([centers[element.image_id] for element in point.track.elements]) - point.xyz
        rays /= np.maximum(np.linalg.norm(rays, axis=1, keepdims=True), 1e-12)
        angles.append(float(np.degrees(np.arccos(np.clip((rays @ rays.T).min(), -1, 1)))))
    return float(np.median(angles)) if angles else 0.0


def _posed(model: pycolmap.Reconstruction, number: int) -> PosedPhoto:
    image = model.image(number)
    camera = model.camera(image.camera_id)
    seen = image.get_observation_points2D()
    if not seen:
        return PosedPhoto(name=image.name, num_points=0, error=0.0, coverage=0.0)
    pixels = np.stack([point.xy for point in seen])
    points = np.stack([model.point3D(point.point3D_id).xyz for point in seen])
    pose = np.asarray(_pose(image).matrix())
    projected = camera.img_from_cam(points @ pose[:, :3].T + pose[:, 3])
    errors = np.linalg.norm(np.asarray(projected) - pixels, axis=1)
    cells = (pixels / [camera.width, camera.height] * GRID).astype(int).clip(0, GRID - 1)
    coverage = len(np.unique(cells, axis=0)) / GRID**2
    error = float(np.nanmean(errors)) if np.isfinite(errors).any() else 0.0
    return PosedPhoto(name=image.name, num_points=len(seen), error=error, coverage=coverage)


def _pose(image: pycolmap.Image) -> pycolmap.Rigid3d:
    """Return the pose, world to camera, of a photo that has one."""
    pose = image.cam_from_world()
    assert pose is not None, "only photos with a pose are asked"
    return pose


def _group(number: int, model: pycolmap.Reconstruction, main: frozenset[str], links: Links) -> PoseGroup:
    """Return a group of photos besides the main one, and the pair that would best join them."""
    names = tuple(sorted({model.image(image).name for image in model.reg_image_ids()} - main))
    joined = [(links.of(name, main), name) for name in names]
    (count, theirs), ours = max(joined, default=((0, ""), ""))
    return PoseGroup(number, names, (theirs, ours) if count else None)


def _left_out(
    manifest: Manifest,
    posed: frozenset[str],
    groups: Sequence[PoseGroup],
    links: Links,
    features: Mapping[str, int],
) -> list[LeftPhoto]:
    middle = float(np.median([photo.sharpness for photo in manifest.used]))
    group_of = {name: group for group in groups for name in group.names}
    left = [LeftPhoto(photo.source, photo.left_out) for photo in manifest.photos if photo.left_out]
    for photo in manifest.used:
        if photo.name not in posed:
            reason = _reason(photo, posed, group_of.get(photo.name), links, features, middle)
            left.append(LeftPhoto(photo.name, reason))
    return left


def _reason(
    photo: InputPhoto,
    posed: frozenset[str],
    group: PoseGroup | None,
    links: Links,
    features: Mapping[str, int],
    middle: float,
) -> str:
    num, (matches, other) = features.get(photo.name, 0), links.of(photo.name, posed)
    if group is not None:
        return f"one of another group of {len(group.names)} that was joined with each other alone"
    if photo.sharpness < BLURRED * middle:
        return f"blurred: {photo.sharpness / middle:.0%} of the usual sharpness"
    if num < FEW_FEATURES:
        or_mask = "" if photo.mask is None else ", and as a mask does that hides it"
        return f"shows too little to recognize ({num} features), as plain walls or darkness do{or_mask}"
    if not matches:
        return "shows nothing that another photo with a pose shows"
    if matches < 4 * LINK_MATCHES:
        return f"too few matches: {matches} at most, with {other}"
    return f"its {matches} matches with {other} agree on no place for it"


def _cameras(model: pycolmap.Reconstruction, told: Mapping[int, float]) -> list[PoseCamera]:
    photos = Counter[int]()
    for image in model.reg_image_ids():
        photos[model.image(image).camera_id] += 1
    return [
        PoseCamera(
            model=camera.model_name,
            num_photos=photos[number],
            width=camera.width,
            height=camera.height,
            focal=float(camera.mean_focal_length()),
            told_focal=told.get(number),
            params=tuple(float(value) for value in camera.params),
        )
        for number, camera in sorted(model.cameras.items())
        if photos[number]
    ]


def _advised(report: PoseReport, manifest: Manifest) -> PoseReport:
    """Return the report with warnings on what looks wrong, and what to do next."""
    notes, advice = list(report.notes), list[str]()
    if report.doubtful:
        worst = report.doubtful[0]
        notes.append(
            f"places that look alike may have been taken for one: the {worst.num_matches} matches of"
            f" {worst.first} and {worst.second} do not fit their poses, and so it is with"
            f" {len(report.doubtful) - 1} other pairs"
        )
        advice.append(
            "look at the model from all sides; where things stand in each other, photo what is between"
            " them, or put the photos of each place into a folder of its own"
        )
    for camera in report.cameras:
        if not WIDEST < camera.focal / max(camera.width, camera.height) < LONGEST:
            notes.append(
                f"the focal length of {camera.focal:.0f} px for {camera.width} x {camera.height} is doubtful"
            )
            advice.append("take photos from more directions and distances: then the focal length shows")
    if report.error > LARGE_ERROR:
        notes.append(f"the points miss their pictures by {report.error:.1f} px, which is much")
    loose = [p.name for p in report.posed if p.num_points < SPARSE_POINTS or p.coverage < POOR_COVERAGE]
    if loose:
        notes.append(f"placed by few points, so perhaps loosely: {first_of(loose, 5)}")
    for group in report.groups:
        between = group.nearest or (report.posed[-1].name, group.names[0])
        advice.append(
            f"take photos between {between[0]} and {between[1]}, so that the {len(group.names)} photos of"
            " that group join the others"
        )
    lone = [photo.name for photo in report.left_out if photo.reason.startswith("too few matches")]
    if lone:
        advice.append(
            f"take photos around the place of {', '.join(lone[:3])}: each step by a third of the picture"
        )
    if len(report.posed) < FEW_PHOTOS and not manifest.of_video:
        advice.append(
            f"{len(report.posed)} photos make a rough model: {FEW_PHOTOS} to 200, all around, are good"
        )
    return msgspec.structs.replace(report, notes=tuple(notes), advice=tuple(advice))
