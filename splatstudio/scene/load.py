"""load_scene: tell the format of a folder, read it, measure its photos, normalize its frame."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

import numpy as np

from splatstudio.cameras.camera import Camera, rigid
from splatstudio.error_text import first_of
from splatstudio.files.inputs import refuse_irregular
from splatstudio.files.path_words import as_argument
from splatstudio.operating_system import free_memory
from splatstudio.scene.archives import is_archive, unpacked
from splatstudio.scene.arkit import read_polycam, read_record3d, read_scanner_app
from splatstudio.scene.capture import (
    MAX_COORDINATE,
    TO_JPEG,
    Capture,
    CapturedPhoto,
    ImageFolder,
    View,
    read_json,
)
from splatstudio.scene.colmap import read_colmap
from splatstudio.scene.layout import (
    COPIES,
    KINDS,
    PARTS,
    NoPhotos,
    PoseFiles,
    estimated_poses,
    estimated_state,
    is_video,
    pose_files,
    posed_by,
    poses_below,
    scene_of_pictures,
)
from splatstudio.scene.lens import Face, Lens, cropped, faces
from splatstudio.scene.metashape import read_metashape
from splatstudio.scene.no_scene import KNOWN, no_scene, nothing_found
from splatstudio.scene.normalize import normalizing_transform
from splatstudio.scene.opensfm import read_opensfm
from splatstudio.scene.photo import (
    EXIF_SIDEWAYS,
    DamagedPhoto,
    PictureHeader,
    lens_of_file,
    picture_header,
    refuse_cut_off,
)
from splatstudio.scene.posed_frames import PosedFrames, capture_of
from splatstudio.scene.realityscan import read_realityscan
from splatstudio.scene.scene import KnownPhotos, Scene
from splatstudio.scene.transforms_json import read_blender, read_transforms
from splatstudio.scene.turned_photos import as_computed_from
from splatstudio.scene.unread_poses import unread_poses
from splatstudio.settings.config import TrainConfig, declaration
from splatstudio.settings.setting import typed_path

MOST_RUNS = 5  # that are named
LONGEST_DISTORTED = 2**15 - 1  # px; OpenCV counts in 16 bits there
# Of what other programs than COLMAP, nerfstudio and Blender tell; `layout.OTHERS` says where that lies.
READERS: Mapping[str, Callable[[Path], PosedFrames]] = {
    "OpenSfM": read_opensfm,
    "Polycam": read_polycam,
    "Record3D": read_record3d,
    "3D Scanner App": lambda file: read_scanner_app(file.parent),
    "Metashape": read_metashape,
    "RealityScan": read_realityscan,
}

# Who names one of them means its folder.
REPLACING_SECONDS = 2.0  # far longer than an estimation needs to put poses in place of others
FILES_OF_SCENES = [f"{part}.{kind}" for part in PARTS for kind in KINDS]
FILES_OF_SCENES += [f"transforms_{split}.json" for split in ("train", "val", "test")]


def load_training_scene(path: str | Path, config: TrainConfig, known: KnownPhotos | None = None) -> Scene:
    """Return the scene in `path` as the settings of a training ask for it; `known` as in `load_scene`.

    Raises ValueError as that does.
    """
    return load_scene(
        path,
        downscale=config.downscale,
        test_every=config.test_every,
        test_images=config.test_images,
        images_folder=config.images or None,
        model=config.model,
        known=known,
    )


def load_scene(
    path: str | Path,
    *,
    downscale: int = 1,
    test_every: int = 8,
    test_images: Sequence[str] = (),
    images_folder: str | None = None,
    model: int = -1,
    known: KnownPhotos | None = None,
) -> Scene:
    """Return the scene in `path`: a folder (or its transforms.json), whose format is told by itself.

    Where `path` has no poses itself, the only scene in the folders below, to a depth of two, is read, or that
    whose photos it holds. An archive is unpacked beside it, once.

    `downscale` divides the photos' sides (COLMAP: a folder `images_k` is used where it exists);
    `images_folder` names another folder of photos, in the scene, or as seen from the working folder.
    Every `test_every`-th view by name is held out, 0: none; where `test_images` names some (each item may be
    several, by commas), just these. `known` are those that the scene of a training had: its frame and its
    split stay where some have come or gone since. Of several models of COLMAP the one of the number `model`
    is read, -1: the one with most images. Raises ValueError with one sentence for everything that is wrong
    with the files; nothing else is written, and photos are decoded only where their colors tell how they lie.
    """
    most = int(declaration(TrainConfig, "downscale").high or 1)
    if downscale not in range(1, most + 1):
        raise ValueError(f"downscale is {downscale!r}, but must be a whole number from 1 to {most}")
    if not test_every >= 0:
        raise ValueError(f"test_every is {test_every}, but must be 0 (no test views) or more")
    folder = typed_path(path).absolute()
    notes = ()
    if is_archive(folder):
        archive, folder = folder, unpacked(folder)
        notes = (f"{archive} is unpacked: {folder} is opened",)
    elif (above := scene_of_pictures(folder)) is not None:
        notes = (f"{folder} has no camera poses itself: {above} is opened",)
        images_folder = images_folder or (str(folder) if COPIES.fullmatch(folder.name) else None)
        folder = above

    def read() -> tuple[Path, Capture]:
        scene = _poses_of_video(folder) if is_video(folder) else folder
        images = None if images_folder is None else _photos(scene, images_folder)
        return scene, _read(scene, downscale, images, model)

    folder, capture = _of_one_estimation(folder, read)
    if not capture.shots:
        raise ValueError(f"{folder} holds no photo with a pose")
    if test_images:
        capture = replace(capture, test_names=_held_out(test_images, capture, folder))
    scene = _scene(opened_again_by(folder), capture, downscale, test_every, known)
    if test_images and (gone := (capture.test_names or frozenset()) - scene.photos.keys()):
        raise ValueError(f"{first_of(sorted(gone), MOST_RUNS)} cannot be held out: {scene.notes[0]}")
    notes = (*notes, *scene.notes)
    return replace(scene, test_images=tuple(test_images), images=str(images_folder or ""), notes=notes)


def _of_one_estimation(source: Path, read: Callable[[], tuple[Path, Capture]]) -> tuple[Path, Capture]:
    """Return what `read` does of `source`, with the same poses from its beginning to its end.

    An estimation beside it may put others in their place. Raises ValueError as `read` does.
    """
    deadline = time.monotonic() + REPLACING_SECONDS
    while True:
        before, late = estimated_state(source), time.monotonic() > deadline
        try:
            found = read()
        except ValueError:
            if late or estimated_state(source) == before:
                raise
        else:
            if late or estimated_state(source) == before:
                return found
        time.sleep(0.02)


def _poses_of_video(video: Path) -> Path:
    """Return the folder of the poses of a video's frames; ValueError where they are not estimated yet."""
    if pose_files(store := estimated_poses(video)) is None:
        raise ValueError(
            f"{video} is a video, whose camera poses are not known yet: `splatstudio poses"
            f" {as_argument(video)}` estimates them"
        )
    return store


