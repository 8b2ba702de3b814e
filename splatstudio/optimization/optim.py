"""The optimizer: Adam with a learning rate for each of the six tensors, whose rows follow the Gaussians."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TypedDict

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians, opacities_of, with_rows
from splatstudio.kernels.ops_training import (
    NO_REGULARIZATION,
    AdamStep,
    LazyRows,
    Regularization,
    StepGate,
    ViewRows,
    adam_step_within,
    flush_lazy_adam,
    project_adam,
    project_adam_views,
    project_lazy,
)
from splatstudio.kernels.stages import Projected, ProjectSettings
from splatstudio.rendering.render import stages_for
from splatstudio.settings.config import OptimConfig

BETA1, BETA2 = 0.9, 0.999
NUM_MOMENTS = 12  # tensors: two for each of the six
USUAL_STEPS = 30_000  # of a training by Kerbl et al. 2023
EPS = 1e-15  # far below torch's default: gradients of single Gaussians are often smaller than 1e-8


def learning_rates(config: OptimConfig, *, extent: float, step: int, steps: int) -> dict[str, float]:
    """Return the learning rate of each tensor of `Gaussians`, by name.

    `step` is the number of steps done before, `steps` the length of the training, `extent` the scene's
    radius in scene units. The rate of the means falls exponentially, to `means_lr_decay` of the first at
    the end (Kerbl et al. 2023, section 7.1, with the figures of gsplat's `default` preset), those of the
    others likewise to `rest_lr_decay`. The figures are of USUAL_STEPS: with
    `lr_scale_short_runs` all are larger in a shorter training, so that tensors get as far in fewer steps.
    """
    progress = min(step / max(steps, 1), 1.0)
    haste = max(USUAL_STEPS / max(steps, 1), 1.0) ** config.lr_scale_short_runs
    rest = haste * config.rest_lr_decay**progress
    return {
        "means": config.means_lr * extent * haste * config.means_lr_decay**progress,
        "quats": config.quats_lr * rest,
        "scales": config.scales_lr * rest,
        "opacities": config.opacities_lr * rest,
        "sh0": config.sh0_lr * rest,
        "shN": config.shN_lr * rest,
    }


class AdamNumbers(TypedDict):
    """What `adam_step` takes besides the tensors."""

    lr: float
    beta1: float
    beta2: float
    eps: float
    step: int


class SplatAdam:
    """Adam (Kingma and Ba 2015) over the six tensors; the moments have the shapes of the model.

    `exp_avg` and `exp_avg_sq` hold the running means of the gradient and of its square; `num_steps` is the
    number of updates made, common to all rows: a newborn Gaussian starts with zero moments and the bias
    correction of its elders, as in gsplat.
    """

    def __init__(self, exp_avg: Gaussians, exp_avg_sq: Gaussians, num_steps: int = 0) -> None:
        assert len(exp_avg) == len(exp_avg_sq), "both moments need a row for each Gaussian"
        self.exp_avg = exp_avg
        self.exp_avg_sq = exp_avg_sq
        self.num_steps = num_steps
        self._late = LazyRows(0, 0, exp_avg.device)
        self._late_before = 0  # steps that were late before the last one
        self._used_columns: int | None = None  # of shN: the others have neither gradients nor moments

    @classmethod
    def zeros(cls, gaussians: Gaussians) -> SplatAdam:
        """Return the optimizer before the first step."""
        return cls(gaussians.map(_zeros), gaussians.map(_zeros))

    def step(
        self,
        gaussians: Gaussians,
        gradients: dict[str, Tensor | None],
        rates: dict[str, float],
        visible: Tensor | None = None,
        regularization: Regularization = NO_REGULARIZATION,
        *,
        batch_size: int = 1,
        gate: StepGate | None = None,
    ) -> None:
        """Update `gaussians` in place, from `gradients` and those of `regularization`.

        A tensor whose gradient is None (SH bands not in use yet) stays as it is, and so do its moments; with
        `visible` [N] bool also the rows outside it. `batch_size` is of how many pictures the gradients are
        the sum: rates are multiplied by its square root, moments decay as in so many steps, and epsilon is
        divided by its square root. (The scaling of gsplat but for the decay, which is 1 - B (1 - beta) there
        and negative beyond a batch of 10.) `gate`: see `step_projected`.
        """
        assert len(gaussians) == len(self.exp_avg), "the moments belong to another number of Gaussians"
        self.flush_lazy_rows(gaussians)
        self._used_columns = None
        self.num_steps += 1
        adam = _adam_of_batch(rates, batch_size, self.num_steps)
        gradients = _regularized(gradients, gaussians, regularization)
        exp_avg, exp_avg_sq = self.exp_avg.tensors(), self.exp_avg_sq.tensors()
        for name, param in gaussians.detach().tensors().items():
            gradient = gradients[name]
            if gradient is None or param.numel() == 0:
                continue
            tensors = (param, gradient, exp_avg[name], exp_avg_sq[name])
            numbers: AdamNumbers = {
                "lr": adam.rates[name],
                "beta1": adam.beta1,
                "beta2": adam.beta2,
                "eps": adam.eps,
                "step": adam.number,
            }
            if gate is not None:
                adam_step_within(*tensors, **numbers, visible=visible, gate=gate)
                continue
            moving = tensors if visible is None else tuple(tensor[visible] for tensor in tensors)
            stages_for(param).adam_step(*(tensor.contiguous() for tensor in moving), **numbers)
            if visible is not None:
                for tensor, moved in zip(tensors, moving, strict=True):
                    tensor[visible] = moved

    def project(self, gaussians: Gaussians, *, camera: Camera, settings: ProjectSettings) -> Projected:
        """Project `gaussians` as `ops.project_raw` does, for `step_projected`.

        What is visible is up to date with all steps made.
        """
        moments = (self.exp_avg.shN, self.exp_avg_sq.shN)
        betas = [BETA1, BETA2, EPS]
        return project_lazy(
            gaussians, *moments, camera=camera, settings=settings, late=self._late, betas=betas
        )

    def step_projected(  # noqa: PLR0913 - what a step is made of
        self,
        gaussians: Gaussians,
        projected: Projected,
        v_projected: tuple[Tensor, ...],
        *,
        camera: Camera,
        settings: ProjectSettings,
        rates: dict[str, float],
        visible_only: bool = False,
        regularization: Regularization = NO_REGULARIZATION,
        gate: StepGate | None = None,
    ) -> None:
        """Update `gaussians` in place from the gradients of what `project` returned and of `regularization`.

        `v_projected`: of means2d, conics, depths, opacities, colors. The same as `step` to the last bits (but
        for those of `regularization`), except that the coefficients of Gaussians out of sight are left behind
        until `flush_lazy_rows`. `visible_only`: these stay as they are. A step that its `gate` has kept from
        changing anything is counted all the same, until `uncount`.
        """
        assert len(gaussians) == len(self.exp_avg), "the moments belong to another number of Gaussians"
        self.num_steps += 1
        used_columns = self._columns_in_use(settings.sh_degree)
        size = (len(gaussians), used_columns)
        if self._late.full(*size) or (visible_only and self._late.num_steps > 0):
            self.flush_lazy_rows(gaussians)
            self._late = LazyRows(*size, gaussians.device)
        self._late_before = self._late.num_steps
        project_adam(
            gaussians,
            self.exp_avg,
            self.exp_avg_sq,
            projected,
            v_projected,
            camera=camera,
            settings=settings,
            adam=AdamStep(rates, BETA1, BETA2, EPS, self.num_steps),
            late=self._late,
            regularization=regularization,
            visible_only=visible_only,
            gate=gate,
        )

    def step_views(
        self,
        gaussians: Gaussians,
        runs: Iterable[tuple[slice, Sequence[ViewRows]]],
        rates: dict[str, float],
        *,
        settings: ProjectSettings,
        visible_only: bool = False,
        regularization: Regularization = NO_REGULARIZATION,
    ) -> None:
        """Update `gaussians` in place from what all pictures of a step give, and `regularization`.

        `runs` are one after the other rows of the Gaussians, all of them together, and what each picture
        gives of those. The same as `step` on the sum of the gradients, to the last bit but for that of
        `regularization`.
        """
        assert len(gaussians) == len(self.exp_avg), "the moments belong to another number of Gaussians"
        self.flush_lazy_rows(gaussians)
        self.num_steps += 1
        used_columns, model = self._columns_in_use(settings.sh_degree), gaussians.detach()
        for rows, views in runs:
            moving = model[rows]
            # Of a mean over all Gaussians those of a run have their part.
            share = len(moving) / max(len(model), 1)
            project_adam_views(
                moving,
                self.exp_avg[rows],
                self.exp_avg_sq[rows],
                views,
                settings=settings,
                adam=_adam_of_batch(rates, len(views), self.num_steps),
                regularization=Regularization(regularization.opacity * share, regularization.scale * share),
                used_columns=used_columns,
                visible_only=visible_only,
            )

    def uncount(self) -> None:
        """Forget the last step, which its gate has kept from changing anything."""
        self.num_steps -= 1
        self._late.forget_last_step(self._late_before)

    def flush_lazy_rows(self, gaussians: Gaussians) -> None:
        """Let the rows of shN that `step_projected` left behind make their steps, to the same bits.

        Needed before `gaussians` or the moments are read, copied or rearranged.
        """
        moments = (self.exp_avg.shN, self.exp_avg_sq.shN)
        flush_lazy_adam(gaussians.shN, *moments, self._late, [BETA1, BETA2, EPS])

    def _columns_in_use(self, sh_degree: int) -> int:
        """Return how many floats of a row of shN have moments or, at `sh_degree`, gradients."""
        if self._used_columns is None:
            self._used_columns = _used_columns(self.exp_avg.shN, self.exp_avg_sq.shN)
        self._used_columns = max(self._used_columns, 3 * ((sh_degree + 1) ** 2 - 1))
        return self._used_columns

    def edit(self, rows: Tensor, num_newborn: int) -> None:
        """Keep the moments of `rows` (indices) alone, in that order, and add `num_newborn` rows of zeros."""
        self.replace(lambda tensor: with_zero_rows(tensor, rows, num_newborn))

    def replace(self, change: Callable[[Tensor], Tensor], which: Iterable[int] = range(NUM_MOMENTS)) -> None:
        """Put what `change` makes of each of the moments in its place: those of `which`, one after the other.

        So but one of them is in memory twice. Where `change` raises, those before are replaced and it is
        raised on.
        """
        names = list(self.exp_avg.tensors())
        tensors = [*self.exp_avg.tensors().values(), *self.exp_avg_sq.tensors().values()]
        del self.exp_avg, self.exp_avg_sq  # so that each tensor can go when its successor is there
        try:
            for number in which:
                tensors[number] = change(tensors[number])
        finally:
            half = len(names)
            self.exp_avg = Gaussians(**dict(zip(names, tensors[:half], strict=True)))
            self.exp_avg_sq = Gaussians(**dict(zip(names, tensors[half:], strict=True)))

    def forget(self, name: str) -> None:
        """Zero both moments of the tensor `name`."""
        self.exp_avg.tensors()[name].zero_()
        self.exp_avg_sq.tensors()[name].zero_()


def _adam_of_batch(rates: dict[str, float], batch_size: int, number: int) -> AdamStep:
    """Return the step `number` on the sum of so many pictures' gradients, see `SplatAdam.step`."""
    growth = math.sqrt(batch_size)
    grown = {name: rate * growth for name, rate in rates.items()}
    return AdamStep(grown, BETA1**batch_size, BETA2**batch_size, EPS / growth, number)


@torch.no_grad()
def _regularized(
    gradients: dict[str, Tensor | None], gaussians: Gaussians, regularization: Regularization
) -> dict[str, Tensor | None]:
    """Return `gradients` with those of `regularization`; where that is 0 they are the same."""
    more: dict[str, Tensor] = {}
    if regularization.opacity != 0:
        opacities = opacities_of(gaussians.opacities)
        more["opacities"] = opacities * (1.0 - opacities) * (regularization.opacity / opacities.numel())
    if regularization.scale != 0:
        more["scales"] = gaussians.scales.exp() * (regularization.scale / gaussians.scales.numel())
    regularized = dict(gradients)
    for name, gradient in more.items():
        own = gradients[name]
        regularized[name] = gradient if own is None else own + gradient
    return regularized


def _used_columns(*moments: Tensor) -> int:
    """Return how many floats of a row lie before the last column that is not zero everywhere."""
    num = moments[0][0].numel() if len(moments[0]) else 0
    used = torch.zeros(num, dtype=torch.bool, device=moments[0].device)
    for moment in moments:
        for rows in moment.flatten(1).split(1 << 16) if moment.numel() else ():
            used |= (rows != 0).any(dim=0)
    columns = used.nonzero()
    return int(columns[-1]) + 1 if len(columns) else 0


def with_zero_rows(tensor: Tensor, rows: Tensor, num: int) -> Tensor:
    """Return `tensor[rows]` (indices) with `num` rows of zeros behind."""
    return with_rows(tensor, rows, tensor.new_zeros(()).expand(num, *tensor.shape[1:]))


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor, requires_grad=False, memory_format=torch.contiguous_format)
