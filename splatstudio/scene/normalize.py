"""The normalized frame: z up, the point of attention at the origin, the cameras within radius 1.

The frame of poses that were estimated first is kept beside those that replace them: runs go on in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from splatstudio.cameras.camera import rigid
from splatstudio.files.durable import write_durably
from splatstudio.files.inputs import read_input

KEPT_FRAME = "frame.json"  # in the folder of a COLMAP model
MIN_RADIUS = 0.01  # of the points' distance: cameras closer together than that stand at one point
NEARLY_PARALLEL = 0.01  # the mean square of the sine between axes: 6 degrees
# A survey from above: cameras that look the same way within 10 degrees stand in one layer, spread in both of
# its directions by a quarter of their height. Who stands before a wall does not move that far upward.
SURVEY_COSINE, SURVEY_LAYER, SURVEY_SPREAD, FEWEST_IN_SURVEY = 0.985, 0.1, 0.25, 5


# Which of a camera's axes the viewer of an upright picture sees to the right and downward, by the EXIF
# orientation of a picture that is stored turned: (index, sign) each.
UPRIGHT_AXES = {3: ((0, -1), (1, -1)), 6: ((1, -1), (0, 1)), 8: ((1, 1), (0, -1))}


def normalizing_transform(
    viewmats: np.ndarray,
    points: np.ndarray,
    orientations: tuple[int, ...] = (),
    *,
    up: np.ndarray | None = None,
) -> np.ndarray:
    """Return the [4, 4] similarity that brings cameras and points to the normalized frame.

    `viewmats` [C, 4, 4] are world to camera, C at least 1; `points` [P, 3] may be empty;
    `orientations` are the EXIF orientations of pictures that stay stored as they are, so that their cameras
    do not stand upright. Up is `up` [3], a unit vector, or the cameras' own (`upward`); the origin is what
    they look at (`attention`); the farthest camera comes to distance 1 from the cameras' mean. Cameras at one
    point are scaled by the points' median distance instead. Always finite.
    """
    rotations = viewmats[:, :3, :3]
    positions = -np.einsum("nji,nj->ni", rotations, viewmats[:, :3, 3])
    depth = median_distance(points, positions.mean(axis=0))
    radius = float(np.linalg.norm(positions - positions.mean(axis=0), axis=1).max())
    if depth > 0 and not radius > MIN_RADIUS * depth:
        radius = depth
    # A lone camera without points has no scale of its own.
    size = radius if radius > 1e-12 * max(1.0, float(np.abs(positions).max())) else 1.0
    turn = rotation_to_z(upward(held(rotations, orientations), positions, depth) if up is None else up)
    scaled = turn / size
    transform = rigid(scaled, -scaled @ attention(rotations, positions, points, size))
    assert np.isfinite(transform).all(), "readers check that poses and points are finite"
    return transform


def upward(rotations: np.ndarray, positions: np.ndarray, depth: float = 0.0) -> np.ndarray:
    """Return the unit up vector [3] of cameras, from world-to-camera `rotations` [C, 3, 3].

    `depth` is the typical distance of what they see from their mean, 0 where nothing tells it. Cameras that
    survey the ground from above look down. Of others, a camera held level has its x axis horizontal, so up is
    the direction all x axes are perpendicular to. Where they do not tell (all alike, or held every way), up
    is the median of the cameras' own up vectors; where those cancel, the normal of the plane of the cameras.
    """
    if (down := _surveyed(rotations[:, 2], positions, depth)) is not None:
        return -down
    mean_up = _median_direction(-rotations[:, 1])
    strength = float(np.linalg.norm((-rotations[:, 1]).mean(axis=0)))
    if strength > 0.1:
        values, vectors = np.linalg.eigh(
            np.einsum("ni,nj->ij", rotations[:, 0], rotations[:, 0]) / len(rotations)
        )
        level = vectors[:, 0] * np.sign(vectors[:, 0] @ mean_up or 1.0)
        tells = values[0] < 0.02 and values[1] > 0.05 and level @ mean_up > 0.5
        return level if tells else mean_up
    spread = positions - positions.mean(axis=0)
    values, vectors = np.linalg.eigh(spread.T @ spread)
    if values[1] > 1e-9 * max(values[2], 1e-300) and values[2] > 0:
        # Captures look down at their subject more often than up.
        normal = vectors[:, 0]
        return normal if normal @ rotations[:, 2].mean(axis=0) <= 0 else -normal
    return np.array([0.0, 0.0, 1.0])


def _surveyed(forward: np.ndarray, positions: np.ndarray, depth: float) -> np.ndarray | None:
    """Return the direction [3] to the ground that cameras survey from above, None where they do not.

    `forward` [C, 3] are their view directions.
    """
    heading = _median_direction(forward)
    if len(forward) < FEWEST_IN_SURVEY or np.quantile(forward @ heading, 0.1) < SURVEY_COSINE:
        return None
    offsets = positions - positions.mean(axis=0)
    along = offsets @ heading
    across = np.linalg.svd(offsets - along[:, None] * heading, compute_uv=False)[1] / np.sqrt(len(offsets))
    flat = float(along.std()) < SURVEY_LAYER * across
    return heading if 0 < SURVEY_SPREAD * depth < across and flat else None


def attention(rotations: np.ndarray, positions: np.ndarray, points: np.ndarray, size: float) -> np.ndarray:
    """Return the point [3] that the cameras look at.

    It is the point nearest to all optical axes, when they meet in front of the cameras and the points lie
    about as far away: where axes are nearly parallel, chance decides where they meet. For parallel cameras it
    lies in front of their mean at the points' median depth (`size` without points); for cameras that look
    outward it is the cameras' mean.
    """
    forward, center = rotations[:, 2], positions.mean(axis=0)
    heading = forward.mean(axis=0)
    ahead = (points - center) @ (heading / max(float(np.linalg.norm(heading)), 1e-9))
    ahead = ahead[ahead > 0]
    away = np.eye(3) - forward[:, :, None] * forward[:, None, :]
    system = away.mean(axis=0)
    values = np.linalg.eigvalsh(system)
    if values[0] > 1e-3:  # 0 for parallel axes
        nearest = np.linalg.solve(system, np.einsum("nij,nj->i", away, positions) / len(positions))
        depth = np.einsum("ni,ni->n", nearest - positions, forward)
        beyond = values[0] < NEARLY_PARALLEL and len(ahead) and np.median(depth) > 3 * np.median(ahead)
        if np.mean(depth > 0) > 0.5 and np.median(depth) < 100 * size and not beyond:
            return nearest
    if np.linalg.norm(heading) < 0.5:
        return center
    heading = heading / np.linalg.norm(heading)
    return center + heading * (float(np.median(ahead)) if len(ahead) else size)


def held(rotations: np.ndarray, orientations: tuple[int, ...]) -> np.ndarray:
    """Return world-to-camera rotations [C, 3, 3] as of upright pictures, by their EXIF orientations.

    No orientations: all are upright.
    """
    if not orientations:
        return rotations
    return np.stack([_held(r, o) for r, o in zip(rotations, orientations, strict=True)])


def _held(rotation: np.ndarray, orientation: int) -> np.ndarray:
    """Return world to camera [3, 3] for a camera turned so that its picture is upright."""
    if orientation not in UPRIGHT_AXES:
        return rotation
    (right, right_sign), (down, down_sign) = UPRIGHT_AXES[orientation]
    return np.stack([right_sign * rotation[right], down_sign * rotation[down], rotation[2]])


def median_distance(points: np.ndarray, center: np.ndarray) -> float:
    """Return the median distance of `points` [P, 3] from `center` [3], 0 without points."""
    return float(np.median(np.linalg.norm(points - center, axis=1))) if len(points) else 0.0


def _median_direction(directions: np.ndarray) -> np.ndarray:
    """Return the geometric median of unit vectors [C, 3] (Weiszfeld 1937), as a unit vector."""
    median = directions.mean(axis=0)
    for _ in range(20):
        weights = 1.0 / np.maximum(np.linalg.norm(directions - median, axis=1), 1e-6)
        median = (directions * weights[:, None]).sum(axis=0) / weights.sum()
    length = np.linalg.norm(median)
    return median / length if length > 1e-9 else np.array([0.0, 0.0, 1.0])


def rotation_to_z(up: np.ndarray) -> np.ndarray:
    """Return the smallest rotation [3, 3] that brings the unit vector `up` to +z."""
    x, y, z = up
    if z < -0.999999:
        return np.diag([1.0, -1.0, -1.0])
    # Rodrigues' formula for the axis up x z.
    k = 1.0 / (1.0 + z)
    return np.array([[1 - k * x * x, -k * x * y, -x], [-k * x * y, 1 - k * y * y, -y], [x, y, z]])


@dataclass(frozen=True)
class KeptFrame:
    """What stays when poses are estimated again, in the coordinates of before.

    `transform` [4, 4] is the similarity to the normalized frame as it was made of the first poses. `batches`
    are the photos' names in the order in which they came: those that are held out stay so.
    """

    transform: tuple[tuple[float, float, float, float], ...]
    batches: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        if self.matrix.shape != (4, 4) or not np.isfinite(self.matrix).all():
            raise ValueError("the transform is no matrix of 4 x 4 numbers")

    @property
    def matrix(self) -> np.ndarray:
        """Return the transform as an array [4, 4] float64."""
        return np.array(self.transform, dtype=np.float64)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the photos of all batches, in their order."""
        return tuple(name for batch in self.batches for name in batch)


def read_kept_frame(model: Path) -> KeptFrame | None:
    """Return what the folder of a COLMAP model keeps of earlier poses, None where it keeps nothing.

    Raises ValueError for a damaged file: without it the photos of the test would be others.
    """
    import msgspec  # not on every machine that measures the kernels alone

    file = model / KEPT_FRAME
    try:
        return msgspec.json.decode(read_input(file), type=KeptFrame)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, ValueError) as error:
        raise ValueError(
            f"{file} is damaged: delete it, and the scene gets a frame of its own, in which runs of before"
            " cannot go on"
        ) from error


def write_kept_frame(model: Path, frame: KeptFrame) -> None:
    """Write the file; OSError where that is not possible."""
    import msgspec  # not on every machine that measures the kernels alone

    write_durably(model / KEPT_FRAME, msgspec.json.encode(frame) + b"\n")