def _held_out(test_images: Sequence[str], capture: Capture, folder: Path) -> frozenset[str]:
    """Return the names among the photos' that a user gave; ValueError for one that is not there."""
    names = {shot.name for shot in capture.shots}
    chosen: set[str] = set()
    for item in test_images:
        chosen |= {item} if item in names else {name.strip() for name in item.split(",") if name.strip()}
    unknown = sorted(chosen - names)
    if unknown:
        raise ValueError(
            f"{folder} has no photo {', '.join(unknown)} to hold out; its names are as {min(names)}"
        )
    if chosen == names:
        raise ValueError(f"all {len(names)} photos of {folder} are held out: none is left to train on")
    return frozenset(chosen)


def opened_again_by(path: Path) -> Path:
    """Return the path of the scene in `path`: the folder of a file, unless that folder's poses are others.

    Of a video that is the folder of its poses.
    """
    if is_video(path):
        return estimated_poses(path)
    if path.is_dir() or path.name in (*FILES_OF_SCENES, "transforms.json"):
        return path if path.is_dir() else path.parent
    own = pose_files(path.parent)
    return path.parent if own is not None and own.file == path else path


def is_of_scene(file: Path) -> bool:
    """Return whether a file holds the poses of a scene, or a part of them, so that it can be opened by it."""
    if not file.is_file():
        return False
    if file.name in FILES_OF_SCENES or posed_by(file) is not None:
        return True
    try:
        values = read_json(file) if file.suffix.lower() == ".json" else None
    except ValueError:
        return False
    return isinstance(values, dict) and "frames" in values


