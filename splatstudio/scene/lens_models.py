"""Where a lens shows a direction: the projections of COLMAP's camera models, and of programs that share them.

Each takes directions [..., 3] (x right, y down, z forward, of any length) and the coefficients of
distortion, and returns points [..., 2] on the image plane, which focal lengths and the center turn into
pixels. What a model does not show is not finite. Source: the formulas of COLMAP 4.2's manual and of the
papers that are named.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

LensKind = Literal[
    "brown",
    "rational",
    "fisheye",
    "thin_prism_fisheye",
    "rad_tan_thin_prism_fisheye",
    "opensfm_fisheye624",
    "fov",
    "division",
    "eucm",
    "equirectangular",
]
SMALL = 1e-12

# What each is without distortion, as COLMAP's own start values are; all else are zeros.
UNDISTORTED = {"eucm": (0.0, 1.0)}


def project(kind: LensKind, coefficients: Sequence[float], directions: np.ndarray) -> np.ndarray:
    """Return the points [..., 2] on the image plane at which a lens shows `directions` [..., 3]."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        return _PROJECTIONS[kind](directions, coefficients)


def _plane(directions: np.ndarray) -> np.ndarray:
    """Return where a pinhole shows directions before it, [..., 2]; NaN for those behind it."""
    depth = directions[..., 2:]
    return np.where(depth > 0, directions[..., :2] / depth, np.nan)


def _equidistant(directions: np.ndarray) -> np.ndarray:
    """Return points at the angle to the axis (radians), [..., 2]."""
    radius = np.hypot(directions[..., 0], directions[..., 1])[..., None]
    angle = np.arctan2(radius, directions[..., 2:])
    near = directions[..., :2] / np.maximum(np.abs(directions[..., 2:]), SMALL)
    return np.where(radius > SMALL, directions[..., :2] * (angle / np.maximum(radius, SMALL)), near)


def _squared(points: np.ndarray) -> np.ndarray:
    return (points * points).sum(axis=-1, keepdims=True)


def _polynomial(s: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Return 1 + c0 s + c1 s^2 + ..."""
    total = np.zeros_like(s)
    for coefficient in reversed(coefficients):
        total = s * (coefficient + total)
    return 1.0 + total


def _tangential(points: np.ndarray, p1: float, p2: float) -> np.ndarray:
    """Return the shift by a decentered lens (Brown 1966, with the names of OpenCV)."""
    s, product = _squared(points), 2 * points[..., :1] * points[..., 1:]
    return product * np.array([p1, p2]) + np.array([p2, p1]) * (s + 2 * points * points)


def _skewed(points: np.ndarray, skew: float) -> np.ndarray:
    """Return points of a sensor whose columns lean: Metashape's B2 over the focal length along x."""
    return points + points[..., 1:] * np.array([skew, 0.0])


def _padded(coefficients: Sequence[float], num: int) -> tuple[float, ...]:
    return (*coefficients, *(0.0,) * num)[:num]


def _brown(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    points = _plane(directions)
    k1, k2, p1, p2, k3, k4, skew = _padded(coefficients, 7)
    bent = points * _polynomial(_squared(points), (k1, k2, k3, k4)) + _tangential(points, p1, p2)
    return _skewed(bent, skew)


def _rational(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """FULL_OPENCV: the radial polynomial is divided by another one."""
    points = _plane(directions)
    k1, k2, p1, p2, k3, k4, k5, k6 = _padded(coefficients, 8)
    s = _squared(points)
    radial = _polynomial(s, (k1, k2, k3)) / _polynomial(s, (k4, k5, k6))
    return points * radial + _tangential(points, p1, p2)


def _fisheye(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Kannala and Brandt 2006: a polynomial of the angle."""
    points = _equidistant(directions)
    return points * _polynomial(_squared(points), coefficients)


def _thin_prism_fisheye(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    k1, k2, p1, p2, k3, k4, sx, sy, skew = _padded(coefficients, 9)
    points = _equidistant(directions)
    s = _squared(points)
    bent = points * _polynomial(s, (k1, k2, k3, k4)) + _tangential(points, p1, p2)
    return _skewed(bent + s * np.array([sx, sy]), skew)


def _rad_tan_thin_prism_fisheye(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """The model of Project Aria, Fisheye624: what is tangential acts on what is radially bent already."""
    *radial, p0, p1, s0, s1, s2, s3 = _padded(coefficients, 12)
    points = _equidistant(directions)
    points = points * _polynomial(_squared(points), radial)
    s = _squared(points)
    prism = s * np.array([s0, s2]) + s * s * np.array([s1, s3])
    return points + _tangential(points, p1, p0) + prism


def _opensfm_fisheye624(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """OpenSfM's fisheye62 and fisheye624, where all acts on the point before it is bent (its `Disto624`)."""
    *radial, p1, p2, s0, s1, s2, s3 = _padded(coefficients, 12)
    points = _equidistant(directions)
    s = _squared(points)
    prism = s * np.array([s0, s2]) + s * s * np.array([s1, s3])
    return points * _polynomial(s, radial) + _tangential(points, p1, p2) + prism


def _fov(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Devernay and Faugeras 2001: arctan(2 r tan(w / 2)) / w in place of the radius."""
    points = _plane(directions)
    (omega,) = _padded(coefficients, 1)
    if abs(omega) < 1e-6:
        return points
    radius = np.sqrt(_squared(points))
    slope = 2 * np.tan(0.5 * omega)
    return points * np.where(radius > SMALL, np.arctan(radius * slope) / (omega * radius), slope / omega)


def _division(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Fitzgibbon 2001: a point over 1 + k times its own squared radius is the pinhole's."""
    (k,) = _padded(coefficients, 1)
    depth = directions[..., 2:]
    root = np.sqrt(depth * depth - 4 * k * _squared(directions[..., :2]))
    return 2 * directions[..., :2] / (depth + root)


def _eucm(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Khomutenko, Garcia and Martinet 2016: the extended unified camera model."""
    alpha, beta = coefficients or UNDISTORTED["eucm"]
    depth = directions[..., 2:]
    distance = np.sqrt(beta * _squared(directions[..., :2]) + depth * depth)
    divisor = alpha * distance + (1 - alpha) * depth
    return np.where(divisor > 0, directions[..., :2] / divisor, np.nan)


def _equirectangular(directions: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Longitude and latitude, radians; those who use it give pixels a radian as focal lengths."""
    x, y, z = np.moveaxis(directions, -1, 0)
    return np.stack([np.arctan2(x, z), np.arctan2(y, np.hypot(x, z))], axis=-1)


_PROJECTIONS: dict[LensKind, Callable[[np.ndarray, Sequence[float]], np.ndarray]] = {
    "brown": _brown,
    "rational": _rational,
    "fisheye": _fisheye,
    "thin_prism_fisheye": _thin_prism_fisheye,
    "rad_tan_thin_prism_fisheye": _rad_tan_thin_prism_fisheye,
    "opensfm_fisheye624": _opensfm_fisheye624,
    "fov": _fov,
    "division": _division,
    "eucm": _eucm,
    "equirectangular": _equirectangular,
}
