"""The photos that poses are estimated of: found, measured, grouped by camera, put into the store.

Nothing of the user's folder is changed: pictures are linked, those that COLMAP cannot read are converted.
Here Pillow works and COLMAP does not: in one process their libraries get into each other's way.
"""

from __future__ import annotations

import errno
import io
import itertools
import os
import shutil
import warnings
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

import msgspec
import numpy as np
from PIL import Image, ImageOps

from splatstudio.error_text import as_utf8, first_line
from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import open_input, read_input, sha256_of
from splatstudio.poses.gravity import gravity_in, turned_upright
from splatstudio.poses.raw import develop, reads_raw
from splatstudio.poses.records import Announce, InputPhoto, Manifest
from splatstudio.poses.store import PoseStore
from splatstudio.poses.video import sharpness_of, write_frames
from splatstudio.scene.capture import HEIF_SUFFIXES, IMAGE_SUFFIXES, RAW_SUFFIXES, ImageFolder, find_mask
from splatstudio.scene.layout import COPIES, MADE_OF_PHOTOS, VIDEO_SUFFIXES, is_video
from splatstudio.scene.photo import (
    EXIF_ORIENTATION,
    EXIF_SIDEWAYS,
    is_cut_off,
    oriented,
    picture_header,
    read_mask,
)

CONVERTED_SUFFIXES = (*HEIF_SUFFIXES, ".avif", ".jp2", ".j2k", *RAW_SUFFIXES)
SMALLEST_SIDE = 320  # pixels of the longer side: icons and thumbnails have fewer
FEWEST_PHOTOS = 3
MEASURING = 3  # raise it when a manifest tells something else of the same file
MEASURED_SIDE = 640  # pixels, at which sharpness is measured
MASKS = ("masks", "mask")
SAME = "the same file as "
IMAGE_FOLDERS = ("images", "input")  # that hold the photos of a scene alone

FLIPPED = (2, 3, 4)  # EXIF orientations that turn pixels within the same size
CLOSED = (errno.EACCES, errno.EPERM, errno.ENOENT, errno.ESTALE)  # why a file cannot be opened
TURNED_BACK = {6: 8, 8: 6}  # the orientation that undoes one; the others undo themselves
EXIF_IFD, MAKE, MODEL, LENS, FOCAL_LENGTH, FOCAL_35 = 0x8769, 271, 272, 0xA434, 37386, 41989


@dataclass(frozen=True)
class Sources:
    """The files of a folder that may be photos, and those that are not used, with the reason."""

    root: Path
    photos: tuple[Path, ...]
    videos: tuple[Path, ...]
    masks: Path | None
    not_read: tuple[tuple[Path, str], ...] = ()

    def __len__(self) -> int:
        return len(self.photos) + len(self.videos)


def find_sources(source: Path) -> Sources:
    """Return the photos and videos in a folder and below it, or the one video; nothing is opened.

    Folders of masks, smaller copies, depths and runs are passed over. Where the folder has `images` and no
    picture beside it, that is the folder of the photos. Raises ValueError where it cannot be read.
    """
    if is_video(source):
        return Sources(source.parent, (), (source,), None)
    root = source
    try:
        if not any(_is_input(path) for path in source.iterdir()):
            root = next((source / name for name in IMAGE_FOLDERS if (source / name).is_dir()), source)
        files = sorted(_walk(root))
    except OSError as error:
        raise ValueError(f"the folder {error.filename} cannot be read: {error.strerror}") from error
    masks = next((each / name for each in (source, root) for name in MASKS if (each / name).is_dir()), None)
    readable = (*IMAGE_SUFFIXES, *(HEIF_SUFFIXES if find_spec("pillow_heif") else ()))
    pictures = {path.with_suffix("") for path in files if path.suffix.lower() in readable}
    if reads_raw():
        readable += RAW_SUFFIXES
    photos = tuple(path for path in files if _is_read(path, readable, pictures))
    videos = tuple(path for path in files if path.suffix.lower() in VIDEO_SUFFIXES)
    not_read = [(path, reason) for path in files if (reason := _unreadable(path, readable, pictures))]
    return Sources(root, photos, videos, masks, tuple(not_read))


def _is_input(path: Path) -> bool:
    suffixes = (*IMAGE_SUFFIXES, *HEIF_SUFFIXES, *RAW_SUFFIXES, *VIDEO_SUFFIXES)
    return not path.name.startswith(".") and path.suffix.lower() in suffixes and path.is_file()