def _photos(scene: Path, named: str) -> Path:
    """Return the folder of photos that a user named, which may lie in the scene or anywhere."""
    inside = (scene if scene.is_dir() else scene.parent) / named
    folder = inside if inside.is_dir() else typed_path(named).absolute()
    if not folder.is_dir():
        raise ValueError(f"the folder of photos {named} is not there: name another one with --images FOLDER")
    return folder


def _read(path: Path, downscale: int, images: Path | None, model: int) -> Capture:
    try:
        if not path.exists():
            raise ValueError(f"{path} does not exist; give the folder of a scene: {KNOWN}")
        if path.name in FILES_OF_SCENES and path.is_file():
            path = path.parent
        if path.is_file() and (named := posed_by(path)) is not None:
            return _read_poses(named, downscale, images, model)
        if path.is_file() and path.suffix.lower() == ".json" and unread_poses(path) is None:
            return read_transforms(path, images)
        if not path.is_dir():
            raise no_scene(path)
        return _read_folder(path, downscale, images, model)
    except PermissionError as error:
        raise ValueError(
            f"{error.filename} cannot be read: {error.strerror}; change its permissions"
        ) from error
    except MemoryError as error:
        raise ValueError(
            f"{path} needs more memory than the {free_memory() / 1e9:.1f} GB that are free: close other"
            " programs, or open it on a machine with more memory"
        ) from error


def _read_folder(path: Path, downscale: int, images: Path | None, model: int) -> Capture:
    """Return the scene at the top of `path`, or where that has no poses or no photos, the one below."""
    own, lacking = pose_files(path), None
    if own is not None:
        try:
            return _read_poses(own, downscale, images, model)
        except NoPhotos as error:
            lacking = error
    below = poses_below(path, besides=own) if images is None or own is None else None
    if below is None:
        raise lacking or nothing_found(path)
    capture = _read_poses(below, downscale, images, model)
    what = "no camera poses" if lacking is None else "no photos of its poses"
    return replace(capture, notes=(f"{path} has {what} itself: {below.folder} is opened", *capture.notes))


def _read_poses(files: PoseFiles, downscale: int, images: Path | None, model: int) -> Capture:
    """Return the capture of poses; NoPhotos where their photos are not there, or not in a format to read."""
    try:
        return _read_format(files, downscale, images, model)
    except NoPhotos as error:
        where = images or files.folder
        if not ImageFolder(where).num_unread:
            raise
        raise NoPhotos(f"the photos in {where} are there {TO_JPEG}") from error


def _read_format(files: PoseFiles, downscale: int, images: Path | None, model: int) -> Capture:
    if files.format == "COLMAP":
        return read_colmap(files, downscale=downscale, images=images, number=model)
    if model >= 0:
        raise ValueError(
            f"{files.folder} is a scene of {files.format}, which has one model: --model is for COLMAP's"
        )
    if files.format == "Blender":
        return read_blender(files.folder, images)
    if files.file is not None:
        capture = capture_of(files, READERS[files.format](files.file), images)
        return replace(capture, notes=(*files.notes, *capture.notes))
    return read_transforms(files.folder / "transforms.json", images)


