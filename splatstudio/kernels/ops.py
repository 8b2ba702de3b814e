"""The stages of the renderer on native kernels (csrc/), as in `reference.py`: float32, on the CPU or CUDA.

Gradients are autograd.Functions here; this is the only file that calls `torch.ops`.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from splatstudio.cameras.camera import Camera
from splatstudio.devices import accelerator
from splatstudio.kernels.installed import InstalledTorch, KernelFiles, kernel_files, refuse_torch
from splatstudio.kernels.stages import (
    MedianRaster,
    Projected,
    ProjectSettings,
    Raster,
    RasterSettings,
    Shapes,
    SolidRaster,
)

SSIM_WINDOW = 11  # px
CAMERA_MODELS = ("pinhole", "ortho", "fisheye")  # their numbers in csrc/camera.h

_thread = threading.local()


@functools.cache
def _native() -> Any:
    """Load the extension once and return its operators.

    Raises RuntimeError when it has not been built, ValueError where torch is too old for it.
    """
    refuse_torch(InstalledTorch(str(torch.__version__), torch.version.cuda))
    files = kernel_files()
    if files is None:
        raise RuntimeError(
            "the native kernels of splatstudio are not built; "
            "run `pip install --no-build-isolation --no-deps -e .` in the repository"
        )
    torch.ops.load_library(files.cpu)
    return _Operators(_load_cuda(files))


def _load_cuda(files: KernelFiles) -> str | None:
    """Load the library of the CUDA kernels that lies beside that of the CPU's, where torch has CUDA.

    Returns None, or why there are none: whatever is wrong with that library, the CPU's kernels serve.
    """
    if torch.version.cuda is None:
        return f"this torch, {torch.__version__}, has no CUDA"
    if files.without_cuda is not None:
        return files.without_cuda
    try:
        torch.ops.load_library(files.cuda)
    except (OSError, RuntimeError) as error:
        return f"the CUDA kernels cannot be loaded: {_cause(error)}"
    return None


def _cause(error: Exception) -> str:
    """Return the line of a failed load that has the cause: what the loader said, not that torch failed."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    return (str(cause).strip().splitlines() or [type(cause).__name__])[0]


class _Operators:
    """The operators of the extension; where a GPU's fails, the error says what it was given.

    `without_cuda`: why there are none for GPUs, None where there are.
    """

    def __init__(self, without_cuda: str | None):
        self.without_cuda = without_cuda

    def __getattr__(self, name: str) -> Callable[..., Any]:
        operator = getattr(torch.ops.splatstudio, name)

        def call(*given: Any) -> Any:
            try:
                return operator(*given)
            except RuntimeError as error:
                if " failed on cuda:" not in str(error):  # see check() in csrc/cuda/launch.cuh
                    raise
                raise RuntimeError(
                    f"{str(error).splitlines()[0]}; {name} was given {_shapes(given)}"
                ) from error

        setattr(self, name, call)
        return call


def _shapes(given: Sequence[Any]) -> str:
    """Return the shapes of all tensors among the arguments of an operator, in their order."""
    flat = [one for each in given for one in (each if isinstance(each, list | tuple) else [each])]
    return ", ".join(
        f"{str(one.dtype).removeprefix('torch.')} {list(one.shape)}"
        for one in flat
        if isinstance(one, Tensor)
    )


def is_available() -> bool:
    """Return whether the native kernels have been built."""
    return kernel_files() is not None


def native_version() -> str:
    """Return the instruction set that the kernels use on this machine: "avx512", "avx2" or "portable".

    Raises RuntimeError when the kernels have not been built.
    """
    return _native().instruction_set()


def has_cuda_kernels() -> bool:
    """Return whether the CUDA kernels are there and torch sees a GPU."""
    return has_kernels_for(accelerator.CUDA)


@functools.cache
def has_kernels_for(device_type: str) -> bool:
    """Return whether there are kernels for the accelerators of a type, and such accelerators."""
    return accelerator.kind() == device_type and is_available() and has_kernel("project_fwd", device_type)


