"""The evaluation of a model that lies on several ranks: each draws its share of the test photographs."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import torch
from torch import Tensor

from splatstudio.distributed import Ranks
from splatstudio.distributed.failures import OutOfMemory, together, unless_out_of_memory
from splatstudio.evaluation.evaluate import (
    PSNR_AND_SSIM,
    Evaluation,
    ImageScore,
    Measures,
    evaluate,
    now,
    score_of,
    summary,
    target_for,
)
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.rendering.render import RenderOptions
from splatstudio.rendering.sharded_view import Received, drawn, received_for
from splatstudio.scene.scene import Scene

_WELL, _SHORT, _BROKEN_OFF = 0, 1, 2  # how a rank's part of a round ended


class AbandonedElsewhere(Exception):
    """An evaluation of several ranks was broken off by another rank, which has the reason."""


@torch.no_grad()
def evaluate_together(
    ranks: Ranks,
    gaussians: Gaussians,
    scene: Scene,
    *,
    options: RenderOptions = RenderOptions(),
    measures: Measures = PSNR_AND_SSIM,
    on_image: Callable[[ImageScore, Tensor], None] | None = None,
) -> Evaluation:
    """Evaluate the model whose rows all ranks have, as `evaluate` does the whole; all get the result.

    Called by all ranks, each with its own rows; everything else is the same on all but `on_image`, which gets
    the pictures that this rank drew. When it raises, the others raise AbandonedElsewhere. Raises ValueError
    when there is nothing to compare with, and OutOfMemory on all ranks alike where any has no memory for it.
    """
    if ranks.num_ranks == 1:
        return together(
            ranks,
            lambda: evaluate(gaussians, scene, options=options, measures=measures, on_image=on_image),
        )
    measures = measures.to(gaussians.device)
    indices, num = scene.test_indices, ranks.num_ranks
    scores: list[ImageScore] = []
    seconds = [0.0]  # of rendering, by round

    def compared(own: Sequence[int], received: Received, started: float) -> ImageScore | None:
        if not own:
            return None
        (picture,) = drawn(gaussians, received, [scene.views[own[0]].camera], options)
        seconds.append(now(gaussians.device) - started)
        score = _score(scene, own[0], picture.rgb, options, measures)
        if score is not None and on_image is not None:
            on_image(score, picture.rgb)
        return score

    for start in range(0, len(indices), num):
        own = indices[start + ranks.rank :][:1]  # none where they run out
        started = now(gaussians.device)
        received = received_for(ranks, gaussians, [scene.views[index].camera for index in own], options)
        score = _unless_broken_off(ranks, partial(compared, own, received, started))
        scores += _of_all(ranks, score)
    num_gaussians = int(ranks.all_reduce(torch.tensor([len(gaussians)], device="cpu")))
    return summary(scores, scene, num_gaussians=num_gaussians, seconds=sum(seconds), notes=measures.notes)


def _unless_broken_off(ranks: Ranks, compared: Callable[[], ImageScore | None]) -> ImageScore | None:
    """Return what `compared` returns where it does so on all ranks; else all of them raise."""
    result, endings = None, torch.zeros(ranks.num_ranks, dtype=torch.int64, device="cpu")
    endings[ranks.rank] = _BROKEN_OFF
    try:
        result = unless_out_of_memory(lambda: (compared(),))
        endings[ranks.rank] = _SHORT if result is None else _WELL
    finally:  # also on the way out of an error: the others wait for this word
        endings = ranks.all_reduce(endings)
    short = (endings == _SHORT).nonzero().squeeze(1).tolist()
    if short:
        raise OutOfMemory(short)
    if result is None or endings.any():
        raise AbandonedElsewhere("another rank broke the evaluation off")
    return result[0]


def _score(
    scene: Scene, index: int, rgb: Tensor, options: RenderOptions, measures: Measures
) -> ImageScore | None:
    """Return the scores of a render; None for a photograph that is masked altogether."""
    target, mask = target_for(scene.photo(index), scene.views[index].camera, options, rgb.device)
    if mask is not None and not mask.any():
        return None
    return score_of(scene.views[index].name, rgb, target, mask, measures)


def _of_all(ranks: Ranks, score: ImageScore | None) -> Sequence[ImageScore]:
    """Return the scores that the ranks have, rank 0's first."""
    message = b"" if score is None else json.dumps(asdict(score)).encode()
    return [ImageScore(**json.loads(text)) for text in ranks.all_gather_bytes(message) if text]
