"""What only a training on native kernels needs: the fused optimizer and what strategies do.

Float32, on the CPU or CUDA, like `ops.py`. Nothing but `depth_error` has a gradient; what returns nothing
happens in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.kernels.ops import _native, _Rasterize, camera_numbers, has_kernel, num_threads
from splatstudio.kernels.stages import Projected, ProjectSettings, Raster, RasterSettings

HISTORY = 128  # steps after which every row is brought up to date
MOST_VIEWS = 8  # of `project_adam_views`; kMostViews in csrc/kernels.h


@dataclass(frozen=True)
class AdamStep:
    """One step of Adam: the rates of the six tensors by name, the moments' decay, its number from 1 on."""

    rates: dict[str, float]
    beta1: float
    beta2: float
    eps: float
    number: int


@dataclass(frozen=True)
class Regularization:
    """What a loss gains: `opacity` times the mean opacity and `scale` times the mean standard deviation.

    Opacities in 0..1, standard deviations in scene units; the loss of Kheradmand et al. 2024 (3DGS as MCMC).
    """

    opacity: float = 0.0
    scale: float = 0.0


NO_REGULARIZATION = Regularization()


@dataclass(frozen=True, eq=False)
class StepGate:
    """What says on a GPU whether a step changes anything, before the host can know.

    It does where the picture had room for all its instances and the loss is a number.
    """

    num_instances: Tensor  # [1] int64
    room: int
    loss: Tensor  # float32, a scalar without gradient

    @property
    def arguments(self) -> tuple[Tensor, int, Tensor]:
        """Return what operators that end in `_within` take last."""
        return self.num_instances, self.room, self.loss

    @property
    def opened(self) -> Tensor:
        """Return what the kernels ask of it, [1] bool, for what torch's operations change."""
        return (self.num_instances <= self.room) & self.loss.isfinite()


def has_step_gates(device: torch.device) -> bool:
    """Return whether steps on such a device may have a StepGate; the CPU knows before it begins one."""
    return has_kernel("project_adam_within", device.type)


class LazyRows:
    """The steps of shN that Gaussians out of sight have yet to make.

    Without a gradient a step is known beforehand, and nobody asks for the color of what is out of sight: the
    row makes up for its steps when it is seen again, to the same bits as if it had made them in time. That
    saves much of a CPU's time, and of a GPU's traffic 1080 bytes a step for each row out of sight.
    """

    def __init__(self, num_gaussians: int, used_columns: int, device: torch.device) -> None:
        # How many of the `num_steps` below each row has made.
        self.steps_done = torch.zeros(num_gaussians, dtype=torch.int32, device=device)
        self.history = torch.zeros(HISTORY, 2, device="cpu")  # what the kernels need to know of each step
        self.num_steps = 0
        self._last_gate: StepGate | None = None  # of the last of these steps
        self._size = (num_gaussians, used_columns)

    @property
    def used_columns(self) -> int:
        """Return how many floats of a row have moments or gradients."""
        return self._size[1]

    def add_step(self, gate: StepGate | None) -> None:
        """Count a step, which `gate` may keep from changing anything."""
        self.num_steps += 1
        self._last_gate = gate

    def forget_last_step(self, num_steps: int) -> None:
        """Go back to `num_steps`, one less at most: the last step was not made."""
        self.num_steps = min(self.num_steps, num_steps)
        self._last_gate = None

    def forget_all(self) -> None:
        """Say that every row has made every step."""
        self.steps_done.zero_()
        self.num_steps = 0
        self._last_gate = None

    def arguments(self, betas: list[float], num_threads: int) -> tuple[object, ...]:
        """Return what operators that let late rows make their steps take last; `betas`: beta1, beta2, eps."""
        gate = () if self._last_gate is None else self._last_gate.arguments
        return (self.steps_done, self.history, self.num_steps, self.used_columns, betas, num_threads, *gate)

    def full(self, num_gaussians: int, used_columns: int) -> bool:
        """Return whether the next step, of so many rows and columns, cannot be remembered here."""
        return self.num_steps == HISTORY or self._size != (num_gaussians, used_columns)


def rasterize_for(
    leaves: Projected,
    projected: Projected,
    settings: RasterSettings,
    probe: Tensor | None = None,
    *,
    absgrad: bool = False,
) -> Raster:
    """Composite as `rasterize` does, or `rasterize_absgrad`, but for `leaves`, which get the gradients.

    Their values are not looked at, and nothing remembers `projected`: its memory is the caller's to free. One
    can go back from the picture but once.
    """
    p = leaves
    inputs = (p.means2d, p.conics, p.depths, p.opacities, p.colors, probe)
    return Raster(*_Rasterize.apply(*inputs, p.radii, settings, absgrad, projected))  # type: ignore[misc]


