"""What a model is worth: how well each photograph is placed, what was left out and why, what looks wrong."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import pycolmap

from splatstudio.poses.features import features_in
from splatstudio.poses.records import (
    DoubtfulLink,
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

GRID = 8
FEW_FEATURES = 150  # a sharp photograph of nearly anything has ten times as many
BLURRED = 0.25  # of the median sharpness
LINK_MATCHES = 30  # from which on a pair says something about the poses
AGREES_WITHIN = 8.0  # pixels, as Sampson distance
DISAGREES = 0.3  # the share of agreeing matches below which a link contradicts the poses
DOUBTFUL_LINKS, DOUBTFUL_SHARE = 3, 0.02  # from which on they are told as a warning
SPARSE_POINTS, POOR_COVERAGE = 100, 0.15  # of a photograph, below which its pose is loose
LARGE_ERROR = 1.5  # pixels: a model of sharp photographs has half of it
WIDEST, LONGEST = 0.35, 4.0  # focal lengths in longer sides, beyond which no photograph is taken
FEW_PHOTOS = 20


@dataclass(frozen=True)
class Links:
    """The verified matches between photographs: their number by the pair of names."""

    counts: Mapping[tuple[str, str], int]

    def of(self, name: str, others: frozenset[str]) -> tuple[int, str]:
        """Return the most matches of a photograph with one of `others`, and with which; 0 and "": none."""
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
        return (
            f"no poses can be estimated: {len(poor)} of the {len(used)} photographs of {source} show too"
            " little to recognize, as plain walls, darkness or blur do; photograph what has texture, sharp"
            " and well lit"
        )
    best = max(read_links(store).counts.values(), default=0)
    if best < LINK_MATCHES:
        return (
            f"no poses can be estimated: no two of the {len(used)} photographs of {source} show the same"
            f" ({best} matches at most); walk around one subject, and let neighbors overlap by two thirds"
        )
    return (
        f"no poses can be estimated: the {len(used)} photographs of {source} match, but are taken from nearly"
        " one place, and depth is seen only from several: walk around the subject, do not turn on the spot"
    )


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
    doubtful, num_links = _doubtful(model, database)
    report = PoseReport(
        store=str(store.path),
        source=manifest.source,
        fingerprint=fingerprint(manifest),
        num_photos=len(manifest.photos),
        posed=posed,
        left_out=tuple(_left_out(manifest, names, groups, links, features_in(store.database))),
        groups=tuple(group for group in groups if group.names),
        doubtful=doubtful,
        cameras=tuple(_cameras(model, told)),
        num_points=model.num_points3D(),
        error=float(model.compute_mean_reprojection_error()),
        up=upright.up,
        meters=upright.meters,
        seconds={},
        peak_bytes=0,
        notes=(*manifest.notes, *notes, *filter(None, [upright.note])),
    )
    return _advised(report, manifest, num_links)


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
    """Return the pose, world to camera, of a photograph that has one."""
    pose = image.cam_from_world()
    assert pose is not None, "only photographs with a pose are asked"
    return pose


def _group(number: int, model: pycolmap.Reconstruction, main: frozenset[str], links: Links) -> PoseGroup:
    """Return a group of photographs besides the main one, and the pair that would best join them."""
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
    left = [LeftPhoto(photo.name, photo.left_out) for photo in manifest.photos if photo.left_out]
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
        return f"shows too little to recognize ({num} features), as plain walls or darkness do"
    if not matches:
        return "shows nothing that another photo with a pose shows"
    if matches < 4 * LINK_MATCHES:
        return f"too few matches: {matches} at most, with {other}"
    return f"its {matches} matches with {other} agree on no place for it"


def _doubtful(
    model: pycolmap.Reconstruction, database: pycolmap.Database
) -> tuple[tuple[DoubtfulLink, ...], int]:
    """Return the pairs whose matches contradict the poses, worst first, and how many pairs there are in all.

    Of places that look alike one was taken for the other: their own pictures then disagree with the model.
    """
    posed = set(model.reg_image_ids())
    found: list[DoubtfulLink] = []
    num_links = 0
    ids, geometries = database.read_two_view_geometries()
    centers = {number: model.image(number).projection_center() for number in posed}
    size = float(np.median(np.ptp(np.stack(list(centers.values())), axis=0)))
    for pair, geometry in zip(ids, geometries, strict=True):
        first, second = pycolmap.pair_id_to_image_pair(pair)
        matches = geometry.inlier_matches
        if len(matches) < LINK_MATCHES or first not in posed or second not in posed:
            continue
        num_links += 1
        if np.linalg.norm(centers[first] - centers[second]) < 0.01 * size:
            continue  # of one place: there is no epipolar geometry
        share = _agreeing(model, database, first, second, matches)
        if share < DISAGREES:
            names = (model.image(first).name, model.image(second).name)
            found.append(DoubtfulLink(*names, len(matches), share))
    return tuple(sorted(found, key=lambda link: -link.num_matches)), num_links


def _agreeing(
    model: pycolmap.Reconstruction, database: pycolmap.Database, first: int, second: int, matches: np.ndarray
) -> float:
    """Return the share of matches [M, 2] that lie where the poses of their two photographs allow."""
    rays = []
    for side, number in enumerate((first, second)):
        camera = model.camera(model.image(number).camera_id)
        keypoints = database.read_keypoints(number)[matches[:, side], :2].astype(np.float64)
        rays.append(camera.cam_from_img(keypoints))
    relative = _pose(model.image(second)) * _pose(model.image(first)).inverse()
    essential = pycolmap.essential_matrix_from_pose(relative)
    squared = np.array(pycolmap.compute_squared_sampson_error(rays[0], rays[1], essential))
    focal = model.camera(model.image(first).camera_id).mean_focal_length()
    return float(np.mean(squared < (AGREES_WITHIN / focal) ** 2))


def _cameras(model: pycolmap.Reconstruction, told: Mapping[int, float]) -> list[PoseCamera]:
    photos = defaultdict[int, int](int)
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


def _advised(report: PoseReport, manifest: Manifest, num_links: int) -> PoseReport:
    """Return the report with warnings on what looks wrong, and what to do next."""
    notes, advice = list(report.notes), list[str]()
    if len(report.doubtful) >= DOUBTFUL_LINKS and len(report.doubtful) > DOUBTFUL_SHARE * num_links:
        worst = report.doubtful[0]
        notes.append(
            f"{len(report.doubtful)} of {num_links} pairs of photos contradict the poses: places that look"
            f" alike may have been taken for one ({worst.first} and {worst.second} match {worst.num_matches}"
            " times)"
        )
        advice.append(
            "look at the model from all sides; where things stand in each other, take these photos apart"
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
        more = f" and {len(loose) - 5} more" if len(loose) > 5 else ""
        notes.append(f"placed by few points, so perhaps loosely: {', '.join(loose[:5])}{more}")
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
    kept = {name: getattr(report, name) for name in report.__struct_fields__}
    return PoseReport(**{**kept, "notes": tuple(notes), "advice": tuple(advice)})
