"""The model: N anisotropic 3D Gaussians as six tensors of raw (unconstrained) parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

SH_C0 = 0.28209479177387814
MORTON_BITS = 21  # an axis; three of them fill 63 bits
# Each step spreads the bits of a number further apart, until two zeros lie between any two of them.
MORTON_SPREAD = [
    (32, 0x001F00000000FFFF),
    (16, 0x001F0000FF0000FF),
    (8, 0x100F00F00F00F00F),
    (4, 0x10C30C30C30C30C3),
    (2, 0x1249249249249249),
]


@dataclass(frozen=True, eq=False)
class Gaussians:
    """N Gaussians; every tensor has N rows.

    The tensors are what is optimized and stored: log scales, logit opacities, quaternions of any length.
    """

    means: Tensor  # [N, 3] world
    quats: Tensor  # [N, 4] w, x, y, z
    scales: Tensor  # [N, 3] natural logarithm of the standard deviations
    opacities: Tensor  # [N] logit
    sh0: Tensor  # [N, 1, 3]
    shN: Tensor  # [N, K-1, 3], K = (degree + 1)^2

    def finite_rows(self) -> Tensor:
        """Return [N] bool: the Gaussians of which every number is finite."""
        finite = [
            tensor.isfinite().flatten(1).all(dim=1) for tensor in self.tensors().values() if tensor.dim() > 1
        ]
        return torch.stack([*finite, self.opacities.isfinite()]).all(dim=0)

    def __len__(self) -> int:
        return self.means.shape[0]

    @property
    def sh_degree(self) -> int:
        """Return the degree of the stored spherical harmonics, 0..3."""
        return {0: 0, 3: 1, 8: 2, 15: 3}[self.shN.shape[1]]

    @property
    def device(self) -> torch.device:
        """Return the device of the tensors."""
        return self.means.device

    def tensors(self) -> dict[str, Tensor]:
        """Return the six tensors by name, in declaration order."""
        return {name: getattr(self, name) for name in _NAMES}

    def map(self, function: Callable[[Tensor], Tensor]) -> Gaussians:
        """Return Gaussians made of `function` of each tensor."""
        return Gaussians(*(function(getattr(self, name)) for name in _NAMES))

    def __getitem__(self, index: Tensor | slice) -> Gaussians:
        return self.map(lambda tensor: tensor[index])

    def detach(self) -> Gaussians:
        """Return the same values outside the autograd graph."""
        return self.map(Tensor.detach)

    def to(self, device: torch.device | str) -> Gaussians:
        """Return the Gaussians on `device`."""
        return self.map(lambda tensor: tensor.to(device))


_NAMES = tuple(field.name for field in fields(Gaussians))


def concatenated(parts: list[Gaussians]) -> Gaussians:
    """Return the rows of all `parts`, in order; at least one part, all of one SH degree."""
    assert parts, "nothing to concatenate"
    names = parts[0].tensors()
    return Gaussians(**{name: torch.cat([part.tensors()[name] for part in parts]) for name in names})


def with_rows(tensor: Tensor, rows: Tensor, newborn: Tensor) -> Tensor:
    """Return `tensor[rows]` (indices) with the rows of `newborn` behind, without a copy in between."""
    merged = tensor.new_empty((len(rows) + len(newborn), *tensor.shape[1:]))
    torch.index_select(tensor, 0, rows, out=merged[: len(rows)])
    merged[len(rows) :] = newborn
    return merged


def unit_quats(quats: Tensor) -> Tensor:
    """Return the quaternions [N, 4] at length 1; those of length 0, which turn nothing, as the identity."""
    # Divided by the largest component first: the square of a tiny or huge one leaves float32.
    largest = quats.abs().amax(dim=1, keepdim=True)
    scaled = quats / largest
    unit = scaled / scaled.norm(dim=1, keepdim=True)
    return torch.where(largest > 0.0, unit, quats.new_tensor([1.0, 0.0, 0.0, 0.0]))


def opacities_of(logits: Tensor) -> Tensor:
    """Return the opacities, 0..1, of raw ones; each follows from its own number alone, wherever it stands.

    The last few of a tensor, and of each thread's part of it, `torch.sigmoid` rounds otherwise than the rest:
    a model that lies on several ranks would come to differ from the same one in a single process.
    """
    return (1.0 + (-logits).exp()).reciprocal()


def rgb_to_sh0(rgb: Tensor) -> Tensor:
    """Return the degree-0 coefficient that shows as `rgb` (0..1), same shape."""
    return (rgb - 0.5) / SH_C0


def central_bounds(gaussians: Gaussians) -> tuple[tuple[float, float, float], float]:
    """Return the center and the radius of the half of the Gaussians that lies most centrally, world units."""
    # A sample is enough for a camera's first position; the far background must not decide it.
    stride = max(1, len(gaussians) // 100_000)
    means = gaussians.means.detach()[::stride].double().cpu().numpy()
    sizes = gaussians.scales.detach()[::stride].amax(dim=1).exp().double().cpu().numpy()
    finite = np.isfinite(means).all(axis=1) & np.isfinite(sizes)
    means, sizes = means[finite], sizes[finite]
    if len(means) == 0:
        return (0.0, 0.0, 0.0), 1.0
    center = np.median(means, axis=0)
    radius = float(np.quantile(np.linalg.norm(means - center, axis=1), 0.5))
    # Units are the file's own, however small; a lone splat is as large as it is drawn.
    radius = max(radius, 3.0 * float(np.median(sizes))) if radius < 1e-3 else radius
    return (float(center[0]), float(center[1]), float(center[2])), radius or 1.0


def morton_order(means: np.ndarray) -> np.ndarray:
    """Return the rows of `means` [N, 3], finite, in the order of their interleaved coordinates' bits."""
    if len(means) == 0:
        return np.zeros(0, np.intp)
    low = means.min(axis=0).astype(np.float64)
    extent = means.max(axis=0) - low
    extent[extent == 0.0] = 1.0
    keys = np.zeros(len(means), np.uint64)
    for axis in range(3):
        cells = ((means[:, axis] - low[axis]) / extent[axis] * (2**MORTON_BITS - 1)).astype(np.uint64)
        for shift, mask in MORTON_SPREAD:
            cells = (cells | (cells << np.uint64(shift))) & np.uint64(mask)
        keys |= cells << np.uint64(axis)
    return np.argsort(keys, kind="stable")