def _walk(root: Path) -> Iterable[Path]:
    there = [path for path in root.iterdir() if not path.name.startswith(".")]
    # Of what else would they be smaller copies? Folders that are alone are photos of two days, or so.
    has_originals = any(path.name in IMAGE_FOLDERS or _is_input(path) for path in there)
    for path in there:
        if not path.is_dir():
            yield path
        elif (path / "run.json").exists() or MADE_OF_PHOTOS.fullmatch(path.name):
            continue
        elif not (has_originals and COPIES.fullmatch(path.name)):
            yield from _walk(path)


def _is_read(path: Path, readable: tuple[str, ...], pictures: Collection[Path]) -> bool:
    return path.suffix.lower() in readable and _unreadable(path, readable, pictures) is None


def _unreadable(path: Path, readable: tuple[str, ...], pictures: Collection[Path]) -> str | None:
    """Return why a file with a photo is not read, None where it is, or is no photo."""
    suffix = path.suffix.lower()
    if suffix in (*readable, *RAW_SUFFIXES, *HEIF_SUFFIXES) and as_utf8(str(path)) != str(path):
        return "its name is no text in UTF-8: rename it"
    if suffix in RAW_SUFFIXES and path.with_suffix("") in pictures:
        return "a raw file: the picture of the same name beside it is used"
    if suffix in RAW_SUFFIXES and suffix not in readable:
        return 'a raw file: pip install "splatstudio[raw]", or export it as JPEG or TIFF'
    if suffix in HEIF_SUFFIXES and suffix not in readable:
        return 'HEIC needs pillow-heif: pip install "splatstudio[photos]"'
    return None


def manifest_of(store: PoseStore, frames: int | None, announce: Announce) -> Manifest:
    """Return the inputs of an estimation, with pictures and masks in place in the store.

    What an earlier manifest tells of a file that did not change is not looked at again, and the number of
    `frames` that was asked for last holds until another one is, None: it is not said. `announce` is told
    how many files are done, of how many, and what they are. Raises ValueError, which says why, where fewer
    than three photos can be used.
    """
    if as_utf8(str(store.source)) != str(store.source):
        raise ValueError(f"the path {store.source} is no text in UTF-8: rename it, or move the photos")
    sources = find_sources(store.source)
    before = store.manifest()
    if frames is None and before is not None:
        frames = before.frames
    still_true = before is not None and before.measuring == MEASURING
    known = {photo.source: photo for photo in before.photos} if before is not None and still_true else {}
    masks = None if sources.masks is None else ImageFolder(sources.masks)
    names = _store_names(sources)
    photos: list[InputPhoto] = [
        _stamped(path, sources.root, left_out=reason) for path, reason in sources.not_read
    ]
    for number, path in enumerate(sources.photos):
        announce(number, len(sources), "photos")
        photos.append(_photo(path, names[path], sources.root, store, masks, known))
    notes: list[str] = []
    for number, path in enumerate(sources.videos):
        told = _share(announce, number, sources)
        taken, note = _frames_of(path, names[path], sources.root, store, before, frames, told)
        photos += taken
        notes += note
    photos = _without_duplicates(sorted(photos, key=lambda photo: photo.name), sources.root)
    manifest = Manifest(
        source=str(store.source), photos=tuple(photos), frames=frames, notes=tuple(notes), measuring=MEASURING
    )
    _check(manifest)
    _tidy(store, manifest, before)
    return manifest


def changes(store: PoseStore) -> str | None:
    """Return in words how the files differ from those the poses were estimated of, None where they do not."""
    manifest = store.manifest()
    if manifest is None or not store.source.exists():
        return None
    sources = find_sources(store.source)
    there = {_relative(path, sources.root): path for path in (*sources.photos, *sources.videos)}
    masks = None if sources.masks is None else ImageFolder(sources.masks)
    knows_masks = manifest.measuring == MEASURING  # earlier ones tell only whether there was one
    then = {photo.source: photo for photo in manifest.photos}
    counts = Counter[str]()
    for name, path in there.items():
        if name not in then:
            counts["new"] += 1
        elif (then[name].num_bytes, then[name].mtime_ns) != _stamp(path):
            counts["changed"] += 1
        elif then[name].may_pass:
            counts["that can be read now"] += _can_be_read(path)
        elif knows_masks and not then[name].left_out and then[name].seconds is None:
            counts["with another mask"] += then[name].mask != _mask_stamp(masks, name)
    unread = {_relative(path, sources.root) for path, _ in sources.not_read}
    counts["gone"] = len(then.keys() - there.keys() - unread)
    words = ("new", "changed", "that can be read now", "with another mask", "gone")
    told = [f"{number} {what}" for what in words if (number := counts[what])]
    return ", ".join(told) or None


