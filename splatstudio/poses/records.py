"""What is kept of an estimation: its inputs, its report, its progress; msgspec structs, JSON on the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec

from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import read_input

FORMAT_VERSION = 1

Record = TypeVar("Record", bound=msgspec.Struct)


class InputPhoto(msgspec.Struct, frozen=True, kw_only=True):
    """One photo, or one frame of a video, that poses are estimated of, or the reason why not.

    `source` is the user's file and `name` the path of its picture below `images` of the store. `camera` is
    equal for all photos that one lens took at one focal length. `sharpness` is a variance of second
    derivatives: it compares photos of one set and nothing else.
    """

    name: str
    source: str
    num_bytes: int
    mtime_ns: int
    width: int = 0
    height: int = 0
    orientation: int = 1
    camera: str = ""
    sharpness: float = 0.0
    seconds: float | None = None  # in its video
    gravity: tuple[float, float, float] | None = None  # downward, in the axes of the stored picture
    mask: tuple[int, int] | None = None  # bytes and mtime_ns of its mask; None: it has none
    left_out: str = ""  # why it is not used
    may_pass: bool = False  # whether that was no fault of the file, as a missing permission is none


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """All inputs of an estimation. `frames` is how many of each video were asked for last, None: never."""

    source: str
    photos: tuple[InputPhoto, ...]
    frames: int | None = None
    notes: tuple[str, ...] = ()
    measuring: int = 1  # by which rules photos were measured; the first took no turn of gravity into account
    version: int = FORMAT_VERSION

    @property
    def used(self) -> tuple[InputPhoto, ...]:
        """Return the photos that are not left out."""
        return tuple(photo for photo in self.photos if not photo.left_out)

    @property
    def of_video(self) -> bool:
        """Return whether all of them are frames of videos."""
        return all(photo.seconds is not None for photo in self.used)


class StageStep(msgspec.Struct, frozen=True, tag=True):
    """How far a stage is: `done` of `total` things, which are `what`; printed by the stage as one line."""

    done: int
    total: int
    what: str


class Refused(msgspec.Struct, frozen=True, tag=True):
    """Why a stage cannot be done: one sentence for the user."""

    sentence: str


class NoRoom(msgspec.Struct, frozen=True, tag=True):
    """Why the machine could not do a stage, as for want of room: one sentence; what is finished is good."""

    sentence: str


class StageEnd(msgspec.Struct, frozen=True, tag=True):
    """The last line of a stage: the most memory that its process had, in bytes."""

    peak_bytes: int


Announce = Callable[[int, int, str], None]  # is told how many things are done, of how many, and what they are


class PosedPhoto(msgspec.Struct, frozen=True, kw_only=True):
    """How well a photo's pose is known.

    `error` is the mean reprojection error of its points in pixels; `coverage` is the share of an 8 x 8 grid
    of the picture in which it has points.
    """

    name: str
    num_points: int
    error: float
    coverage: float


class LeftPhoto(msgspec.Struct, frozen=True):
    """A photo without a pose, and why."""

    name: str
    reason: str


class PoseGroup(msgspec.Struct, frozen=True):
    """Photos that were joined with each other, but with no other group; `nearest` names a pair to mend.

    `model` is the number of its COLMAP model.
    """

    model: int
    names: tuple[str, ...]
    nearest: tuple[str, str] | None = None


class DoubtfulLink(msgspec.Struct, frozen=True):
    """Two photos with many matches that contradict where the poses put them."""

    first: str
    second: str
    num_matches: int
    agreeing: float  # the share of the matches that agree with the poses


class PoseCamera(msgspec.Struct, frozen=True, kw_only=True):
    """One lens: its model and focal length as estimated and as its photos' files tell, in pixels."""

    model: str
    num_photos: int
    width: int
    height: int
    focal: float
    told_focal: float | None
    params: tuple[float, ...]


class PoseReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an estimation came to. `store` is a COLMAP scene: `database.db`, `sparse`, `images`.

    `meters` is the typical distance between GPS and the estimated positions where the model is in meters,
    None where its size is arbitrary. `up` says where the upward direction is from.
    """

    store: str
    source: str
    fingerprint: str  # of the manifest
    num_photos: int
    posed: tuple[PosedPhoto, ...]
    left_out: tuple[LeftPhoto, ...]
    groups: tuple[PoseGroup, ...]  # the others than that which is used
    doubtful: tuple[DoubtfulLink, ...]
    cameras: tuple[PoseCamera, ...]
    num_points: int
    error: float
    up: str
    meters: float | None
    seconds: dict[str, float]  # each stage took
    peak_bytes: int
    notes: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    so_far: bool = False  # the mapping had not ended: others may get a pose
    version: int = FORMAT_VERSION


def write_record(path: Path, record: msgspec.Struct) -> None:
    """Write a record as JSON, old or new content at any time; OSError where that is not possible."""
    write_durably(path, msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def read_record(path: Path, kind: type[Record]) -> Record | None:
    """Return a record of a file, None where it is not there, damaged, or of another release."""
    try:
        record = msgspec.json.decode(read_input(path), type=kind)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None
    return record if getattr(record, "version", FORMAT_VERSION) == FORMAT_VERSION else None
