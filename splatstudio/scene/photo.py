"""Photos: decode, turn upright, undistort, mask, downscale.

Tags of TIFF files by which OpenCV's decoder turns pictures and multiplies colors by their alpha are set
aside: poses belong to the pixels as they are stored. Source: TIFF 6.0 and BigTIFF, the layout of directories.
"""

from __future__ import annotations

import io
import os
import re
import struct
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import cv2
import numpy as np
from PIL import Image, UnidentifiedImageError
from PIL.TiffImagePlugin import IMAGELENGTH, IMAGEWIDTH, TiffImageFile

from splatstudio.cameras.camera import Camera
from splatstudio.error_text import unreadable
from splatstudio.files.inputs import open_input
from splatstudio.scene import photo_cache
from splatstudio.scene.capture import View, read_file
from splatstudio.scene.lens import Lens, directions_through, faces, undistortion_maps

LIMIT_VARIABLE = "SPLATSTUDIO_MAX_MEGAPIXELS"
PILLOWS_MEGAPIXELS = 178  # twice the pixels from which on it warns
NEWER_SUFFIXES = (".avif", ".jp2", ".j2k")
EXIF_ORIENTATION = 0x0112
END_OF_JPEG = b"\xff\xd9"
CUT_OFF = (
    "the photo {} is cut off: the end of the file is missing; copy it again, or remove it to go on without it"
)
TAIL = 1 << 16  # bytes at the end of a file
EXIF_SIDEWAYS = (5, 6, 7, 8)  # orientations that exchange width and height


@dataclass(frozen=True, eq=False)
class Photo:
    """One decoded photo of its camera's size."""

    rgb: np.ndarray  # [H, W, 3] uint8, as in the file; not multiplied by alpha
    mask: np.ndarray | None = None  # [H, W] bool, False: the pixel says nothing; None: all count
    alpha: np.ndarray | None = None  # [H, W] uint8, 0 is background; None: all opaque

    @property
    def num_bytes(self) -> int:
        """Return the memory its arrays take."""
        return sum(a.nbytes for a in (self.rgb, self.mask, self.alpha) if a is not None)


# Marker bytes of JPEG; in a scan zeros and the numbers of restarts follow what is none.
JPEG_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]", re.DOTALL)
END_OF_IMAGE, TEMPORARY = 0xD9, 0x01
PNG = b"\x89PNG\r\n\x1a\n"  # how one begins; blocks with their lengths follow


@dataclass(frozen=True)
class PictureHeader:
    """What a picture file tells before it is decoded: its stored size and its EXIF orientation (1: none)."""

    width: int
    height: int
    orientation: int = 1


class DamagedPhoto(ValueError):
    """A file is no picture, or of its beginning not enough is left to be one."""


def max_megapixels() -> int:
    """Return how many megapixels a photo may have: as a variable says, else Pillow's limit."""
    asked = os.environ.get(LIMIT_VARIABLE, "")
    return int(asked) if asked.isdecimal() else PILLOWS_MEGAPIXELS


def _allow_large_pictures() -> None:
    # Pillow refuses what has twice as many pixels as its own number says, and warns of the rest.
    if os.environ.get(LIMIT_VARIABLE, "").isdecimal():
        Image.MAX_IMAGE_PIXELS = max_megapixels() * 500_000


def picture_header(path: Path) -> PictureHeader:
    """Return the size and orientation of a picture file without decoding it.

    Raises DamagedPhoto where it is none, ValueError where it is not to be read.
    """
    _allow_large_pictures()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # 100 megapixel cameras exist
            with open_input(path) as file, Image.open(file) as image:
                orientation = _exif(image).get(EXIF_ORIENTATION, 1)
                width, height = image.size
                if isinstance(image, TiffImageFile):  # whose size Pillow turns already
                    width, height = image.tag_v2[IMAGEWIDTH], image.tag_v2[IMAGELENGTH]
    except Image.DecompressionBombError as error:
        found = re.search(r"\((\d+) pixels", str(error))
        size = f"{int(found[1]) / 1e6:,.0f} megapixels" if found else "too many pixels"
        raise ValueError(
            f"the photo {path} is too large: it has {size}, and {max_megapixels():,} are allowed; shrink"
            f" it, or set {LIMIT_VARIABLE} to a higher number where there is memory for that"
        ) from error
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError) as error:
        if not isinstance(error, OSError) or isinstance(error, UnidentifiedImageError):
            read_file(path, "the photo")  # says so where it is a pointer of Git LFS
        if isinstance(error, OSError) and error.strerror:  # of the disk, or of what is no regular file
            remedy = "change its permissions" if isinstance(error, PermissionError) else "replace the file"
            raise ValueError(f"the photo {path} cannot be read: {error.strerror}; {remedy}") from error
        why = "it is no picture or is damaged; replace the file"
        raise DamagedPhoto(f"the photo {path} cannot be read: {why}") from error
    orientation = orientation if isinstance(orientation, int) and 1 <= orientation <= 8 else 1
    return PictureHeader(width, height, orientation)