def _relative(path: Path, root: Path) -> str:
    return as_utf8(path.relative_to(root).as_posix())


def _store_names(sources: Sources) -> dict[Path, str]:
    """Return under which name each file stands in the store, no two under one.

    COLMAP's lists of pairs part names at spaces, and pass over lines that begin with a number sign. Where
    that makes two names one, the file that has it from the start keeps it.
    """
    names: dict[Path, str] = {}
    taken: set[str] = set()

    def for_colmap(path: Path) -> str:
        name = "_".join(_relative(path, sources.root).split())
        return f"_{name}" if name.startswith("#") else name

    def is_renamed(path: Path) -> bool:
        return for_colmap(path) != _relative(path, sources.root)

    for path in sorted((*sources.photos, *sources.videos), key=is_renamed):
        wanted = PurePosixPath(for_colmap(path))
        added = ".jpg" if path.suffix.lower() in CONVERTED_SUFFIXES else ""
        names[path] = f"{wanted}{added}"
        for number in itertools.count(2):
            if names[path] not in taken:
                break
            names[path] = f"{wanted.with_stem(f'{wanted.stem}-{number}')}{added}"
        taken.add(names[path])
    return names


def _mask_stamp(masks: ImageFolder | None, name: str) -> tuple[int, int] | None:
    """Return the stamp of a photo's mask, None where it has none."""
    mask = find_mask(masks, name)
    return None if mask is None else _stamp(mask)


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _stamped(path: Path, root: Path, **values: object) -> InputPhoto:
    num_bytes, mtime_ns = _stamp(path)
    name = _relative(path, root)
    known = {"name": name, "source": name, "num_bytes": num_bytes, "mtime_ns": mtime_ns}
    return msgspec.convert({**known, **values}, InputPhoto)


def _photo(
    path: Path,
    name: str,
    root: Path,
    store: PoseStore,
    masks: ImageFolder | None,
    known: Mapping[str, InputPhoto],
) -> InputPhoto:
    """Return what is known of a photo, and bring its picture and mask into the store under a name."""
    converted = path.suffix.lower() in CONVERTED_SUFFIXES
    mask = find_mask(masks, _relative(path, root))
    mask_stamp = None if mask is None else _stamp(mask)
    before, picture = known.get(_relative(path, root)), store.images / name
    same = before is not None and (before.num_bytes, before.mtime_ns) == _stamp(path)
    # One that was left out beside an equal one has no picture here, and may be the only one by now.
    refused = before is not None and before.left_out and not before.left_out.startswith(SAME)
    refused = refused and before is not None and not before.may_pass
    if before is not None and same and (refused or (before.name == name and picture.exists())):
        kept = msgspec.structs.replace(before, mask=mask_stamp)
        if mask is not None and not refused:
            _put_mask(mask, store.masks / f"{name}.png", kept)
        return kept if refused else msgspec.structs.replace(kept, left_out="")
    try:
        facts = _measured(path, picture if converted else None)
    except ValueError as error:
        return _stamped(path, root, left_out=_reason(error, path), may_pass=_may_pass(error))
    photo = _stamped(path, root, **{"name": name, "mask": mask_stamp, **facts})
    if max(photo.width, photo.height) < SMALLEST_SIDE:
        return msgspec.structs.replace(photo, left_out=f"{photo.width} x {photo.height} pixels: too small")
    if not converted:
        _link(path, picture)
    if mask is not None:
        _put_mask(mask, store.masks / f"{name}.png", photo)
    return photo