def without_cuda_kernels() -> str | None:
    """Return why there are no CUDA kernels, as the end of a sentence; None where they are loaded.

    Raises RuntimeError when the kernels of the CPU have not been built.
    """
    return _native().without_cuda


def cuda_architectures() -> tuple[str, ...]:
    """Return what the CUDA kernels were compiled for, as CMake calls it: ("80-real", "90").

    Without "-real" there is PTX, too, for all that are newer. Empty where there are no CUDA kernels.
    """
    if without_cuda_kernels() is not None:
        return ()
    return tuple(torch.ops.splatstudio.cuda_architectures().split(","))


def compiled_for(capability: tuple[int, int], architectures: Sequence[str]) -> bool:
    """Return whether kernels compiled for these architectures run on a GPU of that compute capability."""
    for architecture in architectures:
        number, _, kind = architecture.partition("-")
        compiled = divmod(int(number.rstrip("af")), 10)
        if kind != "virtual" and compiled[0] == capability[0] and compiled <= capability:
            return True
        if kind != "real" and compiled <= capability:
            return True
    return False


def _dispatch_key(device_type: str) -> str:
    """Return torch's word for the kernels of a kind of device; one that is not of torch's own has a name."""
    named = torch._C._get_privateuse1_backend_name()
    return "PrivateUse1" if device_type == named else device_type.upper()


@functools.cache
def has_kernel(name: str, device_type: str) -> bool:
    """Return whether the operator `name` was built for tensors of a device type, as "cpu" or "cuda".

    Raises RuntimeError when the kernels have not been built.
    """
    _native()
    return torch._C._dispatch_has_kernel_for_dispatch_key(f"splatstudio::{name}", _dispatch_key(device_type))


def num_threads() -> int:
    """Return the number of threads that a call from this Python thread uses.

    That is `torch.get_num_threads()` (OMP_NUM_THREADS, torch.set_num_threads), or the limit of
    `limited_threads`.
    """
    limit = getattr(_thread, "limit", None)
    return torch.get_num_threads() if limit is None else limit


@contextlib.contextmanager
def limited_threads(limit: int) -> Iterator[None]:
    """Let calls from this Python thread use `limit` threads (1 or more), whatever torch is set to.

    For what runs beside a training: each Python thread has helpers of its own and waits for no other.
    """
    assert limit >= 1
    before = getattr(_thread, "limit", None)
    _thread.limit = limit
    try:
        yield
    finally:
        _thread.limit = before


def project(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh0: Tensor,
    shN: Tensor,
    *,
    camera: Camera,
    settings: ProjectSettings,
) -> Projected:
    """Project N Gaussians onto one camera's image plane and shade them.

    `means` [N, 3] world, `quats` [N, 4] wxyz of any length but 0, `scales` [N, 3] standard deviations,
    `opacities` [N] in 0..1, `sh0` [N, 1, 3], `shN` [N, K-1, 3] with K >= (settings.sh_degree + 1)^2.
    A Gaussian with a value that is not finite is culled and gets no gradient.
    Raises RuntimeError when the kernels have not been built.
    """
    inputs = (means, quats, scales, opacities, sh0, shN)
    return _project(inputs, camera, settings, raw=False)


def project_raw(
    means: Tensor,
    quats: Tensor,
    scales: Tensor,
    opacities: Tensor,
    sh0: Tensor,
    shN: Tensor,
    *,
    camera: Camera,
    settings: ProjectSettings,
) -> Projected:
    """Project as `project` does, from what is stored: `scales` natural logarithms, `opacities` logits.

    The activations and their gradients are part of the kernels. Raises RuntimeError when these have not been
    built.
    """
    inputs = (means, quats, scales, opacities, sh0, shN)
    return _project(inputs, camera, settings, raw=True)


def _project(
    inputs: tuple[Tensor, ...], camera: Camera, settings: ProjectSettings, *, raw: bool
) -> Projected:
    return Projected(*_Project.apply(*inputs, *camera_numbers(camera, settings, raw=raw)))  # type: ignore[misc]


