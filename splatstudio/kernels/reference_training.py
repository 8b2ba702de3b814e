"""What only a training needs, in plain torch: what the native kernels are tested against.

Random numbers are made by counting (Philox4x32-10, Salmon et al. 2011, "Parallel random numbers: as easy as
1, 2, 3"): those of a row follow from the seed and the row alone, on every device.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import SH_C0, Gaussians, opacities_of
from splatstudio.gaussians.spherical_harmonics import sh_basis
from splatstudio.kernels.reference import rotation_matrices

# The noise falls with the opacity by a logistic curve, which is a half at `min_opacity`.
NOISE_STEEPNESS = 100.0
NOISE_RANGE = 0.095  # above `min_opacity` by this much less than a ten thousandth is left: none is made

# Of what a dropout raises; the least is not drawn, but has a slope.
LEAST_RAISED, MOST_RAISED = 1e-8, 0.999
LEFT_OUT = -20.0  # the logit of an opacity that nothing draws
LUMA = (0.299, 0.587, 0.114)  # ITU-R BT.601
SURFACE_ALPHA = 0.5  # where less is drawn there is no surface yet whose depth could be judged

_LOW = 0xFFFFFFFF
_ODD = (-0x61C8864680B583EB, -0x3B314601E57A13AD)  # multipliers that mix the bits of 64: wrap as int64 does


@torch.no_grad()
def inject_noise(
    gaussians: Gaussians, *, amount: float, min_opacity: float, seed: int, places: Tensor | None = None
) -> None:
    """Move positions at random, in place, the fainter a Gaussian the more, along its own axes.

    The offsets are `amount` times the covariance times normal noise, times a logistic curve of the opacity
    that is a half at `min_opacity` (Kheradmand et al. 2024, equation 8). `seed` is 0 or more, below 2^63. The
    noise of a row is that of its number in `places` [N] int64; None: of its own number. An offset that is no
    number is left out.
    """
    opacities = gaussians.opacities.sigmoid()
    axes = rotation_matrices(gaussians.quats)
    rows = torch.arange(len(gaussians), device=gaussians.device) if places is None else places
    noise = normal_noise(rows, seed, gaussians.means)
    along = (axes.transpose(1, 2) @ noise[..., None]) * (2.0 * gaussians.scales).exp()[..., None]
    share = torch.sigmoid(NOISE_STEEPNESS * (min_opacity - opacities))
    offsets = (axes @ along).squeeze(-1) * (amount * share)[:, None]
    moving = (opacities < min_opacity + NOISE_RANGE) & offsets.isfinite().all(dim=1)
    gaussians.means.add_(torch.where(moving[:, None], offsets, torch.zeros_like(offsets)))


def compute_relocation(opacities: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Return the opacity of each of `copies` [M] int64 equal parts, and by what to multiply their size.

    `opacities` [M] in 0..1 are of the whole (Kheradmand et al. 2024, equation 9). Both [M] float64: the sum's
    terms are large and of changing sign.
    """
    whole, num = opacities.double(), copies.double()
    each = 1.0 - (1.0 - whole) ** (1.0 / num)
    total, term = torch.zeros_like(each), -torch.ones_like(each)
    for k in range(int(copies.max()) if len(copies) else 0):
        # Times C(n, k + 1) / C(n, k), and 0 from k = n on.
        term = -term * each * (num - k) / (k + 1)
        total += term / math.sqrt(k + 1)
    return each, whole / total