def _may_pass(error: ValueError) -> bool:
    """Return whether the file could not even be opened, which is no fault of its content."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in CLOSED


def _can_be_read(path: Path) -> bool:
    try:
        with open_input(path) as file:
            return bool(file.read(1))
    except OSError:
        return False


def _reason(error: ValueError, path: Path) -> str:
    """Return what an error says of a file, without its name, which stands before it in every list."""
    return first_line(error).replace(f"the photo {path} ", "")


def _measured(path: Path, converted: Path | None) -> dict[str, object]:
    """Return what a picture's file tells of it, for InputPhoto; ValueError where it is none or damaged."""
    turned = 1
    if converted is not None:
        turned = _convert(path, converted)
        path = converted
    header = picture_header(path)  # says what is wrong with a file, and how large it may be
    try:
        data = read_input(path)
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or first_line(error)}") from error
    if is_cut_off(data):
        raise ValueError("is cut off: the end of the file is missing; copy it again")
    try:
        with warnings.catch_warnings(), Image.open(path) as image:
            warnings.simplefilter("ignore")
            exif = image.getexif() if image.format != "PNG" else Image.Exif()
            details = exif.get_ifd(EXIF_IFD)
            image.draft("L", (MEASURED_SIDE, MEASURED_SIDE))
            gray = image.convert("L")
            gray.thumbnail((MEASURED_SIDE, MEASURED_SIDE))
            sharpness = sharpness_of(np.asarray(gray))
    except (OSError, SyntaxError, ValueError, MemoryError) as error:
        raise ValueError(f"cannot be decoded: {first_line(error)}; replace the file") from error
    told = [_text(exif.get(MAKE)), _text(exif.get(MODEL)), _text(details.get(LENS))]
    told += [_text(details.get(FOCAL_LENGTH)), _text(details.get(FOCAL_35))]
    # Where no file tells the camera, photos of one folder and one size are taken by the same one.
    camera = " ".join(filter(None, told)) if any(told[:2]) else f"in {path.parent.name}"
    gravity = gravity_in(details)
    return {
        "width": header.width,
        "height": header.height,
        "orientation": header.orientation,
        "camera": f"{camera} {header.width} x {header.height}",
        "sharpness": sharpness,
        "gravity": gravity and turned_upright(gravity, turned),
    }


def _text(value: object) -> str:
    return "" if value is None else str(value).strip("\0 ")


def _convert(path: Path, target: Path) -> int:
    """Write a HEIC, AVIF or raw file as JPEG, upright, with its EXIF; ValueError where it cannot be decoded.

    Return the EXIF orientation by which its pixels were turned: what else the file tells is of before. Raises
    OSError where the JPEG cannot be written; nothing of it is left then.
    """
    orientation = 1
    if path.suffix.lower() in RAW_SUFFIXES:
        picture, exif = develop(path)
    else:
        picture, exif, orientation = _decoded(path)
    encoded = io.BytesIO()
    picture.save(encoded, "JPEG", quality=95, subsampling=0, exif=exif)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_durably(target, encoded.getbuffer())
    return orientation if orientation in range(1, 9) else 1


def _decoded(path: Path) -> tuple[Image.Image, Image.Exif, int]:
    """Return the upright picture of a HEIC or AVIF file, its EXIF, and the orientation that it had."""
    from pillow_heif import register_heif_opener

    register_heif_opener()
    try:
        with Image.open(path) as image:
            exif = image.getexif()
            # The decoder of HEIC has turned it already, and says so; that of AVIF leaves it as it is.
            orientation = image.info.get("original_orientation") or exif.get(EXIF_ORIENTATION, 1)
            upright = ImageOps.exif_transpose(image).convert("RGB")
            exif[EXIF_ORIENTATION] = 1
    except (OSError, SyntaxError, ValueError, RuntimeError) as error:
        raise ValueError(f"cannot be decoded: {first_line(error)}; replace the file") from error
    return upright, exif, orientation


def _put_mask(mask: Path, place: Path, photo: InputPhoto) -> None:
    """Put a mask into the store; one that COLMAP reads otherwise than a training as black and white alone.

    COLMAP wants it of the size of the stored picture, and turned as that; one in the photo's size is meant
    upright, but for a photo on its side. Raises ValueError for other proportions, which no training takes.
    """
    size = (photo.width, photo.height)
    try:
        with Image.open(mask) as image:
            is_plain = image.mode in ("1", "L", "P", "RGB") and not image.has_transparency_data
            is_plain = is_plain and image.size == size and photo.orientation not in FLIPPED
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        is_plain = True  # what it says of it is told where it is used
    if is_plain:
        _link(mask, place)
        return
    upright = read_mask(
        mask, photo.orientation, *(size[::-1] if photo.orientation in EXIF_SIDEWAYS else size)
    )
    stored = oriented(upright, TURNED_BACK.get(photo.orientation, photo.orientation))
    place.parent.mkdir(parents=True, exist_ok=True)
    place.unlink(missing_ok=True)
    Image.fromarray(stored * np.uint8(255)).save(place)


def _link(path: Path, place: Path) -> None:
    """Put a file into the store by a link that survives when both are moved; a copy where there are none."""
    place.parent.mkdir(parents=True, exist_ok=True)
    target = os.path.relpath(path, place.parent)
    if place.is_symlink() and os.readlink(place) == target:
        return
    place.unlink(missing_ok=True)
    try:
        place.symlink_to(target)
    except OSError:
        shutil.copyfile(path, place)