@functools.lru_cache(maxsize=2)  # each step of a training asks twice for its camera, and a viewer beside it
def camera_numbers(camera: Camera, settings: ProjectSettings, *, raw: bool) -> tuple[list[float], list[int]]:
    """Return a camera and how to project as the kernels take them (`settings_of` in csrc/binding.h).

    `raw`: the scales are logarithms and the opacities logits.
    """
    (fx, _, cx), (_, fy, cy) = camera.K[:2].tolist()
    viewmat, position = camera.viewmat[:3].reshape(-1).tolist(), camera.position.tolist()
    view = [*viewmat, *position, fx, fy, cx, cy, settings.near, settings.far]
    model = CAMERA_MODELS.index(camera.model)
    options = [camera.width, camera.height, model, settings.sh_degree, int(settings.antialiased), int(raw)]
    return view, options


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(ctx, means, quats, scales, opacities, sh0, shN, view, options):  # noqa: PLR0913
        inputs = [tensor.contiguous() for tensor in (means, quats, scales, opacities, sh0, shN)]
        outputs = _native().project_fwd(*inputs, view, options, num_threads())
        colors, radii = outputs[4], outputs[5]
        ctx.save_for_backward(*inputs, radii, colors)
        ctx.view, ctx.options = view, options
        ctx.mark_non_differentiable(radii)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx, *v_outputs):
        v = [gradient.contiguous() for gradient in v_outputs[:5]]
        *gradients, v_shN = _native().project_bwd(
            *ctx.saved_tensors, *v, ctx.view, ctx.options, num_threads()
        )
        # At degree 0 the other coefficients have no influence, and no gradient is made for them.
        return (*gradients, None if v_shN.dim() == 1 else v_shN, None, None)


def rasterize(projected: Projected, settings: RasterSettings, probe: Tensor | None = None) -> Raster:
    """Composite projected Gaussians front to back.

    `probe` [N, 2], zeros that require a gradient: after the backward pass `probe.grad` is the gradient with
    respect to means2d, px, summed over the pixels. The background gets no gradient. `settings.room` is for
    a GPU. Raises RuntimeError when the kernels have not been built.
    """
    return _rasterize(projected, settings, probe, absgrad=False)


def rasterize_absgrad(projected: Projected, settings: RasterSettings, probe: Tensor) -> Raster:
    """Composite as `rasterize` does, but let `probe.grad` be the sum of the pixels' absolute contributions.

    The two components are taken absolutely one by one (Ye et al. 2024, AbsGS). Other gradients stay.
    """
    return _rasterize(projected, settings, probe, absgrad=True)


def _rasterize(
    projected: Projected, settings: RasterSettings, probe: Tensor | None, *, absgrad: bool
) -> Raster:
    p = projected
    inputs = (p.means2d, p.conics, p.depths, p.opacities, p.colors, probe)
    followed = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in inputs)
    if not followed and has_kernel("raster_picture", p.means2d.device.type):
        return _picture(p, settings)
    return Raster(*_Rasterize.apply(*inputs, p.radii, settings, absgrad, None))  # type: ignore[misc]


def _picture(p: Projected, settings: RasterSettings) -> Raster:
    """Composite on a GPU, without what only the way back would need."""
    lists = _lists(p, settings, settings.room)
    background = settings.background.to(p.means2d).contiguous()
    rgb, alpha, depth_sum = _native().raster_picture(
        *lists, background, settings.width, settings.height, settings.max_alpha
    )
    return Raster(rgb, alpha, depth_sum, lists[2][-1:].clone())


def _lists(p: Projected, settings: RasterSettings, room: int | None = None) -> tuple[Tensor, ...]:
    """Return splats, order, splat_starts, tile_starts, instances, slots of what was projected."""
    rows = [part.contiguous() for part in (p.means2d, p.conics, p.depths, p.opacities, p.colors, p.radii)]
    if room is None:
        return _native().bin(*rows, settings.width, settings.height, num_threads())
    return _native().bin_within(*rows, settings.width, settings.height, room)


