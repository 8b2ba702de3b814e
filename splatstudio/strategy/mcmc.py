"""A given number of Gaussians that wander to where they are needed (Kheradmand et al. 2024, 3DGS as MCMC)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from splatstudio.config import TrainConfig
from splatstudio.gaussians import Gaussians
from splatstudio.optim import learning_rates
from splatstudio.reference import rotation_matrices
from splatstudio.strategy import Change, Observation
from splatstudio.strategy.chance import drawn, share_out
from splatstudio.strategy.population import Population, edit

MOST_COPIES = 51  # a Gaussian is parted into as many at most; beyond, the sum below would lose its digits
# The noise falls with the opacity by a logistic curve, which is a half at `min_opacity`.
NOISE_STEEPNESS = 100.0
NOISE_RANGE = (
    0.095  # above `min_opacity` by this much, less than a ten thousandth of it is left: none is made
)
PIXELS_PER_GAUSSIAN = 50  # of the training's photographs, where no number of Gaussians is given


class McmcStrategy:
    """Move the dead to the living, add as many as are missing, and let positions tremble.

    `extent` is the scene's radius in scene units, `num_pixels` the number of pixels of the photographs to
    train on. It keeps no counts: what is drawn at random follows from the seed, the step and the rank. The
    method needs the weights of mean opacity and mean scale, see `ShapeConfig`.
    """

    absgrad = False

    def __init__(self, config: TrainConfig, *, extent: float, num_pixels: int) -> None:
        self.config = config
        self.extent = extent
        self.num_pixels = num_pixels

    def follow(self, config: TrainConfig) -> None:
        """Take the settings of a training, which may have changed since the last step."""
        self.config = config

    @property
    def start_step(self) -> int:
        """Return the step after which Gaussians move and are added, earlier in a short training."""
        return min(self.config.mcmc.start_step, self.config.steps // 6)

    @property
    def stop_step(self) -> int:
        """Return the step from which none moves or is added any more."""
        return min(self.config.mcmc.stop_step, self.config.steps * 5 // 6)

    @property
    def cap(self) -> int:
        """Return how many Gaussians there shall be, over all ranks."""
        chosen = self.config.mcmc.max_gaussians or max(self.num_pixels // PIXELS_PER_GAUSSIAN, 1)
        return min(chosen, self.config.densify.max_gaussians)

    def new_counts(self, gaussians: Gaussians) -> dict[str, Tensor]:
        """Return the state before the first step: none."""
        return {}

    def observes(self, step: int) -> bool:
        """Return whether `after_step` wants to know what the step after `step` others shows: never."""
        return False

    @torch.no_grad()
    def after_step(self, population: Population, seen: tuple[Observation, ...], step: int) -> Change | None:
        """Move and add Gaussians where that is due, and let the faint ones tremble."""
        mcmc = self.config.mcmc
        if not self.config.densify.enabled:
            return None
        generator = population.ranks.generator(self.config.seed, step)
        change = None
        if self.start_step < step < self.stop_step and step % mcmc.every == 0:
            change = self._redistribute(population, step, generator)
        rates = learning_rates(self.config.optim, extent=self.extent, step=step, steps=self.config.steps)
        tremble(population.gaussians, mcmc.noise * rates["means"], mcmc.min_opacity, generator)
        return change

    def _redistribute(self, population: Population, step: int, generator: torch.Generator) -> Change:
        ranks = population.ranks
        population.optimizer.settle(population.gaussians)
        gaussians = population.gaussians.detach()
        opacities = torch.sigmoid(gaussians.opacities)
        alive = (opacities > self.config.mcmc.min_opacity) & gaussians.finite_rows()
        masses = torch.where(alive, opacities, torch.zeros_like(opacities))
        numbers = [[len(gaussians), int(alive.sum()), float(masses.sum())]]
        known = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        table = torch.cat(ranks.gather(known))
        num, num_alive = int(table[:, 0].sum()), int(table[:, 1].sum())
        num_born = self._wanted(num, step) - num_alive
        shares = share_out(num_born, table[:, 2].tolist())
        parents = drawn(masses, shares[ranks.rank], generator) if shares[ranks.rank] else None
        if parents is None:
            parents = torch.zeros(0, dtype=torch.int64, device=masses.device)
        part(population, parents, self.config.mcmc.min_opacity)
        edit(population, keep=alive, newborn=population.gaussians.detach()[parents], parents=parents)
        moved = min(num - num_alive, num_born)
        return Change(cloned=num_born - moved, relocated=moved, pruned=num - num_alive - moved)

    def _wanted(self, num: int, step: int) -> int:
        """Return how many Gaussians there shall be after this step: as many times more each time.

        The factor is such that all are there by the middle of the steps between start and stop at the latest.
        """
        every = self.config.mcmc.every
        half = (self.start_step + self.stop_step) // 2
        times = max((half - step) // every + 1, 1)
        factor = max(self.config.mcmc.grow_factor, (self.cap / num) ** (1.0 / times))
        return max(num, min(self.cap, math.ceil(num * factor)))


@torch.no_grad()
def part(population: Population, parents: Tensor, min_opacity: float) -> None:
    """Make each row of `parents` [M] int64 one of as many equal parts as it is named there, and one more.

    Together the parts look as the whole did: opacity and size follow Kheradmand et al. 2024, equation 9. What
    Adam knows of them is forgotten. In place; the copies themselves are made by who calls.
    """
    gaussians, optimizer = population.gaussians.detach(), population.optimizer
    rows, times = torch.unique(parents, return_counts=True)
    opacity, factor = parted(torch.sigmoid(gaussians.opacities[rows]), times + 1)
    opacity = opacity.clamp(min_opacity, 1.0 - 1e-6)
    gaussians.opacities[rows] = torch.logit(opacity).to(gaussians.opacities)
    gaussians.scales[rows] += factor.log().to(gaussians.scales)[:, None]
    for moments in (optimizer.exp_avg, optimizer.exp_avg_sq):
        for tensor in moments.tensors().values():
            tensor[rows] = 0.0


def parted(opacities: Tensor, copies: Tensor) -> tuple[Tensor, Tensor]:
    """Return the opacity of each of `copies` [M] int64 equal parts, and by what to multiply their size.

    `opacities` [M] in 0..1 are of the whole. float64: the sum's terms are large and of changing sign.
    """
    copies = copies.clamp_max(MOST_COPIES).double()
    whole = opacities.double()
    each = 1.0 - (1.0 - whole) ** (1.0 / copies)
    total, term = torch.zeros_like(each), -torch.ones_like(each)
    for k in range(int(copies.max()) if len(copies) else 0):
        # Times C(n, k + 1) / C(n, k), and 0 from k = n on.
        term = -term * each * (copies - k) / (k + 1)
        total += term / math.sqrt(k + 1)
    return each, whole / total


@torch.no_grad()
def tremble(gaussians: Gaussians, amount: float, min_opacity: float, generator: torch.Generator) -> None:
    """Move positions at random, in place, the fainter a Gaussian the more, along its own axes.

    The offsets are `amount` times the covariance times normal noise, times a logistic curve of the opacity
    that is a half at `min_opacity`.
    """
    if not amount > 0:
        return
    gaussians = gaussians.detach()
    opacities = torch.sigmoid(gaussians.opacities)
    rows = (opacities < min_opacity + NOISE_RANGE).nonzero().squeeze(1)
    noise = torch.randn((len(rows), 3), generator=generator).to(gaussians.means)
    axes = rotation_matrices(gaussians.quats[rows])
    along = (axes.transpose(1, 2) @ noise[..., None]) * (2.0 * gaussians.scales[rows]).exp()[..., None]
    share = torch.sigmoid(NOISE_STEEPNESS * (min_opacity - opacities[rows]))
    gaussians.means.index_add_(0, rows, (axes @ along).squeeze(-1) * (amount * share)[:, None])