@torch.no_grad()
def pose_gradient(
    gaussians: Gaussians,
    gradients: dict[str, Tensor | None],
    *,
    camera: Camera,
    sh_degree: int,
    radii: Tensor,
) -> Tensor:
    """Return the gradient with respect to a twist of `camera`, [6] float64: the shift, then the turn.

    The twist (p, w) moves what the camera sees, in its axes, from x to x + w x x + p: `viewmat` becomes
    [I + w^ | p] @ viewmat. `gradients` are those of the six stored tensors, by name, `sh_degree` the degree
    that was drawn, `radii` [N, 2] those of the picture, 0 = not seen. A Gaussian whose gradients are no
    numbers says nothing.

    A camera that moves one way sees what it would see if the whole scene, rigid, moved the other way, and
    what that does to means and rotations is known. One thing does not turn with the scene: the direction
    under which the spherical harmonics are seen. It changes when the camera shifts, but not when it turns on
    the spot; that part is taken out again.
    """
    v_means, v_quats, v_sh0 = gradients["means"], gradients["quats"], gradients["sh0"]
    if v_means is None or v_quats is None:
        return torch.zeros(6, dtype=torch.float64, device=gaussians.device)
    rows = (radii > 0).all(dim=1).nonzero()[:, 0]
    viewmat = torch.as_tensor(camera.viewmat, dtype=torch.float64, device=gaussians.device)
    rotation, translation = viewmat[:3, :3], viewmat[:3, 3]
    means, quats, v_quats = (
        tensor.detach()[rows].double() for tensor in (gaussians.means, gaussians.quats, v_quats)
    )
    shifts = v_means[rows].double() @ rotation.T  # in the camera's axes
    v_points = shifts
    if v_sh0 is not None and sh_degree > 0:
        offsets = means - torch.as_tensor(camera.position, device=gaussians.device)
        # sh0 has the same factor everywhere, so its gradient tells that of the color, clamped where that is.
        v_colors = v_sh0[rows, 0].double() / SH_C0
        of_direction = _of_direction(gaussians.shN.detach()[rows].double(), v_colors, offsets, sh_degree)
        v_points = v_points - of_direction @ rotation.T
    # A turn w of the world makes q (1, w / 2) q, whatever the length of q.
    q0, q = quats[:, :1], quats[:, 1:]
    v0, v = v_quats[:, :1], v_quats[:, 1:]
    of_quats = 0.5 * (q0 * v - v0 * q + torch.linalg.cross(q, v))
    turns = torch.linalg.cross(means @ rotation.T + translation, v_points) + of_quats @ rotation.T
    twists = torch.cat([shifts, turns], dim=1)
    return twists[twists.sum(dim=1).isfinite()].sum(dim=0)


def _of_direction(shN: Tensor, v_colors: Tensor, offsets: Tensor, sh_degree: int) -> Tensor:
    """Return the part of v_means [M, 3] that comes from the direction under which the colors are seen."""
    with torch.enable_grad():
        offsets = offsets.detach().requires_grad_()
        basis = sh_basis(sh_degree, offsets / offsets.norm(dim=1, keepdim=True))[:, 1:]
        colors = (basis[:, :, None] * shN[:, : basis.shape[1]]).sum(dim=1)
        (gradient,) = torch.autograd.grad((colors * v_colors).sum(), offsets)
    return gradient


def area_means(image: Tensor, *, width: int, height: int) -> Tensor:
    """Return `image` [H, W, C] as [height, width, C], whose pixels are means of areas.

    Pixel i of n along a side of N is the mean of the pixels from floor(i N / n) to before
    ceil((i + 1) N / n): neighbors share the pixels that lie in both. Bytes become floats in 0..1.
    """
    floats = image.float() / 255.0 if image.dtype == torch.uint8 else image
    planes = floats.permute(2, 0, 1)[None]
    means = functional.interpolate(planes, (height, width), mode="area")
    return means[0].permute(1, 2, 0).contiguous()


def bilateral_grid(rgb: Tensor, grid: Tensor) -> Tensor:
    """Return the colors `rgb` [H, W, 3] under a bilateral grid of affine maps (Wang et al. 2024).

    `grid` [12, D, R, C]: what the 3 x 4 maps differ by from none, by brightness (dark to bright), row and
    column; in between they are interpolated linearly, and what is darker than 0 or brighter than 1 has the
    map of that. Differentiable in both.
    """
    height, width = rgb.shape[:2]
    y = torch.linspace(-1.0, 1.0, height, dtype=rgb.dtype, device=rgb.device)
    x = torch.linspace(-1.0, 1.0, width, dtype=rgb.dtype, device=rgb.device)
    rows, columns = torch.meshgrid(y, x, indexing="ij")
    brightness = (rgb @ torch.tensor(LUMA, dtype=rgb.dtype).to(rgb.device)).clamp(0.0, 1.0) * 2.0 - 1.0
    places = torch.stack([columns, rows, brightness], dim=-1)[None, None]
    maps = functional.grid_sample(
        grid[None], places, mode="bilinear", padding_mode="border", align_corners=True
    )
    maps = maps[0, :, 0].reshape(3, 4, height, width)
    change = (maps[:, :3] * rgb.permute(2, 0, 1)[None]).sum(dim=1) + maps[:, 3]
    return rgb + change.permute(1, 2, 0)