@torch.no_grad()
def project_adam(  # noqa: PLR0913 - the model and its two moments are apart
    gaussians: Gaussians,
    exp_avg: Gaussians,
    exp_avg_sq: Gaussians,
    projected: Projected,
    v_projected: tuple[Tensor, ...],
    *,
    camera: Camera,
    settings: ProjectSettings,
    adam: AdamStep,
    late: LazyRows,
    regularization: Regularization,
    visible_only: bool,
    gate: StepGate | None = None,
) -> None:
    """Make one step of Adam from the gradients of what `ops.project_raw` returned and of `regularization`.

    `v_projected`: of means2d, conics, depths, opacities, colors. The gradients of the six tensors are never
    in memory. At degree 0 shN makes no step. `visible_only`: rows out of sight make no step at all; otherwise
    their shN is left behind, which `late` remembers. A `gate` may keep everything from changing.
    """
    view, options = camera_numbers(camera, settings, raw=True)
    rates = [*(adam.rates[name] for name in gaussians.tensors()), adam.beta1, adam.beta2, adam.eps]
    used_columns = late.used_columns if settings.sh_degree > 0 else 0
    if used_columns > 0 and not visible_only:
        late.add_step(gate)
    step = (
        list(gaussians.tensors().values()),
        list(exp_avg.tensors().values()),
        list(exp_avg_sq.tensors().values()),
        projected.radii,
        projected.colors,
        [gradient.contiguous() for gradient in v_projected],
        view,
        options,
        rates,
        [regularization.opacity, regularization.scale],
        adam.number,
        late.steps_done,
        late.history,
        late.num_steps,
        used_columns,
        visible_only,
    )
    if gate is not None:
        _native().project_adam_within(*step, *gate.arguments)
        return
    _native().project_adam(*step, num_threads())


@dataclass(frozen=True, eq=False)
class ViewRows:
    """What one of several views of a step gives: a row for each Gaussian that it shows, and no others."""

    camera: Camera
    places: Tensor  # [N] int32, the row of each Gaussian; -1: out of sight
    colors: Tensor  # [M, 3] as they were drawn
    v: Tensor  # [M, 10 or more] the gradients of means2d, conics, depths, opacities, colors


@torch.no_grad()
def project_adam_views(  # noqa: PLR0913 - as `project_adam`
    gaussians: Gaussians,
    exp_avg: Gaussians,
    exp_avg_sq: Gaussians,
    views: Sequence[ViewRows],
    *,
    settings: ProjectSettings,
    adam: AdamStep,
    regularization: Regularization,
    used_columns: int,
    visible_only: bool,
) -> None:
    """Make one step of Adam from the sum of what 1 to MOST_VIEWS views give, and from `regularization`.

    The gradients of the six tensors are never in memory. No rows are left behind: at degree 0 shN makes no
    step, else `used_columns` floats of each of its rows do. `visible_only`: rows that no view shows stay as
    they are.
    """
    numbers = [camera_numbers(view.camera, settings, raw=True) for view in views]
    _native().project_adam_views(
        list(gaussians.detach().tensors().values()),
        list(exp_avg.tensors().values()),
        list(exp_avg_sq.tensors().values()),
        [view.places for view in views],
        [view.colors.contiguous() for view in views],
        [view.v.contiguous() for view in views],
        [number for camera, _ in numbers for number in camera],
        [option for _, options in numbers for option in options],
        [*(adam.rates[name] for name in gaussians.tensors()), adam.beta1, adam.beta2, adam.eps],
        [regularization.opacity, regularization.scale],
        adam.number,
        used_columns if settings.sh_degree > 0 else 0,
        visible_only,
        num_threads(),
    )


@torch.no_grad()
def adam_step_within(  # noqa: PLR0913 - as `ops.adam_step`
    param: Tensor,
    grad: Tensor,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    step: int,
    visible: Tensor | None,
    gate: StepGate,
) -> None:
    """Make one step of Adam in place, as `ops.adam_step` does, unless the `gate` keeps it from that.

    With `visible` [N] bool rows outside it stay as they are, moments included.
    """
    rates = [lr, beta1, beta2, eps]
    moving = (param, grad.contiguous(), exp_avg, exp_avg_sq)
    _native().adam_step_within(*moving, rates, step, visible, *gate.arguments)


