"""What each Gaussian contributes to some photographs, and to what is wrong in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from splatstudio.optimization.contributions import contributions
from splatstudio.optimization.gradients import TrainView
from splatstudio.rendering.render import RenderOptions
from splatstudio.scene.scene import Scene
from splatstudio.strategy import Population
from splatstudio.strategy.chance import generator_of


def views_of_step(scene: Scene, seed: int, step: int, num: int | None) -> list[int]:
    """Return `num` of the views to train on, drawn for the step, the same on all ranks.

    All, where there are fewer or `num` is None.
    """
    order = torch.randperm(len(scene.train_indices), generator=generator_of(seed, step))
    return [scene.train_indices[i] for i in order[:num].tolist()]


ShownOf = Callable[[TrainView, Tensor, Tensor], Tensor]


def as_drawn(view: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
    """Return the picture of a view as it is: of a training that learns nothing besides the Gaussians."""
    return rgb


def survey(
    population: Population,
    scene: Scene,
    views: Sequence[int],
    view_of: Callable[[int], TrainView],
    options: RenderOptions,
    error_ratio: float,
    *,
    shown: ShownOf = as_drawn,
) -> Iterator[Tensor]:
    """Yield for each of `views` the sums of this rank's Gaussians' weights over its pixels, [N, 3].

    The columns are the sums over the pixels of high error, over all pixels times their error, and over all
    pixels, all in pixels of the photograph, also where a smaller one is drawn. An error is the mean absolute
    difference of the three channels, and high above `error_ratio` times the picture's mean; outside of a mask
    there is none. `shown` makes of a picture [H, W, 3] and its alpha [H, W] what the photograph is compared
    with. The ranks draw a view each at a time; all must call this together, and take all of it before the
    population changes.
    """

    def maps_of(view: TrainView, rgb: Tensor, alpha: Tensor) -> Tensor:
        error = (shown(view, rgb, alpha) - view.target).abs().mean(dim=-1)
        counted, mean = torch.ones_like(error), error.mean()
        if view.mask is not None:
            counted = view.mask.to(error)
            error = error * counted
            mean = error.sum() / counted.sum().clamp_min(1.0)
        high = (error > error_ratio * mean).to(error)
        full = scene.views[view.index].camera
        pixels = full.width * full.height / error.numel()
        return pixels * torch.stack([high, error, counted], dim=-1)

    ranks = population.ranks
    population.optimizer.flush_lazy_rows(population.gaussians)
    for first in range(0, len(views), ranks.num_ranks):
        drawn = views[first : first + ranks.num_ranks]
        train_views = [view_of(index) for index in drawn[ranks.rank : ranks.rank + 1]]
        yield from contributions(ranks, population.gaussians, train_views, options, maps_of)