def normal_noise(rows: Tensor, seed: int, like: Tensor) -> Tensor:
    """Return normal numbers of `rows` [N] int64, [N, 3], of the kind of `like` (Box and Muller 1958)."""
    bits = random_bits(rows, seed)
    units = ((bits >> 8).to(like.dtype) + 1.0) / 2.0**24
    lengths, angles = square_root(-2.0 * units[:, [0, 2]].log()), 2.0 * math.pi * units[:, [1, 3]]
    (first, second), (turn, other) = lengths.unbind(1), angles.unbind(1)
    return torch.stack([first * turn.cos(), first * turn.sin(), second * other.cos()], dim=1)


def depth_error(
    alpha: Tensor,
    depth_sum: Tensor,
    points: Tensor,
    *,
    camera: Camera,
    mask: Tensor | None = None,
    unit: float = 1.0,
) -> Tensor:
    """Return how wrong drawn depths are at `points` [M, 3] of the world, a scalar.

    It is the mean of |1/drawn - 1/true| times `unit`, over the points whose pixel is covered by more than
    SURFACE_ALPHA and not left out by `mask` [H, W] bool; 0 where there is none. `alpha` and `depth_sum`
    [H, W] are as of `Raster`, and have gradients; `camera` is a pinhole of the same size.
    """
    viewmat = torch.from_numpy(camera.viewmat[:3]).to(alpha.device)
    seen = points.double() @ viewmat[:, :3].T + viewmat[:, 3]
    (fx, _, cx), (_, fy, cy) = camera.K[:2].tolist()
    columns = (fx * seen[:, 0] / seen[:, 2] + cx).floor()
    rows = (fy * seen[:, 1] / seen[:, 2] + cy).floor()
    inside = (columns >= 0) & (columns < camera.width) & (rows >= 0) & (rows < camera.height)
    inside &= seen[:, 2] > 0
    places = (rows * camera.width + columns)[inside].long()
    covered, depths = alpha.reshape(-1)[places], depth_sum.reshape(-1)[places].clamp_min(1e-10)
    counts = covered.detach() > SURFACE_ALPHA
    if mask is not None:
        counts &= mask.reshape(-1)[places]
    wrong = (covered / depths - seen[inside, 2].reciprocal().to(alpha)).abs()[counts]
    return wrong.sum() * (unit / max(len(wrong), 1))


def drop_out(opacities: Tensor, keys: Tensor, *, seed: int, rate: float) -> Tensor:
    """Return the logits with which a step draws `opacities` [N], logits, that leaves out a share `rate`.

    Who is left out is drawn by `keys` [N] int64, see `left_out`. The others have 1 / (1 - rate) times their
    opacity, at most MOST_RAISED.
    """
    raised = raised_opacities(opacities_of(opacities), rate=rate)
    shown = (raised / (1.0 - raised)).log()
    return shown.masked_fill(left_out(keys, seed=seed, rate=rate), LEFT_OUT)


def left_out(keys: Tensor, *, seed: int, rate: float) -> Tensor:
    """Return who of `keys` [N] int64 is left out, [N] bool: that follows from key and seed alone."""
    bits = (keys ^ seed) * _ODD[0]
    bits ^= (bits >> 32) & _LOW
    bits *= _ODD[1]
    return ((bits >> 32) & _LOW) < int(rate * 2.0**32)


def raised_opacities(opacities: Tensor, *, rate: float) -> Tensor:
    """Return opacities [N] in 0..1 as those are drawn that stay, where a share `rate` is left out."""
    return (opacities * (1.0 / (1.0 - rate))).clamp(LEAST_RAISED, MOST_RAISED)


def square_root(values: Tensor) -> Tensor:
    """Return the square roots of `values`, of any shape and at least 0, alike on all processors.

    `torch.sqrt` asks Intel's library, which rounds one in seven in another way on AMD's processors, whatever
    it is told. What this takes instead is rounded twice, by the rules of IEEE 754.
    """
    return values.rsqrt().reciprocal()


def random_bits(rows: Tensor, seed: int) -> Tensor:
    """Return the four random numbers of 32 bits of each of `rows` [N] int64, [N, 4] int64."""
    words = [rows & _LOW, rows >> 32, torch.zeros_like(rows), torch.zeros_like(rows)]
    keys = [seed & _LOW, seed >> 32]
    for _ in range(10):
        # The lower 64 bits of a product are right whatever its sign is taken for.
        a, b = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        first, third = (b >> 32) & _LOW, (a >> 32) & _LOW
        words = [first ^ words[1] ^ keys[0], b & _LOW, third ^ words[3] ^ keys[1], a & _LOW]
        keys = [(keys[0] + 0x9E3779B9) & _LOW, (keys[1] + 0xBB67AE85) & _LOW]
    return torch.stack(words, dim=1)