@torch.no_grad()
def add_gradients(
    sums: dict[str, Tensor],
    gaussians: Gaussians,
    radii: Tensor,
    colors: Tensor,
    v_projected: Sequence[Tensor],
    *,
    camera: Camera,
    settings: ProjectSettings,
) -> None:
    """Add the gradients of the six stored tensors to `sums`, from those of what `ops.project_raw` returned.

    `v_projected`: of means2d, conics, depths, opacities, colors; `radii` [N, 2] and `colors` [N, 3] as
    returned. Rows that are not visible are neither read nor written. At degree 0 shN has no sum.
    """
    rows = [tensor.contiguous() for tensor in gaussians.detach().tensors().values()]
    totals = [sums.get(name, rows[0].new_zeros(0)) for name in gaussians.tensors()]
    v_rows = [gradient.contiguous() for gradient in v_projected]
    view, options = camera_numbers(camera, settings, raw=True)
    _native().project_bwd_add(totals, *rows, radii, colors.detach(), *v_rows, view, options, num_threads())


def zero_sums(gaussians: Gaussians, settings: ProjectSettings) -> dict[str, Tensor]:
    """Return zeros for `add_gradients`, by the names of the tensors that have gradients."""
    tensors = gaussians.detach().tensors().items()
    return {
        name: torch.zeros_like(tensor) for name, tensor in tensors if name != "shN" or settings.sh_degree > 0
    }


@torch.no_grad()
def project_lazy(
    gaussians: Gaussians,
    exp_avg: Tensor,
    exp_avg_sq: Tensor,
    *,
    camera: Camera,
    settings: ProjectSettings,
    late: LazyRows,
    betas: list[float],
) -> Projected:
    """Project as `ops.project_raw` does; what is visible first makes the steps of its shN that it has yet to.

    `exp_avg`, `exp_avg_sq` [N, K-1, 3] are the moments of shN, `betas` beta1, beta2, eps.
    """
    view, options = camera_numbers(camera, settings, raw=True)
    rows = list(gaussians.tensors().values())
    if late.num_steps == 0 or settings.sh_degree == 0:
        return Projected(*_native().project_fwd(*rows, view, options, num_threads()))
    steps = late.arguments(betas, num_threads())
    return Projected(*_native().project_lazy(rows, exp_avg, exp_avg_sq, view, options, *steps))


@torch.no_grad()
def flush_lazy_adam(
    shN: Tensor, exp_avg: Tensor, exp_avg_sq: Tensor, late: LazyRows, betas: list[float]
) -> None:
    """Let every row of shN [N, K-1, 3] make the steps it has yet to make; `betas` are beta1, beta2, eps."""
    if late.num_steps > 0:
        _native().flush_lazy_adam(shN.detach(), exp_avg, exp_avg_sq, *late.arguments(betas, num_threads()))
        late.forget_all()


@torch.no_grad()
def count_seen(
    gradients2d: Tensor,
    radii: Tensor,
    size: tuple[int, int],
    grad2d: Tensor,
    visible: Tensor,
    radius2d: Tensor | None,
    gate: StepGate | None = None,
) -> None:
    """Add what one step showed to the counts of a strategy, [N] each, in place.

    `gradients2d` [N, 2] px and `radii` [N, 2] int32 px of a rendering of `size` (width, height) px. For what
    is visible: `grad2d` grows by the gradient's length in normalized device coordinates, `visible` by 1, and
    `radius2d` to the larger radius over the longer side. A `gate` may keep everything from changing.
    """
    seen = (gradients2d, radii, *size, grad2d, visible, radius2d)
    if gate is None:
        _native().count_seen(*seen, num_threads())
    else:
        _native().count_seen_within(*seen, *gate.arguments)


@torch.no_grad()
def inject_noise(
    gaussians: Gaussians,
    *,
    amount: float,
    min_opacity: float,
    seed: int,
    places: Tensor | None = None,
    gate: StepGate | None = None,
) -> None:
    """Move positions at random, in place, as `reference_training.inject_noise` does; contiguous tensors.

    A `gate` may keep everything from changing. Raises RuntimeError when the kernels have not been built.
    """
    g = gaussians
    rows = (g.means, g.quats.contiguous(), g.scales.contiguous(), g.opacities.contiguous())
    numbers = (amount, min_opacity, seed)
    if gate is None:
        _native().inject_noise(*rows, *numbers, num_threads(), places)
    else:
        _native().inject_noise_within(*rows, *numbers, *gate.arguments, places)


