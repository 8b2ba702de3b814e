"""The gradient of a loss with respect to where the camera stands, from those of the Gaussians it shows.

A camera that moves one way sees what it would see if the whole scene, rigid, moved the other way. What a
rigid motion does to means and rotations is known, and so the gradients of the six tensors hold that of the
camera. One thing does not turn with the scene: the direction under which the spherical harmonics are seen.
It changes when the camera shifts, but not when it turns on the spot; that part is taken out again.
"""

from __future__ import annotations

import torch
from torch import Tensor

from splatstudio.camera import Camera
from splatstudio.gaussians import SH_C0, Gaussians
from splatstudio.reference import sh_basis


def pose_gradient(
    gaussians: Gaussians,
    gradients: dict[str, Tensor | None],
    *,
    camera: Camera,
    sh_degree: int,
    rows: Tensor,
) -> Tensor:
    """Return the gradient with respect to a twist of `camera`, [6] float64: the shift, then the turn.

    The twist (p, w) moves what the camera sees, in its axes, from x to x + w x x + p: `viewmat` becomes
    [I + w^ | p] @ viewmat. `gradients` are those of the six stored tensors, by name, `sh_degree` the degree
    that was drawn, `rows` the indices of the Gaussians that were visible.
    """
    v_means, v_quats, v_sh0 = (_rows_of(gradients[name], rows) for name in ("means", "quats", "sh0"))
    if v_means is None or v_quats is None:
        return torch.zeros(6, dtype=torch.float64)
    means, quats = gaussians.means.detach()[rows].double(), gaussians.quats.detach()[rows].double()
    view = torch.as_tensor(camera.viewmat, dtype=torch.float64, device=means.device)
    rotation = view[:3, :3]
    v_points = v_means @ rotation.T  # in the camera's axes
    shift = v_points.sum(dim=0)
    if sh_degree > 0 and v_sh0 is not None:
        position = torch.as_tensor(camera.position, device=means.device)
        v_points = v_points - _of_direction(gaussians, v_sh0, means - position, sh_degree, rows) @ rotation.T
    turn = torch.linalg.cross(means @ rotation.T + view[:3, 3], v_points).sum(dim=0)
    # A turn w of the world makes q (1, w / 2) q, whatever the length of q.
    q0, q = quats[:, :1], quats[:, 1:]
    v0, v = v_quats[:, :1], v_quats[:, 1:]
    of_quats = 0.5 * (q0 * v - v0 * q + torch.linalg.cross(q, v))
    return torch.cat([shift, turn + rotation @ of_quats.sum(dim=0)]).cpu()


def _rows_of(gradient: Tensor | None, rows: Tensor) -> Tensor | None:
    return None if gradient is None else gradient[rows].double()


def _of_direction(
    gaussians: Gaussians, v_sh0: Tensor, offsets: Tensor, sh_degree: int, rows: Tensor
) -> Tensor:
    """Return the part of v_means [M, 3] that comes from the direction under which the colours are seen."""
    # sh0 has the same factor everywhere, so its gradient tells that of the colour, clamped where that is.
    v_colors = v_sh0[:, 0] / SH_C0
    sh = gaussians.shN.detach()[rows, : (sh_degree + 1) ** 2 - 1].double()
    with torch.enable_grad():
        offsets = offsets.detach().requires_grad_()
        basis = sh_basis(sh_degree, offsets / offsets.norm(dim=1, keepdim=True))[:, 1:]
        colors = (basis[:, :, None] * sh).sum(dim=1)
        (gradient,) = torch.autograd.grad((colors * v_colors).sum(), offsets)
    return gradient
