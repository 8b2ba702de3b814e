"""How far estimated cameras are from those that drew the photos."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from splatstudio.scene.colmap import read_model


def pose_errors(model: Path, known: Mapping[str, np.ndarray]) -> tuple[float, float]:
    """Return the medians of the rotation errors, in degrees, and of the centers', as a share of their spread.

    `known` are cameras [4, 4], world to camera, by the names in the COLMAP model. The two worlds may differ
    by a similarity, which is fitted (Umeyama 1991).
    """
    viewmats = {image.name: image.viewmat for image in read_model(model).images}
    names = sorted(viewmats.keys() & known.keys())
    ours = np.stack([_center(viewmats[name]) for name in names])
    theirs = np.stack([_center(known[name]) for name in names])
    scale, turn, shift = _similarity(ours, theirs)
    spread = float(np.linalg.norm(theirs - theirs.mean(axis=0), axis=1).max())
    offsets = np.linalg.norm(scale * ours @ turn.T + shift - theirs, axis=1) / spread
    # Rotations are compared by themselves: their mean difference is the turn between the worlds.
    relative = np.stack([known[name][:3, :3].T @ viewmats[name][:3, :3] for name in names])
    u, _, vt = np.linalg.svd(relative.mean(axis=0))
    middle = u @ np.diag([1, 1, np.linalg.det(u @ vt)]) @ vt
    cosines = (np.einsum("nij,ij->n", relative, middle) - 1) / 2
    return float(np.median(np.degrees(np.arccos(cosines.clip(-1, 1))))), float(np.median(offsets))


def _center(viewmat: np.ndarray) -> np.ndarray:
    return -viewmat[:3, :3].T @ viewmat[:3, 3]


def _similarity(source: np.ndarray, target: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
    from_middle, to_middle = source - source.mean(axis=0), target - target.mean(axis=0)
    u, values, vt = np.linalg.svd(to_middle.T @ from_middle)
    signs = np.array([1.0, 1.0, np.sign(np.linalg.det(u @ vt))])
    turn = u @ np.diag(signs) @ vt
    scale = float((values * signs).sum() / (from_middle**2).sum())
    return scale, turn, target.mean(axis=0) - scale * turn @ source.mean(axis=0)
