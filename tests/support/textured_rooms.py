"""Photos of rooms with textured walls, seen by known cameras: quick to draw, and rich in features."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import av
import cv2
import numpy as np

from splatstudio.cameras.camera import look_at

WIDTH, HEIGHT, FOCAL = 480, 360, 420.0
TEXTURE = 640  # pixels of a side
FLOOR = np.array([[-1, -1, 0], [1, -1, 0], [1, 1, 0], [-1, 1, 0]], float) * [2.2, 2.2, 1]
UP = np.array([0.0, 0.0, 1.0])


@dataclass(frozen=True, eq=False)
class Wall:
    """A flat picture in space: `corners` [4, 3] go around it; walls of one `seed` look the same."""

    corners: np.ndarray
    seed: int


@cache
def texture(seed: int) -> np.ndarray:
    """Return a picture [H, W, 3] uint8 with corners and blobs of all sizes, of its own for each seed."""
    random = np.random.default_rng(seed)
    image = np.full((TEXTURE, TEXTURE, 3), 128, np.uint8)
    for size in (200, 110, 64, 36):
        for _ in range(round(0.9 * (TEXTURE / size) ** 2)):
            x, y = random.integers(0, TEXTURE, 2).tolist()
            color = random.integers(20, 236, 3).tolist()
            corners = random.integers(-size // 2, size // 2 + 1, (4, 2)) + np.array([x, y])
            cv2.fillConvexPoly(image, cv2.convexHull(corners.astype(np.int32)), color, cv2.LINE_AA)
    return image


def box(middle: Sequence[float], size: float, first_seed: int) -> list[Wall]:
    """Return the four sides and the top of a box that stands on the floor, each with a texture of its own."""
    x, y = middle
    low = np.array([[-1, -1], [1, -1], [1, 1], [-1, 1]]) * size / 2 + [x, y]
    walls = []
    for side in range(4):
        a, b = low[side], low[(side + 1) % 4]
        corners = [[*a, 0.0], [*b, 0.0], [*b, 1.2 * size], [*a, 1.2 * size]]
        walls.append(Wall(np.array(corners), first_seed + side))
    walls.append(Wall(np.c_[low, np.full(4, 1.2 * size)], first_seed + 4))
    return walls


def table_with_boxes(first_seed: int = 0) -> list[Wall]:
    """Return a floor with three boxes of different sizes."""
    seeds = range(first_seed + 10, first_seed + 100, 10)
    places = (((0.0, 0.1), 0.9), ((-1.1, 0.9), 0.6), ((1.0, -0.9), 0.5))
    boxes = [
        wall for (middle, size), seed in zip(places, seeds, strict=False) for wall in box(middle, size, seed)
    ]
    return [Wall(FLOOR, first_seed), *boxes]


def ring(num: int, *, radius: float = 3.2, height: float = 2.2, share: float = 1.0) -> np.ndarray:
    """Return cameras [num, 4, 4], world to camera, that look at the middle from around it."""
    angles = 2 * np.pi * share * np.arange(num) / num
    places = np.c_[radius * np.cos(angles), radius * np.sin(angles), height + 0.3 * np.sin(3 * angles)]
    return np.stack([look_at(place, np.array([0.0, 0.0, 0.4]), UP) for place in places])


def draw_photo(walls: Sequence[Wall], viewmat: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """Return what a camera sees, [H, W, 3] uint8 RGB: walls are drawn from the farthest to the nearest.

    The sides are `scale` times WIDTH and HEIGHT.
    """
    width, height, focal = round(scale * WIDTH), round(scale * HEIGHT), scale * FOCAL
    image = np.full((height, width, 3), 200, np.uint8)
    K = np.array([[focal, 0, width / 2], [0, focal, height / 2], [0, 0, 1]])
    seen = [(wall, wall.corners @ viewmat[:3, :3].T + viewmat[:3, 3]) for wall in walls]
    for wall, corners in sorted(seen, key=lambda item: -float(np.linalg.norm(item[1].mean(axis=0)))):
        normal = np.cross(corners[1] - corners[0], corners[3] - corners[0])
        if (corners[:, 2] < 0.1).any() or normal @ corners[0] > 0:
            continue  # behind the camera, or seen from behind
        place = corners @ K.T
        place = (place[:, :2] / place[:, 2:] - 0.5).astype(np.float32)
        # A texture of about the wall's size in the picture: a larger one would flicker.
        size = round(
            min(TEXTURE, max(8.0, float(np.linalg.norm(place - np.roll(place, 1, axis=0), axis=1).max())))
        )
        pattern = cv2.resize(texture(wall.seed), (size, size), interpolation=cv2.INTER_AREA)
        source = np.array([[0, size], [size, size], [size, 0], [0, 0]], np.float32) - 0.5
        homography = cv2.getPerspectiveTransform(source, place)
        drawn = cv2.warpPerspective(pattern, homography, (width, height), flags=cv2.INTER_LINEAR)
        mask = np.zeros((height, width), np.uint8)
        cv2.fillConvexPoly(mask, np.round(place).astype(np.int32), 255)
        image[mask > 0] = drawn[mask > 0]
    return image


def write_photos(
    folder: Path, walls: Sequence[Wall], viewmats: np.ndarray, prefix: str = "room", scale: float = 1.0
) -> list[Path]:
    """Write what the cameras see as JPEG files and return them, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for number, viewmat in enumerate(viewmats):
        files.append(folder / f"{prefix}_{number:03d}.jpg")
        pixels = cv2.cvtColor(draw_photo(walls, viewmat, scale), cv2.COLOR_RGB2BGR)
        assert cv2.imwrite(str(files[-1]), pixels, [cv2.IMWRITE_JPEG_QUALITY, 95])
    return files


def write_video(file: Path, walls: Sequence[Wall], viewmats: np.ndarray) -> Path:
    """Write what the cameras see, one after the other, as a video of 15 frames a second, and return it."""
    with av.open(str(file), "w") as container:
        stream = container.add_stream("libx264", rate=15, options={"crf": "16", "preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for viewmat in viewmats:
            frame = av.VideoFrame.from_ndarray(draw_photo(walls, viewmat), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return file
