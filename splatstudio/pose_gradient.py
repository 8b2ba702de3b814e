"""The gradient of a loss with respect to where the camera stands, from those of the Gaussians it shows.

A camera that moves one way sees what it would see if the whole scene, rigid, moved the other way. What a
rigid motion does to means and rotations is known, and so the gradients of the six tensors hold that of the
camera. One thing does not turn with the scene: the direction under which the spherical harmonics are seen.
It changes when the camera shifts, but not when it turns on the spot; that part is taken out again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from splatstudio.camera import Camera
from splatstudio.gaussians import SH_C0, Gaussians
from splatstudio.reference import sh_basis
from splatstudio.transfer import to_device

AT_ONCE = 1 << 18  # Gaussians


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
    part = _Part.of(gaussians, gradients, sh_degree, lambda tensor: tensor[rows])
    if part is None:
        return torch.zeros(6, dtype=torch.float64, device=gaussians.device)
    return _twist(part, camera)


def pose_gradient_of_seen(
    gaussians: Gaussians,
    gradients: dict[str, Tensor | None],
    *,
    camera: Camera,
    sh_degree: int,
    seen: Tensor,
) -> Tensor:
    """Return what `pose_gradient` does, but for the last bits, of the Gaussians that are `seen`, [N] bool.

    Nobody waits for a GPU to learn how many they are. A part of all Gaussians at a time is looked at, as
    the numbers are of double precision.
    """
    total = torch.zeros(6, dtype=torch.float64, device=gaussians.device)
    for start in range(0, len(gaussians), AT_ONCE):
        rows = slice(start, start + AT_ONCE)

        def only_seen(tensor: Tensor, rows: slice = rows) -> Tensor:
            # A Gaussian that nobody sees may have values that are no numbers.
            mask = seen[rows].view(-1, *(1,) * (tensor.dim() - 1))
            return torch.where(mask, tensor[rows], 0.0)

        part = _Part.of(gaussians, gradients, sh_degree, only_seen)
        if part is not None:
            total += _twist(part, camera, seen[rows])
    return total


@dataclass(frozen=True, eq=False)
class _Part:
    """Some Gaussians, M of them, and their gradients, in double precision."""

    means: Tensor
    quats: Tensor
    v_means: Tensor
    v_quats: Tensor
    v_sh0: Tensor | None  # None: no colour depends on the direction
    shN: Tensor
    sh_degree: int

    @classmethod
    def of(
        cls,
        gaussians: Gaussians,
        gradients: dict[str, Tensor | None],
        sh_degree: int,
        some: Callable[[Tensor], Tensor],
    ) -> _Part | None:
        """Return the rows that `some` takes of a tensor; None where the loss has nothing to do with them."""
        v_means, v_quats, v_sh0 = gradients["means"], gradients["quats"], gradients["sh0"]
        if v_means is None or v_quats is None:
            return None
        means, quats = some(gaussians.means.detach()).double(), some(gaussians.quats.detach()).double()
        directed = v_sh0 is not None and sh_degree > 0
        return cls(
            means,
            quats,
            some(v_means).double(),
            some(v_quats).double(),
            some(v_sh0).double() if directed and v_sh0 is not None else None,
            some(gaussians.shN.detach()[:, : (sh_degree + 1) ** 2 - 1]).double() if directed else means,
            sh_degree,
        )


def _twist(part: _Part, camera: Camera, seen: Tensor | None = None) -> Tensor:
    """Return what a part adds to the gradient [6]; `seen` [M] bool says whose direction is one."""
    device = part.means.device
    view = to_device(torch.as_tensor(camera.viewmat, dtype=torch.float64), device)
    rotation = view[:3, :3]
    v_points = part.v_means @ rotation.T  # in the camera's axes
    shift = v_points.sum(dim=0)
    if part.v_sh0 is not None:
        offsets = part.means - to_device(torch.as_tensor(camera.position), device)
        if seen is not None:
            offsets = torch.where(seen[:, None], offsets, 1.0)
        v_points = v_points - _of_direction(part, part.v_sh0, offsets) @ rotation.T
    turn = torch.linalg.cross(part.means @ rotation.T + view[:3, 3], v_points).sum(dim=0)
    # A turn w of the world makes q (1, w / 2) q, whatever the length of q.
    q0, q = part.quats[:, :1], part.quats[:, 1:]
    v0, v = part.v_quats[:, :1], part.v_quats[:, 1:]
    of_quats = 0.5 * (q0 * v - v0 * q + torch.linalg.cross(q, v))
    return torch.cat([shift, turn + rotation @ of_quats.sum(dim=0)])


def _of_direction(part: _Part, v_sh0: Tensor, offsets: Tensor) -> Tensor:
    """Return the part of v_means [M, 3] that comes from the direction under which the colours are seen."""
    # sh0 has the same factor everywhere, so its gradient tells that of the colour, clamped where that is.
    v_colors = v_sh0[:, 0] / SH_C0
    with torch.enable_grad():
        offsets = offsets.detach().requires_grad_()
        basis = sh_basis(part.sh_degree, offsets / offsets.norm(dim=1, keepdim=True))[:, 1:]
        colors = (basis[:, :, None] * part.shN).sum(dim=1)
        (gradient,) = torch.autograd.grad((colors * v_colors).sum(), offsets)
    return gradient