@torch.no_grad()
def pose_gradient(
    gaussians: Gaussians,
    gradients: dict[str, Tensor | None],
    *,
    camera: Camera,
    sh_degree: int,
    radii: Tensor,
) -> Tensor:
    """Return the gradient [6] float64 of a twist of `camera`, as `reference_training.pose_gradient` does.

    A GPU is not waited for. Raises RuntimeError when the kernels have not been built.
    """
    v_means, v_quats, v_sh0 = (gradients[name] for name in ("means", "quats", "sh0"))
    if v_means is None or v_quats is None:
        return torch.zeros(6, dtype=torch.float64, device=gaussians.device)
    g = gaussians.detach()
    rows = [tensor.contiguous() for tensor in (g.means, g.quats, g.shN, v_means, v_quats)]
    v_colors = v_sh0.contiguous() if v_sh0 is not None and sh_degree > 0 else None
    view = [*camera.viewmat[:3].reshape(-1).tolist(), *camera.position.tolist()]
    return _native().pose_gradient(*rows, v_colors, radii.contiguous(), view, sh_degree, num_threads())


@torch.no_grad()
def area_means(image: Tensor, *, width: int, height: int) -> Tensor:
    """Return `image` [H, W, C] as [height, width, C], as `reference_training.area_means` does.

    Raises RuntimeError when the kernels have not been built.
    """
    return _native().area_means(image.contiguous(), width, height, num_threads())


class _BilateralGrid(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rgb, grid):
        rgb, grid = rgb.contiguous(), grid.contiguous()
        ctx.save_for_backward(rgb, grid)
        return _native().bilateral_grid(rgb, grid, num_threads())

    @staticmethod
    @once_differentiable
    def backward(ctx, v_colors):
        return _native().bilateral_grid_bwd(*ctx.saved_tensors, v_colors.contiguous(), num_threads())


def bilateral_grid(rgb: Tensor, grid: Tensor) -> Tensor:
    """Return colors `rgb` [H, W, 3] under affine maps, as `reference_training.bilateral_grid` does.

    Raises RuntimeError when the kernels have not been built.
    """
    return _BilateralGrid.apply(rgb, grid)  # type: ignore[return-value]


@torch.no_grad()
def compute_relocation(opacities: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Return how `copies` [M] int64 equal parts look, as `reference_training.compute_relocation` does.

    Raises RuntimeError when the kernels have not been built.
    """
    return _native().compute_relocation(opacities.contiguous(), copies.contiguous(), num_threads())


class _DepthError(torch.autograd.Function):
    @staticmethod
    def forward(ctx, alpha, depth_sum, points, mask, view, unit):
        maps = (alpha.contiguous(), depth_sum.contiguous())
        mask = None if mask is None else mask.contiguous()
        error, share, codes = _native().depth_error(*maps, mask, points, view, unit, num_threads())
        ctx.save_for_backward(*maps, share, codes)
        return error

    @staticmethod
    @once_differentiable
    def backward(ctx, v_error):
        return (*_native().depth_error_bwd(*ctx.saved_tensors, v_error, num_threads()), *[None] * 4)


def depth_error(
    alpha: Tensor,
    depth_sum: Tensor,
    points: Tensor,
    *,
    camera: Camera,
    mask: Tensor | None = None,
    unit: float = 1.0,
) -> Tensor:
    """Return how wrong drawn depths are at `points` [M, 3], as `reference_training.depth_error` does.

    A GPU is not waited for. Raises RuntimeError when the kernels have not been built.
    """
    (fx, _, cx), (_, fy, cy) = camera.K[:2].tolist()
    view = [*camera.viewmat[:3].reshape(-1).tolist(), fx, fy, cx, cy]
    return _DepthError.apply(alpha, depth_sum, points.contiguous(), mask, view, unit)  # type: ignore[return-value]


@torch.no_grad()
def drop_out(opacities: Tensor, keys: Tensor, *, seed: int, rate: float) -> Tensor:
    """Return the logits with which a step draws `opacities` [N], as `reference_training.drop_out` does.

    Raises RuntimeError when the kernels have not been built.
    """
    return _native().drop_out(opacities.contiguous(), keys.contiguous(), seed, rate, num_threads())
