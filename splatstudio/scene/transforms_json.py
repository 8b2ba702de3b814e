"""Read transforms.json of instant-ngp and nerfstudio, and Blender's transforms_train/val/test.json."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from splatstudio.scene import colmap_binary
from splatstudio.scene.capture import (
    MAX_COORDINATE,
    Capture,
    CapturedPhoto,
    ImageFolder,
    find_mask,
    missing_note,
    read_file,
    rigid,
)
from splatstudio.scene.colmap_model import MAX_SIDE
from splatstudio.scene.lens import Lens

PINHOLE_MODELS = ("PINHOLE", "SIMPLE_PINHOLE", "SIMPLE_RADIAL", "RADIAL", "OPENCV")
FISHEYE_MODELS = ("OPENCV_FISHEYE", "SIMPLE_RADIAL_FISHEYE", "RADIAL_FISHEYE")
ROTATION_TOLERANCE = 0.02  # of the matrix's scale; poses are printed with few digits by some programs

FORMATS = {"ascii": "", "binary_little_endian": "<", "binary_big_endian": ">"}
MAX_HEADER_BYTES = 65536


@dataclass(frozen=True)
class Record:
    """A JSON object and the place it stands at, for messages; `outer` supplies what it does not say."""

    where: str
    values: dict[str, Any]
    outer: dict[str, Any]

    def get(self, name: str) -> Any:
        """Return the value `name`, the frame's own before the file's, or None."""
        value = self.values.get(name)
        return self.outer.get(name) if value is None else value

    def error(self, what: str) -> ValueError:
        """Return the error that says `what` is wrong here and what to do."""
        return ValueError(f"{self.where} {what}; correct the file or remove the frame")

    def number(self, name: str) -> float | None:
        """Return a finite number, or None when there is none; ValueError when it is something else."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < MAX_COORDINATE:
            raise self.error(f"has {name} = {str(value)[:60]!r}, which is not a number")
        return float(value)

    def text(self, name: str) -> str | None:
        """Return a text, or None when there is none; ValueError when it is something else."""
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise self.error(f"has {name} = {str(value)[:60]!r}, which is not a text")
        return value


def read_frames(path: Path) -> tuple[dict[str, Any], list[Record]]:
    """Return the file's own values and its frames; ValueError when it is no JSON or has no frames."""
    data = read_file(path, "the file")
    try:
        top = json.loads(data.decode("utf-8-sig"))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not valid JSON: {error.msg} at line {error.lineno}; repair the file or make it again"
        ) from error
    except (ValueError, RecursionError) as error:  # bytes that are no text, endless numbers or brackets
        raise ValueError(f"{path} is not valid JSON: it is no text in UTF-8 or nested without end") from error
    frames = top.get("frames") if isinstance(top, dict) else None
    if not isinstance(frames, list) or not frames:
        raise ValueError(
            f"{path} has no frames: it must hold a list `frames` with file_path and transform_matrix"
        )
    records = []
    for number, frame in enumerate(frames, 1):
        where = f"{path}, frame {number},"
        if not isinstance(frame, dict):
            raise ValueError(f"{where} is not an object with file_path and transform_matrix")
        record = Record(where, frame, top)
        if not frame.get("file_path") or record.text("file_path") is None:
            raise ValueError(f"{where} has no file_path")
        records.append(Record(f"{path}, frame {number} ({frame['file_path']}),", frame, top))
    return top, records


def frame_pose(record: Record) -> np.ndarray:
    """Return world to camera [4, 4] (OpenCV axes) from a frame's camera-to-world matrix (OpenGL axes).

    Raises ValueError when `transform_matrix` is not a finite 4 x 4 (or 3 x 4) rotation and shift.
    """
    matrix = matrix_3x4(record.get("transform_matrix"))
    if matrix is None:
        raise record.error("has no transform_matrix of 4 x 4 numbers")
    if not np.abs(matrix).max() < MAX_COORDINATE:
        raise record.error("has a transform_matrix that is not finite")
    axes = matrix[:, :3] * np.array([1.0, -1.0, -1.0])
    scale = np.cbrt(np.linalg.det(axes))
    if not scale > 1e-9:
        raise record.error("has a transform_matrix that is no rotation (it mirrors or is flat)")
    u, _, vt = np.linalg.svd(axes / scale)
    if not np.abs(axes / scale - u @ vt).max() < ROTATION_TOLERANCE:
        raise record.error("has a transform_matrix that is no rotation (it shears)")
    rotation = (u @ vt).T
    return rigid(rotation, -rotation @ matrix[:, 3])