class _Rasterize(torch.autograd.Function):
    @staticmethod
    def forward(  # noqa: PLR0913
        ctx, means2d, conics, depths, opacities, colors, probe, radii, settings, absgrad, projected
    ):
        ctx.set_materialize_grads(False)
        # The other tensors but stand in for what is `projected`.
        p = projected or Projected(means2d, conics, depths, opacities, colors, radii)
        lists = _lists(p, settings, settings.room)
        background = settings.background.to(means2d).contiguous()
        rgb, alpha, depth_sum, masks, tile_ends = _native().raster_fwd(
            *lists, background, settings.width, settings.height, settings.max_alpha, num_threads()
        )
        ctx.once = None
        if projected is not None and has_kernel("raster_slab", means2d.device.type):
            # What the first half of the way back needs alone, with nobody else to hold it.
            ctx.once = (*lists[3:], masks, tile_ends)
            ctx.save_for_backward(*lists[:3], rgb, alpha, depth_sum)
        else:
            ctx.save_for_backward(*lists, masks, tile_ends, rgb, alpha, depth_sum)
        ctx.num_gaussians, ctx.max_alpha, ctx.absgrad = len(means2d), settings.max_alpha, absgrad
        splat_starts = lists[2]
        num_instances = splat_starts[-1:].clone()
        ctx.mark_non_differentiable(num_instances)
        return rgb, alpha, depth_sum, num_instances

    @staticmethod
    @once_differentiable
    def backward(ctx, *v_outputs):
        v = [None if gradient is None else gradient.contiguous() for gradient in v_outputs[:3]]
        with_probe, native = ctx.needs_input_grad[5], _native()
        if ctx.once is None:
            options = (ctx.num_gaussians, ctx.max_alpha, ctx.absgrad, with_probe, num_threads())
            *gradients, v_probe = native.raster_bwd(*ctx.saved_tensors, *v, *options)
        else:  # the gradients take the place of a GPU's checkpoints and lists
            by_depth, pictures = ctx.saved_tensors[:3], ctx.saved_tensors[3:]
            slab = native.raster_slab(*by_depth, *ctx.once, *pictures, *v, ctx.max_alpha, ctx.absgrad)
            ctx.once = None
            gathered = (*by_depth, slab, ctx.num_gaussians, ctx.absgrad, with_probe)
            *gradients, v_probe = native.gather_slab(*gathered)
        return (*gradients, v_probe if with_probe else None, None, None, None, None)


def ssim(image: Tensor, target: Tensor, *, padding: Literal["same", "valid"]) -> Tensor:
    """Return the mean structural similarity of two images [H, W, C] of range 0..1, a scalar.

    The window is an 11 x 11 Gaussian of sigma 1.5 (Wang et al. 2004); "same" pads with zeros, "valid" leaves
    out the 5-pixel border. The gradient goes to `image` only.
    Raises ValueError when "valid" leaves nothing of the image, RuntimeError when the kernels have not been
    built.
    """
    if padding == "valid":
        _check_window_fits(image)
    return 1.0 - _ImageLoss.apply(image, target, None, 0.0, 1.0, padding == "same")  # type: ignore[operator]


def l1_ssim(image: Tensor, target: Tensor, *, ssim_weight: float, mask: Tensor | None = None) -> Tensor:
    """Return (1 - w) * mean|image - target| + w * (1 - valid SSIM) of images [H, W, C], a scalar.

    `mask` [H, W] bool: only its pixels count, in both means; elsewhere the image is taken to equal the
    target, so that what lies outside has no influence and gets no gradient. An empty mask gives 0.
    Raises ValueError when a side is below 11 pixels and the SSIM has a weight, RuntimeError when the kernels
    have not been built.
    """
    if ssim_weight > 0:
        _check_window_fits(image)
    return _ImageLoss.apply(image, target, mask, 1.0 - ssim_weight, ssim_weight, False)  # type: ignore[return-value]


def _check_window_fits(image: Tensor) -> None:
    height, width = image.shape[:2]
    if min(height, width) < SSIM_WINDOW:
        raise ValueError(
            f"an image of {width} x {height} pixels is too small for SSIM: a side needs {SSIM_WINDOW} or more"
        )


