"""Numbers in few bits, as the compact formats store them: opacities, colors and rotations."""

from __future__ import annotations

import numpy as np

from splatstudio.gaussians.gaussians import SH_C0

OTHERS = np.array([[1, 2, 3], [0, 2, 3], [0, 1, 3], [0, 1, 2]])  # the components beside the largest


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """Return 1 / (1 + exp(-x)), without overflow."""
    return 0.5 + 0.5 * np.tanh(0.5 * logits)


def rounded(values: np.ndarray, least: int, most: int) -> np.ndarray:
    """Return `values` rounded half up and clamped to `least`..`most`, as uint32."""
    return np.clip(np.floor(values + 0.5), least, most).astype(np.uint32)


def opacity_bytes(logits: np.ndarray) -> np.ndarray:
    """Return opacities as 1..254 of 255, uint32.

    0 and 255 are left out: other programs read them back as logits of minus and plus infinity.
    """
    return rounded(255.0 * sigmoid(logits), 1, 254)


def opacity_logits(codes: np.ndarray) -> np.ndarray:
    """Return the logits of opacities 0..255, the ends a quarter step inwards so that all are finite."""
    opacity = np.clip(codes.astype(np.float32), 0.25, 254.75) / 255.0
    return np.log(opacity / (1.0 - opacity)).astype(np.float32)


def colors_of(sh0: np.ndarray) -> np.ndarray:
    """Return the color (0..1 and beyond) that the first coefficient shows as."""
    return 0.5 + SH_C0 * sh0


def sh0_of(colors: np.ndarray) -> np.ndarray:
    """Return the first coefficient of a color."""
    return (colors - 0.5) / SH_C0


def unit_quats(quats: np.ndarray) -> np.ndarray:
    """Return the quaternions [N, 4] at length 1; one without a length becomes the identity."""
    # Divided by the largest component first: the square of a tiny or huge one leaves float32.
    largest = np.abs(quats).max(axis=1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        scaled = quats / largest
        unit = scaled / np.linalg.norm(scaled, axis=1, keepdims=True)
    unit[~np.isfinite(unit).all(axis=1)] = (1.0, 0.0, 0.0, 0.0)
    return unit


def without_largest(quats: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the index [N] of the largest component of unit quaternions, and the three others [N, 3].

    The sign is chosen so that the largest is positive: it follows from the three, which lie within
    -sqrt(1/2)..sqrt(1/2).
    """
    index = np.abs(quats).argmax(axis=1)
    largest = np.take_along_axis(quats, index[:, None], axis=1)
    others = np.take_along_axis(quats, OTHERS[index], axis=1)
    return index, np.where(largest < 0.0, -others, others)


def with_largest(index: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return the unit quaternions [N, 4] of which `without_largest` made `index` and `others`."""
    quats = np.empty((len(index), 4), np.float32)
    largest = np.sqrt(np.maximum(0.0, 1.0 - (others * others).sum(axis=1, keepdims=True)))
    np.put_along_axis(quats, OTHERS[index], others.astype(np.float32), axis=1)
    np.put_along_axis(quats, index[:, None], largest.astype(np.float32), axis=1)
    return quats