def matrix_3x4(value: Any) -> np.ndarray | None:
    """Return the upper three rows of a JSON matrix of 3 x 4 or 4 x 4 numbers, or None when it is none."""
    rows = value if isinstance(value, list) and len(value) in (3, 4) else []
    plain = all(
        isinstance(row, list)
        and len(row) == 4
        and all(isinstance(x, (int, float)) and not isinstance(x, bool) and abs(x) < 1e300 for x in row)
        for row in rows
    )
    # NaN fails the comparison above, so it is reported as a wrong matrix too.
    return np.array(rows[:3], dtype=np.float64) if rows and plain else None


def frame_lens(record: Record) -> Lens | float:
    """Return the lens of a frame, or its horizontal angle of view (radians) where the size is not told.

    Raises ValueError when neither a focal length nor an angle is told, or a value is impossible.
    """
    fisheye = _is_fisheye(record)
    width, height = record.number("w"), record.number("h")
    fx, fy = record.number("fl_x"), record.number("fl_y")
    angle_x, angle_y = record.number("camera_angle_x"), record.number("camera_angle_y")
    if fx is None and angle_x is None:
        raise record.error("has no intrinsics: neither the frame nor the file has fl_x or camera_angle_x")
    for name, angle in (("camera_angle_x", angle_x), ("camera_angle_y", angle_y)):
        if angle is not None and fx is None and not 0 < angle < math.pi:
            raise record.error(f"has {name} = {angle:g}; it must lie between 0 and pi (radians)")
    if width is None or height is None:
        if fx is None and angle_x is not None and not fisheye:
            return angle_x
        raise record.error("has a focal length but not the picture's size w and h")
    if not (
        1 <= width <= MAX_SIDE and 1 <= height <= MAX_SIDE and width == int(width) and height == int(height)
    ):
        raise record.error(f"has the image size {width:g} x {height:g}, which is impossible")
    if fx is None:
        assert angle_x is not None
        fx = 0.5 * width / math.tan(0.5 * angle_x)
        fy = 0.5 * height / math.tan(0.5 * angle_y) if fy is None and angle_y is not None else fy
    fy = fx if fy is None else fy
    if not (fx > 0 and fy > 0):
        raise record.error(f"has the focal length {fx:g} x {fy:g}, which is not positive")
    cx, cy = record.number("cx"), record.number("cy")
    k1, k2, k3, k4, p1, p2 = (record.number(name) or 0.0 for name in ("k1", "k2", "k3", "k4", "p1", "p2"))
    if k4 != 0 and not fisheye:
        raise record.error(f"has the distortion k4 = {k4:g}, which only fisheye cameras may have")
    return Lens(
        width=int(width),
        height=int(height),
        fx=fx,
        fy=fy,
        cx=0.5 * width if cx is None else cx,
        cy=0.5 * height if cy is None else cy,
        kind="fisheye" if fisheye else "brown",
        distortion=(k1, k2, k3, k4) if fisheye else (k1, k2, p1, p2, k3),
        model=record.text("camera_model") or ("OPENCV_FISHEYE" if fisheye else "OPENCV"),
    )


def _is_fisheye(record: Record) -> bool:
    model = record.text("camera_model") or (
        "OPENCV_FISHEYE" if record.get("is_fisheye") is True else "OPENCV"
    )
    if model in FISHEYE_MODELS:
        return True
    if model not in PINHOLE_MODELS:
        raise ValueError(
            f"{record.where} has the camera_model {model!r}, which is not supported "
            f"({', '.join(PINHOLE_MODELS + FISHEYE_MODELS)} are); undistort the images to a pinhole first"
        )
    return False


TYPES = {
    "char": "i1",
    "int8": "i1",
    "uchar": "u1",
    "uint8": "u1",
    "short": "i2",
    "int16": "i2",
    "ushort": "u2",
    "uint16": "u2",
    "int": "i4",
    "int32": "i4",
    "uint": "u4",
    "uint32": "u4",
    "float": "f4",
    "float32": "f4",
    "double": "f8",
    "float64": "f8",
}