def read_photo(view: View) -> Photo:
    """Return the photo of `view`; raises ValueError, naming the file, when it cannot be decoded."""
    key = photo_cache.key(view) if view.lens.distorted else None
    if key is not None and (stored := photo_cache.load(key, view.camera)) is not None:
        return Photo(*stored)
    pixels = oriented(decode(view.image_path), view.orientation)
    height, width = pixels.shape[:2]
    if (width, height) != (view.lens.width, view.lens.height):
        raise ValueError(
            f"the photo {view.image_path} has changed: it is {width} x {height} pixels now and was "
            f"{view.lens.width} x {view.lens.height} when the scene was opened; open the scene again"
        )
    mask = read_mask(view.mask_path, view.orientation, width, height) if view.mask_path else None
    rgb, alpha = _channels(pixels)
    # Filters mix neighboring pixels: colors must be weighted by their alpha, or the unseen color of
    # transparent pixels bleeds into the edge.
    image = rgb if alpha is None else _premultiplied(rgb, alpha)
    if view.lens.distorted:
        face = next(face for face in faces(view.lens) if face.name == view.face)
        map_x, map_y, inside = undistortion_maps(face, view.lens)
        border = cv2.BORDER_REPLICATE
        if view.lens.kind == "equirectangular":
            # Only the sides meet: above the zenith is no ground.
            border, map_y = cv2.BORDER_WRAP, map_y.clip(0, height - 1)
        image = cv2.remap(image, map_x, map_y, cv2.INTER_LINEAR, borderMode=border)
        if mask is not None:
            whole = mask.astype(np.uint8) * 255
            mask = cv2.remap(whole, map_x, map_y, cv2.INTER_LINEAR, borderMode=border) == 255
        if inside is not None:
            mask = inside if mask is None else mask & inside
    size = (view.camera.width, view.camera.height)
    image = _shrunk(image, size)
    if mask is not None:
        # A pixel that is mixed of counted and ignored ones is ignored.
        mask = _shrunk(mask.astype(np.float32), size) > 0.999
    photo = Photo(image, mask) if alpha is None else Photo(*_straight(image, mask))
    if key is not None:
        photo_cache.store(key, photo.rgb, photo.mask, photo.alpha)
    return photo


def read_whole_photo(view: View) -> Photo:
    """Return the photo of `view` in its full size, however small it is trained on.

    That is the size of its file, or of the photo of which the file is a smaller copy. Raises ValueError as
    `read_photo` does.
    """
    view = _in_full_size(view)
    return read_photo(replace(view, camera=whole_camera(view)))


def whole_camera(view: View) -> Camera:
    """Return the camera of the photo in its full size; raises as `read_whole_photo`, which reads it so."""
    view = _in_full_size(view)
    lens = next(face.lens for face in faces(view.lens) if face.name == view.face)
    return view.camera.resized(lens.width, lens.height)


def _in_full_size(view: View) -> View:
    """Return the view with the file of full size, where that is known and shows the same."""
    if view.full_image_path is None:
        return view
    header = picture_header(view.full_image_path)
    measured = lens_of_file(view.lens, header)
    if measured is None:
        return view
    lens, orientation = measured
    if header.orientation == view.orientation:
        orientation = view.orientation  # which is told by more than the size
    return replace(view, image_path=view.full_image_path, lens=lens, orientation=orientation)