class _ImageLoss(torch.autograd.Function):
    """Return l1_weight * mean|image - target| + ssim_weight * mean(1 - SSIM).

    The gradient is made together with the value.
    """

    @staticmethod
    def forward(ctx, image, target, mask, l1_weight, ssim_weight, same_padding):
        value, gradient = _native().image_loss(
            image.contiguous(),
            target.contiguous(),
            None if mask is None else mask.contiguous(),
            l1_weight,
            ssim_weight,
            same_padding,
            ctx.needs_input_grad[0],
            num_threads(),
        )
        ctx.save_for_backward(gradient)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx, v_value):
        (gradient,) = ctx.saved_tensors
        if not _is_one(v_value):
            gradient = gradient * v_value
        return gradient, None, None, None, None, None


def beginning(loss: Tensor) -> Tensor | None:
    """Return the 1 from which the way back from `loss` begins; None: torch's own, whose value can be seen.

    Of one that is given torch compares the shape, for which it loads sympy, a third of a second.
    """
    return None if loss.device.type == "cpu" or loss.dtype != torch.float32 else _one(loss.device)


def _is_one(value: Tensor) -> bool:
    """Return whether a gradient is known to be 1; a GPU is not waited for."""
    # Not by `item`, which stands for a wait where the kernels of a GPU are tried on the CPU.
    return float(value.numpy()) == 1.0 if value.device.type == "cpu" else value is _one(value.device)


@functools.cache
def _one(device: torch.device) -> Tensor:
    """Return the float32 1 of a device, always the same: who meets it need not multiply."""
    return torch.ones((), device=device)


@torch.no_grad()
def adam_step(  # noqa: PLR0913 - torch's own names, the tensors apart from the numbers
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
) -> None:
    """Make one step of Adam in place, as torch.optim.Adam without weight decay does.

    All tensors have one shape and are contiguous; `step` counts from 1 (Kingma and Ba 2015).
    Raises RuntimeError when the kernels have not been built.
    """
    rates = [lr, beta1, beta2, eps]
    _native().adam_step(param, grad.contiguous(), exp_avg, exp_avg_sq, rates, step, num_threads())


@torch.no_grad()
def splat_shapes(means: Tensor, quats: Tensor, scales: Tensor, radii: Tensor, *, camera: Camera) -> Shapes:
    """Return how Gaussians lie in a view: `scales` [N, 3] logarithms, `radii` [N, 2] as projected.

    Raises RuntimeError when the kernels have not been built.
    """
    view, options = camera_numbers(camera, ProjectSettings(sh_degree=0), raw=True)
    rows = [tensor.contiguous() for tensor in (means, quats, scales, radii)]
    return Shapes(*_native().splat_shapes(*rows, view, options, num_threads()))


@torch.no_grad()
def rasterize_median(projected: Projected, settings: RasterSettings) -> MedianRaster:
    """Return the median depth and the number of splats of every pixel, by the rules of `rasterize`.

    Raises RuntimeError when the kernels have not been built.
    """
    size = (settings.width, settings.height)
    lists = _lists(projected, settings)
    return MedianRaster(*_native().raster_median(*lists, *size, settings.max_alpha, num_threads()))


@torch.no_grad()
def rasterize_solid(projected: Projected, surfaces: Tensor, settings: RasterSettings) -> SolidRaster:
    """Draw each Gaussian as a solid ellipsoid, the nearest surface of each pixel in front.

    An ellipsoid ends where opacity * exp(-sigma) is 1/255: the opacity says how large it is, not how opaque.
    `surfaces` [N, 4] of `splat_shapes`; zeros draw flat discs. Raises RuntimeError when the kernels have not
    been built.
    """
    background = settings.background.to(projected.means2d).contiguous()
    extra = (surfaces.contiguous(), background, settings.width, settings.height, num_threads())
    return SolidRaster(*_native().raster_solid(*_lists(projected, settings), *extra))


@torch.no_grad()
def to_uint8(image: Tensor) -> Tensor:
    """Return `image` [...] of range 0..1 as bytes, clamped and rounded, halves to even; NaN gives 0.

    Raises RuntimeError when the kernels have not been built.
    """
    return _native().to_uint8(image.contiguous(), num_threads())