def read_point_ply(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return positions [P, 3] float64 and colors [P, 3] uint8 (gray where the file has none).

    Raises ValueError when the file is missing, damaged, or its first element is not vertices with x, y, z.
    """
    data = read_file(path, "the point file")
    end = data.find(b"end_header", 0, MAX_HEADER_BYTES)
    body = data.find(b"\n", end) + 1
    if not data.startswith(b"ply") or end < 0 or body == 0:
        raise ValueError(f"{path} is not a PLY file: its header is missing or damaged")
    lines = data[:end].decode("ascii", "replace").splitlines()
    order, count, fields = _header(lines, path)
    wide = np.dtype([(name, order + kind if order else "f8") for name, kind in fields])
    if order:
        if count * wide.itemsize > len(data) - body:
            raise ValueError(
                f"{path} is damaged: its {count} points need {count * wide.itemsize} bytes and "
                f"{len(data) - body} are left; copy the file again"
            )
        table = np.frombuffer(data, wide, count, body)
        rows = {name: table[name] for name, _ in fields}
    else:
        rows = _ascii_rows(data[body:], count, [name for name, _ in fields], path)
    positions = np.stack([rows[axis] for axis in "xyz"], axis=1).astype(np.float64)
    if all(name in rows for name in ("red", "green", "blue")):
        channels = np.stack([rows[name] for name in ("red", "green", "blue")], axis=1).astype(np.float64)
        # Colors of floating point are 0..1 by custom.
        scale = 255.0 if dict(fields)["red"].startswith("f") else 1.0
        colors = np.nan_to_num(channels * scale).clip(0, 255).astype(np.uint8)
    else:
        colors = np.full((count, 3), 128, np.uint8)
    return positions, colors


def _header(lines: list[str], path: Path) -> tuple[str, int, list[tuple[str, str]]]:
    """Return the byte order ("" for text), the number of vertices, and the vertices' fields."""
    order: str | None = None
    count, fields = -1, []
    for line in lines[1:]:
        words = line.split()
        if not words or words[0] in ("comment", "obj_info"):
            continue
        if words[0] == "format" and len(words) == 3:
            order = FORMATS.get(words[1])
        elif words[0] == "element" and len(words) == 3:
            if count >= 0:
                break  # vertices come first; what follows them is not needed
            if words[1] != "vertex" or not words[2].isdecimal() or len(words[2]) > 18:
                raise ValueError(
                    f"{path} does not begin with vertices: {line!r}; save it as a plain point cloud"
                )
            count = int(words[2])
        elif words[0] == "property" and len(words) == 3 and words[1] in TYPES and count >= 0:
            fields.append((words[2], TYPES[words[1]]))
        else:
            raise ValueError(
                f"{path} has the header line {line!r}, which cannot be read; save it as a plain cloud"
            )
    names = [name for name, _ in fields]
    if order is None or count < 0 or not {"x", "y", "z"} <= set(names) or len(set(names)) != len(names):
        raise ValueError(
            f"{path} is not a point cloud: its header lacks a known format or vertices with x, y, z"
        )
    return order, count, fields


def _ascii_rows(body: bytes, count: int, names: list[str], path: Path) -> dict[str, np.ndarray]:
    if count * 2 * len(names) > len(body) + 1:
        raise ValueError(f"{path} is damaged: it has fewer than the {count} points of its header")
    words = body.split(maxsplit=count * len(names))[: count * len(names)]
    try:
        table = np.array(words, dtype=np.float64).reshape(count, len(names))
    except ValueError:
        raise ValueError(
            f"{path} is damaged: it does not hold {count} points of {len(names)} numbers"
        ) from None
    return {name: table[:, i] for i, name in enumerate(names)}


def read_transforms(path: Path, images: Path | None = None) -> Capture:
    """Return the capture of one transforms.json; listed photographs that do not exist are counted in a note.

    Photographs are looked for beside the file, or in the folder `images` where it is given. Points come from
    `ply_file_path`, or from nerfstudio's colmap/ folder by `applied_transform`. Raises ValueError for a
    damaged file or when no listed photograph exists.
    """
    top, records = read_frames(path)
    shots, missing = _shots(path.parent, records, images)
    notes = []
    if missing:
        notes.append(missing_note(missing, str(images or path.parent)))
    if not shots:
        raise ValueError(
            f"{notes[0]}; none is left, so put the photographs beside {path.name} as it lists them, or name"
            " their folder with --images FOLDER"
        )
    shots, repeated = _unique(shots)
    if repeated:
        notes.append(f"{repeated} frames list a photograph a second time and are left out")
    points, colors = _points(path, top)
    return Capture("transforms.json", tuple(_short_names(shots)), points, colors, tuple(notes))


def read_blender(folder: Path, images: Path | None = None) -> Capture:
    """Return the capture of a Blender folder: transforms_train.json to train, transforms_test.json to test.

    Views of transforms_val.json are test views when there is no transforms_test.json, else not used. Raises
    ValueError for a damaged file or when no listed photograph of the training file exists.
    """
    notes, shots, test = [], [], frozenset()
    held_out = "test" if (folder / "transforms_test.json").exists() else "val"
    for split in ("train", held_out):
        path = folder / f"transforms_{split}.json"
        if not path.exists():
            continue  # without test and val, every n-th view is held out
        _, records = read_frames(path)
        found, missing = _shots(folder, records, images)
        if missing:
            notes.append(f"{path.name}: {missing_note(missing, str(images or folder))}")
        if split == "train" and not found:
            raise ValueError(
                f"{notes[0]}; none is left to train on: name the photographs' folder with --images FOLDER"
            )
        if split == held_out:
            test = frozenset(shot.name for shot in found)
        shots += found
    shots, repeated = _unique(shots)
    if repeated:
        notes.append(f"{repeated} frames list a photograph a second time and are left out")
    if held_out == "test" and (folder / "transforms_val.json").exists():
        notes.append("the views of transforms_val.json are not used: transforms_test.json is the test")
    return Capture("Blender", tuple(shots), notes=tuple(notes), test_names=test or None)


def _shots(
    folder: Path, records: list[Record], images: Path | None = None
) -> tuple[list[CapturedPhoto], list[str]]:
    """Return a shot for each frame whose photograph exists, and the names of those that do not.

    In the folder `images` each has the end of its listed path: all of it, or without the first few folders,
    as many for all frames as it takes to find any.
    """
    folders: dict[Path, ImageFolder | None] = {}

    def indexed(where: Path) -> ImageFolder | None:
        if where not in folders:
            folders[where] = ImageFolder(where, deep=False) if where.is_dir() else None
        return folders[where]

    def picture(listed: PurePosixPath, num_dropped: int) -> tuple[Path, Path | None]:
        place = folder / listed if images is None else images.joinpath(*listed.parts[num_dropped:])
        pictures = indexed(place.parent)
        found = pictures.find(place.name) if pictures else None
        return place, None if found is None or found.is_dir() else found

    paths = [PurePosixPath((record.text("file_path") or "").replace("\\", "/")) for record in records]
    depth = 0 if images is None else max((len(path.parts) for path in paths), default=0)
    num_dropped = next((n for n in range(depth) if any(picture(path, n)[1] for path in paths)), 0)
    shots, missing = [], []
    for record, path in zip(records, paths, strict=True):
        name, (place, found) = path.as_posix(), picture(path, num_dropped)
        viewmat, lens = frame_pose(record), frame_lens(record)
        if found is None:
            missing.append(name)
            continue
        mask = record.text("mask_path")
        mask_path = (
            folder / mask.replace("\\", "/") if mask else find_mask(indexed(_mask_folder(place)), found.name)
        )
        if mask_path is not None and not mask_path.exists():
            raise ValueError(
                f"{record.where} has the mask_path {mask}, which does not exist; correct or remove it"
            )
        name = (PurePosixPath(name).parent / found.name).as_posix()
        measured = lens if isinstance(lens, Lens) else None
        angle = 0.0 if isinstance(lens, Lens) else lens
        shots.append(CapturedPhoto(name, viewmat, found, measured, angle, mask_path))
    return shots, missing


def _mask_folder(picture: Path) -> Path:
    """Return the masks/ folder beside the folder of a picture."""
    return picture.parent.parent / "masks"


def _unique(shots: list[CapturedPhoto]) -> tuple[list[CapturedPhoto], int]:
    first = {shot.name: shot for shot in reversed(shots)}
    kept = [shot for shot in shots if first[shot.name] is shot]
    return kept, len(shots) - len(kept)


def _short_names(shots: list[CapturedPhoto]) -> list[CapturedPhoto]:
    """Return the shots named by their path below the folder that all of them share."""
    parents = {PurePosixPath(shot.name).parent for shot in shots}
    if len(parents) > 1:
        return shots
    return [replace(shot, name=PurePosixPath(shot.name).name) for shot in shots]


def _points(path: Path, top: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    listed = Record(str(path), top, {}).text("ply_file_path")
    if listed is not None:
        return read_point_ply(path.parent / listed)
    # nerfstudio before version 1.0 wrote no PLY; its colmap/ folder is in the frame before applied_transform.
    model, applied = path.parent / "colmap/sparse/0/points3D.bin", top.get("applied_transform")
    if applied is None or not model.exists():
        return np.zeros((0, 3)), np.zeros((0, 3), np.uint8)
    matrix = matrix_3x4(applied)
    if matrix is None:
        raise ValueError(f"{path} has an applied_transform that is no matrix of 3 x 4 numbers")
    ids, points, colors = colmap_binary.read_points(model)
    order = np.argsort(ids, kind="stable")
    return points[order] @ matrix[:, :3].T + matrix[:, 3], colors[order]