def decode(path: Path) -> np.ndarray:
    """Return the stored pixels [H, W, C] uint8: C is 3 (RGB) or 4 (RGBA); 16 bits become 8, gray becomes RGB.

    Raises ValueError, naming the file, when it is damaged, cut off, or of floating point.
    """
    pixels, premultiplied = _stored(path)
    if pixels.dtype == np.uint16:
        pixels = ((pixels.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if pixels.dtype != np.uint8:
        raise ValueError(f"the photo {path} has pixels of type {pixels.dtype}; save it with 8 or 16 bits")
    if pixels.ndim == 2 or pixels.shape[2] == 1:
        return np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    if pixels.shape[2] == 2:
        return pixels[..., [0, 0, 0, 1]]
    pixels = cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB if pixels.shape[2] == 3 else cv2.COLOR_BGRA2RGBA)
    return _divided_by_alpha(pixels) if premultiplied and pixels.shape[2] == 4 else pixels


def _stored(path: Path) -> tuple[np.ndarray, bool]:
    """Return the numbers of a picture file in OpenCV's order, and whether alpha is multiplied into them."""
    data = read_file(path, "the photo")
    if is_cut_off(data):
        raise ValueError(CUT_OFF.format(path))
    premultiplied, data = has_premultiplied_colors(data), as_stored(data)
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED) if data else None
    except cv2.error:
        pixels = None
    if pixels is None and path.suffix.lower() in NEWER_SUFFIXES:
        pixels = _decoded_by_pillow(data)
    if pixels is None:
        raise ValueError(f"the photo {path} cannot be decoded: the file is damaged; replace or remove it")
    return pixels, premultiplied


def _divided_by_alpha(pixels: np.ndarray) -> np.ndarray:
    color, alpha = pixels[..., :3].astype(np.float32), pixels[..., 3:]
    straight = np.rint(color * 255.0 / np.maximum(alpha, 1)).clip(0, 255).astype(np.uint8)
    return np.concatenate([straight, alpha], axis=2)


def _decoded_by_pillow(data: bytes) -> np.ndarray | None:
    """Return the pixels in OpenCV's order of channels, of a kind that not every OpenCV decodes; or None."""
    try:
        with Image.open(io.BytesIO(data)) as image:
            pixels = np.asarray(image.convert("RGBA" if image.has_transparency_data else "RGB"))
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None
    return cv2.cvtColor(pixels, cv2.COLOR_RGBA2BGRA if pixels.shape[2] == 4 else cv2.COLOR_RGB2BGR)


def read_mask(path: Path, orientation: int, width: int, height: int) -> np.ndarray:
    """Return a mask file as bool [height, width] (upright); 0 and what is clear is False, all else True.

    So labels of objects are masks, too, of 8 and of 16 bits. It may be stored upright or, where its
    proportions tell, as the photo is, in any size. Raises ValueError when it cannot be decoded or has others.
    """
    mask = stored_mask(path)
    fits = same_proportions(mask.shape[1::-1], (width, height))
    if orientation in EXIF_SIDEWAYS and not fits and same_proportions(mask.shape[1::-1], (height, width)):
        mask = oriented(mask, orientation)
    if not same_proportions(mask.shape[1::-1], (width, height)):
        raise ValueError(
            f"the mask {path} is {mask.shape[1]} x {mask.shape[0]} pixels and its photo {width} x "
            f"{height}; make the mask of the photo's size or remove it"
        )
    return cv2.resize(mask, (width, height), interpolation=cv2.INTER_NEAREST) > 0


def stored_mask(path: Path) -> np.ndarray:
    """Return where a mask file is neither black nor clear, [H, W] uint8 0 or 1, as it is stored.

    Raises ValueError, naming the file, when it cannot be decoded.
    """
    channels = np.atleast_3d(_stored(path)[0])
    num_colors = 1 if channels.shape[2] <= 2 else 3
    counted = np.any(channels[..., :num_colors] > 0, axis=2)
    if channels.shape[2] in (2, 4):
        counted &= channels[..., -1] > 0
    return np.asarray(counted, np.uint8)


def oriented(pixels: np.ndarray, orientation: int) -> np.ndarray:
    """Return `pixels` [H, W, ...] turned upright by an EXIF orientation (1..8)."""
    turned = {
        1: lambda a: a,
        2: lambda a: a[:, ::-1],
        3: lambda a: a[::-1, ::-1],
        4: lambda a: a[::-1],
        5: lambda a: a.swapaxes(0, 1),
        6: lambda a: a.swapaxes(0, 1)[:, ::-1],
        7: lambda a: a.swapaxes(0, 1)[::-1, ::-1],
        8: lambda a: a.swapaxes(0, 1)[::-1],
    }[orientation](pixels)
    return np.ascontiguousarray(turned)