def _scene(
    folder: Path, capture: Capture, downscale: int, test_every: int, known: KnownPhotos | None = None
) -> Scene:
    shots, headers, notes = _readable(sorted(capture.shots, key=lambda shot: shot.name))
    finite = np.all(np.abs(capture.points) < MAX_COORDINATE, axis=1)
    points, colors = capture.points[finite], capture.colors[finite]
    notes += capture.notes
    if not finite.all():
        notes.append(f"{int((~finite).sum())} of {len(finite)} sparse points are not finite and are left out")
    own = replace(capture, points=points[:0] if capture.points_apart else points, colors=colors)
    _refuse_irregular_masks(shots)
    by_size = [measured_lens(shot, header) for shot, header in zip(shots, headers, strict=True)]
    measured, told = as_computed_from(shots, headers, by_size, own)
    notes += told
    notes += _lens_notes(shots, [lens for lens, _ in measured], downscale)
    left_turned = tuple(
        header.orientation if applied == 1 else 1
        for header, (_, applied) in zip(headers, measured, strict=True)
    )
    viewmats = np.stack([shot.viewmat for shot in shots])
    up = np.array([0.0, 0.0, 1.0]) if capture.upright else None
    known = None if known is None else _called_as_now(known, [shot.name for shot in shots])
    if capture.frame is None:
        framing = _framing([shot.name for shot in shots], known)
        turned = tuple(left_turned[index] for index in framing)
        transform = normalizing_transform(viewmats[framing], own.points, turned, up=up)
        num_framed = len(framing)
    else:
        transform, num_framed = capture.frame.matrix, 0
    views = tuple(
        _view(shot, lens, orientation, face, _target_size(shot, lens, face.lens, downscale), transform)
        for shot, (lens, orientation) in zip(shots, measured, strict=True)
        for face in faces(lens)
    )
    scene = Scene(
        path=folder,
        format=capture.format,
        views=views,
        points=(points @ transform[:3, :3].T + transform[:3, 3]).astype(np.float32),
        colors=colors,
        transform=transform,
        extent=1.0,
        test_every=test_every,
        notes=tuple(notes),
        test_names=capture.test_names,
        in_order=() if capture.frame is None else capture.frame.names,
        known=known,
        num_framed=num_framed,
        downscale=downscale,
        unposed=capture.unposed,
        model_folder=capture.model_folder,
        model=capture.model,
    )
    held_out = capture.test_names if capture.test_names is not None else test_every
    if held_out and not scene.test_indices:
        why = "test_every is 1" if test_every == 1 and len(views) > 1 else "too few photos"
        return replace(scene, notes=(*scene.notes, f"no view is held out for the test: {why}"))
    return scene


def _readable(shots: Iterable[CapturedPhoto]) -> tuple[list[CapturedPhoto], list[PictureHeader], list[str]]:
    """Return the photos that are no damaged files, their headers, and a note on the others.

    Raises ValueError where all are damaged, or one is not to be read.
    """
    whole, headers, damaged = list[CapturedPhoto](), list[PictureHeader](), dict[str, DamagedPhoto]()
    for shot in shots:
        try:
            header = picture_header(shot.image_path)
            refuse_cut_off(shot.image_path)
            headers.append(header)
            whole.append(shot)
        except DamagedPhoto as error:
            damaged[shot.name] = error
    if not whole:
        raise next(iter(damaged.values()))
    num = "1 photo is no picture" if len(damaged) == 1 else f"{len(damaged)} photos are no pictures"
    told = f"{num} or damaged and cannot be used: {first_of([*damaged], 3)}"
    return whole, headers, [told] if damaged else []


def _called_as_now(known: KnownPhotos, names: list[str]) -> KnownPhotos | None:
    """Return known photos by their present names; None where none of them is there, as in another scene.

    A photo that is gone is one that has come and is called so, but for its folder or ending: of several the
    one in the folder to which most have gone, or else all of them, so that what was learned is not judged.
    """
    come: dict[str, list[str]] = {}
    for name in sorted(set(names) - set(known.names)):
        come.setdefault(PurePosixPath(name).stem, []).append(name)
    gone = {name: come.get(PurePosixPath(name).stem, []) for name in set(known.names) - set(names)}
    folders = Counter(PurePosixPath(name).parent for found in gone.values() for name in found)
    most = [folder for folder, num in folders.items() if num == max(folders.values())]
    now: dict[str, tuple[str, ...]] = {name: (name,) for name in known.names}
    for name, found in gone.items():
        there = [each for each in found if most == [PurePosixPath(each).parent]]
        now[name] = tuple(there or found) or (name,)

    def called(before: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(each for name in before for each in now[name]))

    all_names = called(known.names)
    if set(all_names).isdisjoint(names):
        return None
    held_out = None if known.held_out is None else frozenset(called(known.held_out))
    return KnownPhotos(all_names, held_out, len(called(known.names[: known.num_framed])))


def _framing(names: list[str], known: KnownPhotos | None) -> list[int]:
    """Return which photos make the frame: those that did in a training where all are there, else all."""
    if known is not None:
        framing = set(known.names[: known.num_framed or None])
        if framing.issubset(names):
            return [index for index, name in enumerate(names) if name in framing]
    return [*range(len(names))]


def _refuse_irregular_masks(shots: list[CapturedPhoto]) -> None:
    """Raise ValueError for the first mask that is no file, which a training would find out in its midst."""
    for shot in shots:
        try:
            if shot.mask_path is not None:
                refuse_irregular(shot.mask_path)
        except OSError as error:
            raise ValueError(
                f"the mask {shot.mask_path} cannot be read: {error.strerror}; name a picture, or remove it"
            ) from error