def _share(announce: Announce, number: int, sources: Sources) -> Callable[[float], None]:
    """Return what is told how much of a video is done."""
    done = len(sources.photos) + number
    total = len(sources)
    return lambda share: announce(round(100 * (done + share)), 100 * total, "% of the videos")


def _frames_of(
    path: Path,
    place: str,
    root: Path,
    store: PoseStore,
    before: Manifest | None,
    frames: int | None,
    announce: Callable[[float], None],
) -> tuple[list[InputPhoto], list[str]]:
    """Return the frames of a video that are used, and notes; those of before where nothing has changed.

    They stand in the store's folder `place`.
    """
    name = _relative(path, root)
    if before is not None and before.frames == frames:
        kept = [photo for photo in before.photos if photo.source == name]
        same = all((photo.num_bytes, photo.mtime_ns) == _stamp(path) for photo in kept)
        same = same and all(photo.name.startswith(f"{place}/") for photo in kept)
        if kept and same and all((store.images / photo.name).exists() for photo in kept):
            return kept, [note for note in before.notes if note.startswith(name)]
    folder = store.images / place
    shutil.rmtree(folder, ignore_errors=True)
    try:
        written = write_frames(path, folder, frames, announce)
    except ValueError as error:
        return [_stamped(path, root, left_out=first_line(error))], []
    photos = [
        _stamped(
            path,
            root,
            name=f"{place}/{frame.name}",
            width=frame.width,
            height=frame.height,
            camera=f"video {name} {frame.width} x {frame.height}",
            sharpness=frame.sharpness,
            seconds=frame.seconds,
        )
        for frame in written.frames
    ]
    return photos, [f"{name}: {note}" for note in written.notes]


def _without_duplicates(photos: list[InputPhoto], root: Path) -> list[InputPhoto]:
    """Return the photos, with those left out whose files are equal to that of an earlier one."""
    sizes = Counter(photo.num_bytes for photo in photos if not photo.left_out and photo.seconds is None)
    first: dict[str, str] = {}
    checked: list[InputPhoto] = []
    for photo in photos:
        if not photo.left_out and photo.seconds is None and sizes[photo.num_bytes] > 1:
            digest = sha256_of(root / photo.source)
            if digest in first:
                photo = msgspec.structs.replace(photo, left_out=SAME + first[digest])
            first.setdefault(digest, photo.name)
        checked.append(photo)
    return checked


def _check(manifest: Manifest) -> None:
    """Raise ValueError, with the reasons, where there is too little to estimate poses of."""
    num, path = len(manifest.used), manifest.source
    if num >= FEWEST_PHOTOS:
        return
    if not manifest.photos:
        raise ValueError(f"{path} holds no photos and no videos: name the folder that does")
    if manifest.photos[0].left_out and len(manifest.photos) == 1 and is_video(Path(path)):
        raise ValueError(f"{path} cannot be used: {manifest.photos[0].left_out}")
    reasons = Counter(photo.left_out for photo in manifest.photos if photo.left_out)
    example = {photo.left_out: photo.source for photo in reversed(manifest.photos)}
    told = "; ".join(
        example[reason] + (f" and {count - 1} more" if count > 1 else "") + f": {reason}"
        for reason, count in reasons.most_common(5)
    )
    what = "photo that can be used" if num == 1 else "photos that can be used"
    few = f"{path} has {num or 'no'} {what}, and poses need at least {FEWEST_PHOTOS} (20 or more are good)"
    raise ValueError(f"{few}; {told}" if told else few)


def _tidy(store: PoseStore, manifest: Manifest, before: Manifest | None) -> None:
    """Remove from the store what is of files that are gone, have changed, or are not used any more."""
    used = {photo.name: photo for photo in manifest.used}
    if before is not None:
        then = {photo.name: photo for photo in before.photos}
        stale = [name for name, photo in then.items() if _identity(used.get(name)) != _identity(photo)]
        store.forget(stale)
    for folder, names in (
        (store.images, set(used)),
        (store.masks, {f"{name}.png" for name, photo in used.items() if photo.mask}),
    ):
        for path in [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]:
            if _relative(path, folder) not in names:
                path.unlink()


def _identity(photo: InputPhoto | None) -> tuple[object, ...]:
    """Return what a picture's features depend on."""
    if photo is None:
        return ()
    return photo.num_bytes, photo.mtime_ns, photo.seconds, photo.mask, photo.camera