def lens_of_file(lens: Lens, header: PictureHeader) -> tuple[Lens, int] | None:
    """Return a lens in the pixels of a file, and the EXIF orientation to apply (1: as stored).

    None where the file has the lens's proportions neither as it is stored nor turned upright.
    """
    stored = (header.width, header.height)
    upright = (stored[1], stored[0]) if header.orientation in EXIF_SIDEWAYS else stored
    ways = ((stored, 1), (upright, header.orientation))
    for size, orientation in ways:
        if size == (lens.width, lens.height):
            return lens, orientation
    for size, orientation in ways:
        if same_proportions(size, (lens.width, lens.height)):
            return lens.resized(*size), orientation
    return None


def same_proportions(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two sizes (width, height) may be of one picture, resampled and rounded."""
    # One pixel of tolerance in each direction.
    low = max((size[0] - 1) / other[0], (size[1] - 1) / other[1])
    high = min((size[0] + 1) / other[0], (size[1] + 1) / other[1])
    return low <= high


def _exif(image: Image.Image) -> Image.Exif:
    if image.format != "PNG":
        return image.getexif()
    # A PNG may hold its EXIF block after the pixels, and Pillow would decode them all to look for it.
    exif = Image.Exif()
    exif.load(image.info.get("exif", b""))
    return exif


def is_cut_off(data: bytes) -> bool:
    """Return whether a JPEG or PNG file lacks its end; decoders fill the missing part with gray silently."""
    if data.startswith(b"\xff\xd8"):
        return not _jpeg_ends(data)
    place = len(PNG) if data.startswith(PNG) else len(data)
    while place < len(data):
        # A length that leads out of the file has OpenCV ask for as much memory, a gigabyte perhaps.
        length, kind = int.from_bytes(data[place : place + 4], "big"), data[place + 4 : place + 8]
        place += 12 + length
        if kind == b"IEND":
            return place > len(data)
    return data.startswith(PNG)


def refuse_cut_off(path: Path) -> None:
    """Raise DamagedPhoto where a JPEG or PNG file lacks its end.

    Of a large file the last part tells, so that not all photos of a scene are read, but for those with a
    video behind them. Raises ValueError where it cannot be read.
    """
    try:
        with open_input(path) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            tail = file.read()
    except OSError as error:
        raise ValueError(unreadable(f"the photo {path}", error)) from error
    # In a small one that may be the end of its thumbnail.
    whole = size > 4 * TAIL and (END_OF_JPEG in tail or b"IEND" in tail)
    if not whole and is_cut_off(read_file(path, "the photo")):
        raise DamagedPhoto(CUT_OFF.format(path))


def _jpeg_ends(data: bytes) -> bool:
    """Return whether a JPEG file has the end of its first picture; a video may follow, of a phone's.

    Source: ITU-T T.81, annex B. Segments, which hold the thumbnail's markers, are passed by their lengths.
    """
    found = JPEG_MARKER.search(data, 2)
    while found is not None:
        kind, place = found[0][-1], found.end()
        if kind == END_OF_IMAGE:
            return True
        if kind != TEMPORARY:
            place += int.from_bytes(data[place : place + 2], "big")
        found = JPEG_MARKER.search(data, place)
    return False


def _channels(pixels: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    if pixels.shape[2] == 3:
        return pixels, None
    alpha = pixels[..., 3]
    return np.ascontiguousarray(pixels[..., :3]), None if (alpha == 255).all() else alpha


def _premultiplied(rgb: np.ndarray, alpha: np.ndarray) -> np.ndarray:
    weight = alpha[..., None].astype(np.float32) / 255.0
    return np.concatenate([rgb * weight, weight], axis=2).astype(np.float32)


def _straight(image: np.ndarray, mask: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
    weight = image[..., 3:]
    rgb = np.where(weight > 1e-6, image[..., :3] / np.maximum(weight, 1e-6), 0.0)
    alpha = np.rint(weight[..., 0] * 255.0).clip(0, 255).astype(np.uint8)
    return np.rint(rgb).clip(0, 255).astype(np.uint8), mask, alpha


def _shrunk(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if (image.shape[1], image.shape[0]) == size:
        return image
    return cv2.resize(image, size, interpolation=cv2.INTER_AREA)


ORIENTATION, EXTRA_SAMPLES = 274, 338
ASSOCIATED, UNASSOCIATED = 1, 2  # alpha that colors have been multiplied by, and one they have not
SHORT = 3  # of two bytes, as both tags are
AS_STORED = {ORIENTATION: 1, EXTRA_SAMPLES: ASSOCIATED}


def as_stored(data: bytes) -> bytes:
    """Return a TIFF file of the same pixels that decoders neither turn nor multiply by their alpha.

    Other files come back as they are, and damaged ones with what could be read of their tags.
    """
    changed: bytearray | None = None
    for place, tag, order in _short_tags(data):
        wanted = struct.pack(f"{order}H", AS_STORED[tag])
        if data[place : place + 2] != wanted:
            changed = bytearray(data) if changed is None else changed
            changed[place : place + 2] = wanted
    return data if changed is None else bytes(changed)


def has_premultiplied_colors(data: bytes) -> bool:
    """Return whether the colors of a TIFF file are stored multiplied by their alpha."""
    found = {tag: struct.unpack_from(f"{order}H", data, place)[0] for place, tag, order in _short_tags(data)}
    return found.get(EXTRA_SAMPLES) == ASSOCIATED


def _short_tags(data: bytes) -> Iterator[tuple[int, int, str]]:
    """Yield where the values of the tags of AS_STORED lie in the first directory, tag and order of bytes."""
    order = {b"II": "<", b"MM": ">"}.get(data[:2])
    if order is None:
        return
    try:
        (version,) = struct.unpack_from(f"{order}H", data, 2)
        big = version == 43
        if not big and version != 42:
            return
        (directory,) = struct.unpack_from(f"{order}{'Q' if big else 'I'}", data, 8 if big else 4)
        count, entry = (
            struct.Struct(f"{order}{'Q' if big else 'H'}"),
            struct.Struct(f"{order}HH{'Q' if big else 'I'}"),
        )
        (num,) = count.unpack_from(data, directory)
        size = entry.size + (8 if big else 4)
        for start in range(directory + count.size, directory + count.size + num * size, size):
            tag, kind, _ = entry.unpack_from(data, start)
            if tag in AS_STORED and kind == SHORT and start + size <= len(data):
                yield start + entry.size, tag, order
    except struct.error:  # cut off: the decoder says so
        return


def whole_photo(view: View) -> Photo:
    """Return the whole photo of which `view` is a part, undivided, at the size of the views' pixels.

    Its mask leaves out what the lens does not show. Raises ValueError when the file cannot be decoded.
    """
    lens = _small_lens(view)
    # Without distortion nothing is undone: the picture comes as its file has it.
    plain = replace(view.lens, kind="brown", distortion=())
    camera = replace(view.camera, width=lens.width, height=lens.height)
    photo = read_photo(replace(view, lens=plain, camera=camera, face=""))
    shown = np.isfinite(directions_through(lens)).all(axis=-1)
    if shown.all():
        return photo
    return replace(photo, mask=shown if photo.mask is None else photo.mask & shown)


def whole_picture(views: Sequence[View], pictures: Sequence[np.ndarray]) -> np.ndarray:
    """Return what the `views` of one photo show, as [H, W, C] float32 pictures, through its lens.

    What none of them shows is 0.
    """
    lens = _small_lens(views[0])
    directions = directions_through(lens)
    whole = np.zeros((lens.height, lens.width, pictures[0].shape[-1]), np.float32)
    turns = {face.name: np.array(face.turn, np.float32) for face in faces(views[0].lens)}
    for view, picture in zip(views, pictures, strict=True):
        x, y, z = np.moveaxis(directions @ turns[view.face].T, -1, 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            ahead = z >= np.maximum(np.abs(x), np.abs(y)) * (1 - 1e-6)
            k = view.camera.K
            map_x = np.where(ahead, x / z * k[0, 0] + k[0, 2] - 0.5, -1).astype(np.float32)
            map_y = np.where(ahead, y / z * k[1, 1] + k[1, 2] - 0.5, -1).astype(np.float32)
        seen = cv2.remap(picture, map_x, map_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        whole[ahead] = seen[ahead]
    return whole


def _small_lens(view: View) -> Lens:
    """Return the lens of the whole photo at the size at which the view is delivered."""
    face = next(face for face in faces(view.lens) if face.name == view.face)
    factor = view.camera.width / face.lens.width
    width, height = (max(1, round(side * factor)) for side in (view.lens.width, view.lens.height))
    return view.lens.resized(width, height)