def _lens_notes(shots: list[CapturedPhoto], lenses: list[Lens], downscale: int) -> list[str]:
    """Return notes on the lenses; raises ValueError, naming the photo, for one that cannot be undone."""
    resampled = num_smaller = num_cropped = num_cut = 0
    for shot, lens in zip(shots, lenses, strict=True):
        try:
            num_cut += len(faces(lens)) > 1
            num_cropped += len(faces(lens)) == 1 and cropped(lens)
        except ValueError as error:
            raise ValueError(f"the photo {shot.image_path} cannot be used: {error}") from error
        stated = shot.lens or lens
        resampled += (stated.width, stated.height) != (lens.width, lens.height)
        share = stated.width / lens.width  # images_4 at --downscale 4 is what was asked for
        num_smaller += share > 1.05 and not abs(share / downscale - 1.0) < 0.05
    notes = []
    if resampled and downscale == 1:
        notes.append(
            f"{resampled} photos are not of the size that their cameras state; the intrinsics were scaled"
        )
    elif num_smaller:
        notes.append(
            f"{num_smaller} photos are smaller than their cameras state: --downscale {downscale} divides the"
            " size that is stated"
        )
    if num_cut:
        notes.append(
            f"{num_cut} photos show more than 150 degrees: each is cut into views of a pinhole camera"
        )
    if num_cropped:
        notes.append(f"{num_cropped} photos show more than 130 degrees or bend too much and are cropped")
    return notes


def measured_lens(shot: CapturedPhoto, header: PictureHeader) -> tuple[Lens, int]:
    """Return the lens of a shot in the pixels of its file, and the EXIF orientation to apply (1: as stored).

    The camera's size decides whether a picture was turned before its camera was computed: programs differ in
    that. Where the size does not tell, a picture with a stated camera is as stored; see `as_computed_from`.
    Raises ValueError when neither way has the camera's proportions.
    """
    stored = (header.width, header.height)
    upright = (stored[1], stored[0]) if header.orientation in EXIF_SIDEWAYS else stored
    lens = shot.lens
    if lens is None:
        focal = 0.5 * upright[0] / math.tan(0.5 * shot.angle_x)
        width, height = upright
        lens = Lens(width, height, focal, focal, 0.5 * width, 0.5 * height)
        return lens, header.orientation
    measured = lens_of_file(lens, header)
    if measured is not None:
        if measured[0].distorted and max(stored) >= LONGEST_DISTORTED:
            raise ValueError(
                f"the photo {shot.image_path} is {stored[0]} x {stored[1]} pixels, and the distortion of its"
                f" lens can be removed of less than {LONGEST_DISTORTED:,} on a side: make the photos smaller"
            )
        return measured
    raise ValueError(
        f"the photo {shot.image_path} is {stored[0]} x {stored[1]} pixels, but its camera is "
        f"{lens.width} x {lens.height}: put the pictures there that the poses were computed from"
    )


def _target_size(shot: CapturedPhoto, lens: Lens, plain: Lens, downscale: int) -> tuple[int, int]:
    """Return the size to deliver: the picture's over `downscale`, less what a smaller file has done of it."""
    stated = shot.lens or lens
    # The part of `downscale` that a smaller file (images_4) has already done.
    done = stated.width / lens.width
    factor = max(1.0, downscale / done) if done > 1 else float(downscale)
    return max(1, round(plain.width / factor)), max(1, round(plain.height / factor))


def _view(
    shot: CapturedPhoto,
    lens: Lens,
    orientation: int,
    face: Face,
    size: tuple[int, int],
    transform: np.ndarray,
) -> View:
    plain, turn = face.lens, rigid(np.array(face.turn), np.zeros(3))
    camera = Camera(turn @ shot.viewmat, plain.K, plain.width, plain.height)
    path = PurePosixPath(shot.name)
    return View(
        name=str(path.with_name(f"{path.stem}_{face.name}{path.suffix}")) if face.name else shot.name,
        camera=camera.resized(*size).transformed(transform),
        image_path=shot.image_path,
        lens=lens,
        mask_path=shot.mask_path,
        orientation=orientation,
        face=face.name,
        photo=shot.name if face.name else "",
        full_image_path=shot.full_image_path,
    )
