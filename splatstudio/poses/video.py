"""Frames of a video: as many as its motion needs, the sharpest of each stretch, turned as it was held."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from splatstudio.error_text import first_line

if TYPE_CHECKING:
    import av
    from av.container import InputContainer
    from av.error import FFmpegError

# The picture moves by this share of its side from one stretch to the next: neighbors overlap by nine tenths.
MOTION_OF_A_FRAME = 0.06
FEWEST_FRAMES, MOST_FRAMES = 30, 300  # of a video that moves little, or much
STILL_MOTION = 0.05  # of the picture's side, in all: parallax cannot be seen in less
LOOK_SIDE = 128  # pixels, at which motion is measured
SHARP_SIDE = 640  # and sharpness
LOOKS_PER_SECOND = 15.0
JOIN_SECONDS = 0.5  # by which times go back where another clip begins, not where frames are out of order
JPEG_QUALITY = 95


@dataclass(frozen=True)
class Look:
    """What a first pass sees of a frame; `motion` is how far all has moved since the first, in its sides."""

    index: int
    seconds: float
    motion: float
    sharpness: float


@dataclass(frozen=True)
class WrittenFrame:
    """One frame as a picture file."""

    name: str
    seconds: float
    width: int
    height: int
    sharpness: float


@dataclass(frozen=True)
class WrittenFrames:
    """The frames that were taken from a video, and what its user should know of it."""

    frames: tuple[WrittenFrame, ...]
    notes: tuple[str, ...]


def write_frames(
    video: Path, folder: Path, num_frames: int | None, announce: Callable[[float], None]
) -> WrittenFrames:
    """Write the sharpest frame of each stretch of a video into `folder` as JPEG.

    Stretches are of equal motion, so that where the camera rests there are few. There are `num_frames`, None:
    as many as the motion needs. `announce` is told the share that is done. Raises ValueError for what is no
    video, is damaged at its beginning, or shows one still picture.
    """
    looks, notes = _look(video, lambda share: announce(0.6 * share))
    if len(looks) < 3:
        raise ValueError(
            f"a video of {len(looks)} frames; film for some seconds, and walk around the subject"
        )
    total = looks[-1].motion
    if total < STILL_MOTION:
        raise ValueError(
            "nothing moves in it, and depth is seen only from several places: walk around the subject"
        )
    wanted = num_frames or int(np.clip(round(total / MOTION_OF_A_FRAME), FEWEST_FRAMES, MOST_FRAMES))
    chosen = choose(looks, wanted)
    if num_frames is not None and len(chosen) < num_frames:
        notes.append(f"{len(chosen)} frames of it differ enough; --frames {num_frames} asked for more")
    frames = tuple(_write(video, folder, chosen, lambda share: announce(0.6 + 0.4 * share)))
    return WrittenFrames(frames, tuple(notes))


def choose(looks: list[Look], num_frames: int) -> list[Look]:
    """Return the sharpest look of each of `num_frames` stretches of equal motion, without empty ones."""
    motion = np.array([look.motion for look in looks])
    edges = np.linspace(0.0, motion[-1], num_frames + 1)[1:-1]
    stretches = np.searchsorted(edges, motion, side="right")
    best: dict[int, Look] = {}
    for stretch, look in zip(stretches.tolist(), looks, strict=True):
        if stretch not in best or look.sharpness > best[stretch].sharpness:
            best[stretch] = look
    return list(best.values())


def _look(video: Path, announce: Callable[[float], None]) -> tuple[list[Look], list[str]]:
    """Return what a pass over all frames sees, and notes on a file that ends before its time."""
    import av  # here, not above: `splatstudio info` needs none of it
    from av.error import FFmpegError

    if video.stat().st_size == 0:
        raise ValueError("it is empty; copy it again")
    looks, notes = list[Look](), list[str]()
    before: np.ndarray | None = None
    due, motion, last, length = 0.0, 0.0, 0.0, 0.0
    joined = 0.0  # seconds before the clip that plays: of joined files the times begin again
    try:
        with av.open(str(video)) as container:
            if not container.streams.video:
                raise ValueError("it has no pictures, only sound: name the video itself")
            length = _length(container)
            for index, frame in enumerate(_frames(container)):
                told = last if frame.time is None else joined + frame.time
                if told < last - JOIN_SECONDS:
                    joined += last - told
                last = max(last, told)
                if last < due and looks:
                    continue
                due = last + 1 / LOOKS_PER_SECOND
                gray = _gray(frame, SHARP_SIDE)
                small = _gray(frame, LOOK_SIDE)
                motion += 0.0 if before is None else shift_between(before, small)
                before = small
                looks.append(Look(index, last, motion, sharpness_of(gray)))
                announce(min(1.0, last / length) if length else 0.0)
    except (FFmpegError, OSError) as error:
        if len(looks) < 3:
            raise ValueError(f"it is damaged or cut off ({_words(error)}); copy it again") from error
        notes.append(f"damaged after {last:.1f} s, and used up to there ({_words(error)})")
    if not notes and length - last > max(0.5, 0.05 * length):
        notes.append(f"ends after {last:.1f} s of {length:.1f} s: the file is cut off, and used up to there")
    return looks, notes


def _words(error: FFmpegError | OSError) -> str:
    return error.strerror or first_line(error)


def _length(container: InputContainer) -> float:
    """Return how many seconds of pictures a video says it has, 0 where it does not say.

    Sound may go on after them, so that the whole file is longer.
    """
    import av

    stream = container.streams.video[0]
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base)
    of_matroska = stream.metadata.get("DURATION", "").split(":")  # as 00:00:09.800000000
    try:
        hours, minutes, seconds = map(float, of_matroska)
    except ValueError:
        return (container.duration or 0) / av.time_base
    return 3600 * hours + 60 * minutes + seconds


def _frames(container: InputContainer) -> Iterator[av.VideoFrame]:
    stream = container.streams.video[0]
    stream.thread_type = "AUTO"
    yield from container.decode(stream)


def _gray(frame: av.VideoFrame, side: int) -> np.ndarray:
    """Return a frame [H, W] uint8, its longer side scaled down to `side`."""
    factor = min(1.0, side / max(frame.width, frame.height))
    width, height = max(8, round(frame.width * factor)), max(8, round(frame.height * factor))
    return frame.reformat(width=width, height=height, format="gray").to_ndarray()


def shift_between(first: np.ndarray, second: np.ndarray) -> float:
    """Return by how much of its longer side a picture [H, W] has moved, by phase correlation.

    What only turns or comes nearer moves its quarters: the largest shift of the whole and of those counts.
    """
    height, width = (size // 2 for size in first.shape)
    parts = [np.s_[:, :]]
    parts += [np.s_[y : y + height, x : x + width] for y in (0, height) for x in (0, width)]
    return max(_shift(first[part], second[part]) for part in parts) / max(first.shape)


def _shift(first: np.ndarray, second: np.ndarray) -> float:
    window = np.outer(np.hanning(first.shape[0]), np.hanning(first.shape[1]))
    a, b = (
        np.fft.rfft2((part - part.mean()) * window) for part in (first.astype(float), second.astype(float))
    )
    cross = a * b.conj()
    if not np.abs(cross).max() > 0:
        return 0.0
    peak = np.fft.irfft2(cross / np.maximum(np.abs(cross), 1e-6 * np.abs(cross).max()), first.shape)
    if peak.max() < 8 * peak.std():
        return 0.0  # noise, or a cut: no shift explains it
    place = np.unravel_index(int(peak.argmax()), peak.shape)
    shifts = [float(min(p, size - p)) for p, size in zip(place, peak.shape, strict=True)]
    return float(np.hypot(shifts[0], shifts[1]))


def _write(
    video: Path, folder: Path, chosen: list[Look], announce: Callable[[float], None]
) -> Iterator[WrittenFrame]:
    import av

    folder.mkdir(parents=True, exist_ok=True)
    wanted = {look.index: look for look in chosen}
    with av.open(str(video)) as container:
        for index, frame in enumerate(_frames(container)):
            if index not in wanted:
                continue
            look = wanted.pop(index)
            image = frame.to_image().rotate(frame.rotation, expand=True)
            name = f"frame_{index:06d}.jpg"
            encoded = io.BytesIO()  # at once, so that a full disk is an error
            image.save(encoded, "JPEG", quality=JPEG_QUALITY, subsampling=0)
            (folder / name).write_bytes(encoded.getbuffer())
            announce(1 - len(wanted) / len(chosen))
            yield WrittenFrame(name, look.seconds, image.width, image.height, look.sharpness)
            if not wanted:
                return


def sharpness_of(gray: np.ndarray) -> float:
    """Return the variance of the second derivatives of a picture [H, W] uint8, in its sharpest quarter.

    That counts alone: a sharp subject before a blurred background is sharp.
    """
    pixels = gray.astype(np.float32)
    around = pixels[1:-1, :-2] + pixels[1:-1, 2:] + pixels[:-2, 1:-1] + pixels[2:, 1:-1]
    second = around - 4 * pixels[1:-1, 1:-1]
    rows, columns = (np.array_split(np.arange(size), 4) for size in second.shape)
    tiles = [float(second[np.ix_(r, c)].var()) for r in rows for c in columns if len(r) and len(c)]
    return float(np.mean(sorted(tiles)[-4:])) if tiles else 0.0
