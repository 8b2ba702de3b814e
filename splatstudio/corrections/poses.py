"""Corrections of where the training cameras stood: a shift and a turn of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from splatstudio.cameras.camera import Camera, rigid


def corrected_camera(camera: Camera, correction: np.ndarray) -> Camera:
    """Return `camera` after a correction [6]: what it sees at x, in its axes, it then sees at R(w) x + p.

    p is the first half of `correction`, world units; w the second, an axis times an angle in radians.
    """
    shift, turn = np.asarray(correction[:3], np.float64), np.asarray(correction[3:], np.float64)
    return replace(camera, viewmat=rigid(rotation_about(turn), shift) @ camera.viewmat)


def of_correction(twist: np.ndarray, correction: np.ndarray) -> np.ndarray:
    """Return the gradient [6] of a correction from that of the `twist` of the camera it makes.

    `twist` is as `pose_gradient` returns it. R(w + dw) is R(J dw) R(w) with the left Jacobian J of rotations
    (Sola et al. 2018, eq. 145), and a turn of the corrected camera also turns its shift.
    """
    v_shift, v_turn = twist[:3], twist[3:]
    shift, turn = correction[:3], correction[3:]
    return np.concatenate([v_shift, _left_jacobian(turn).T @ (v_turn - np.cross(shift, v_shift))])


def rotation_about(turn: np.ndarray) -> np.ndarray:
    """Return the rotation [3, 3] about the axis `turn` [3] by its length, radians (Rodrigues)."""
    angle = float(np.linalg.norm(turn))
    cross = _cross_matrix(turn)
    # sinc stays exact where the angle is 0.
    first, half = np.sinc(angle / np.pi), np.sinc(0.5 * angle / np.pi)
    return np.eye(3) + first * cross + 0.5 * half * half * cross @ cross


def without_common_motion(corrections: np.ndarray, cameras: Sequence[Camera]) -> np.ndarray:
    """Return `corrections` [V, 6] of `cameras` without the motion and the scaling that all have in common.

    A model that moves or grows as a whole, with all its training cameras, shows the same pictures; but the
    test cameras stay, so nothing may drift. Least squares to first order in the corrections.
    """
    rows, wanted = [], []
    for correction, camera in zip(corrections, cameras, strict=True):
        rotation = camera.viewmat[:3, :3]
        # How the camera's place, in units of its cameras' spread, and its axes move in the world.
        wanted.append(np.concatenate([-rotation.T @ correction[:3], -rotation.T @ correction[3:]]))
        system = np.zeros((6, 7))
        system[:3, :3] = np.eye(3)
        system[:3, 3:6] = -_cross_matrix(camera.position)
        system[:3, 6] = camera.position
        system[3:, 3:6] = np.eye(3)
        rows.append(system)
    systems = np.stack(rows)
    common = np.linalg.lstsq(systems.reshape(-1, 7), np.concatenate(wanted), rcond=None)[0]
    moved = systems @ common
    left = corrections.copy()
    for row, (motion, camera) in enumerate(zip(moved, cameras, strict=True)):
        rotation = camera.viewmat[:3, :3]
        left[row, :3] += rotation @ motion[:3]
        left[row, 3:] += rotation @ motion[3:]
    return left


def _cross_matrix(vector: np.ndarray) -> np.ndarray:
    x, y, z = vector
    return np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])


def _left_jacobian(turn: np.ndarray) -> np.ndarray:
    angle = float(np.linalg.norm(turn))
    cross = _cross_matrix(turn)
    if angle < 1e-4:
        return np.eye(3) + 0.5 * cross + cross @ cross / 6.0
    first = (1.0 - np.cos(angle)) / angle**2
    return np.eye(3) + first * cross + (angle - np.sin(angle)) / angle**3 * cross @ cross
