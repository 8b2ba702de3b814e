"""Ranks of the tests that draw frames together; functions of a module, as other processes run them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sharded_tasks import camera_of, model, shard_of
from shortage_tasks import no_memory, replaced
from torch import Tensor

from splatstudio.distributed.failures import OutOfMemory
from splatstudio.distributed.ranks import Ranks
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.runtime import shared_views
from splatstudio.runtime.messages import ViewOptions, ViewRequest
from splatstudio.runtime.shared_views import SharedViews, seen_by_rank
from splatstudio.runtime.view_renderer import asked_for
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

OPTIONS = RenderOptions(background=(0.1, 0.2, 0.3), antialiased=True)


def draw_seen(
    ranks: Ranks, sizes: tuple[int, ...], views: tuple[int, ...], wanted: ViewOptions
) -> Tensor | None:
    """Return the picture of this rank's view, None where there are fewer views than ranks."""
    looks = [ViewRequest(camera_of(view), wanted) for view in views]
    seen = seen_by_rank(ranks, shard_of(model(sum(sizes)), sizes, ranks.rank), looks, OPTIONS)
    if ranks.rank >= len(looks):
        assert len(seen) == 0
        return None
    return render(seen, looks[ranks.rank].camera, asked_for(OPTIONS, wanted)).rgb


def draw_short(ranks: Ranks, folder: Path, failing: int) -> list[tuple[tuple[int, ...], list[np.ndarray]]]:
    """Draw two pictures of a copy three times between steps; a rank has no memory the first time.

    Return who is told of and the pictures, each time, and last those of a new copy.
    """
    scene = load_scene(folder)
    trainer = Trainer(scene, TrainConfig(), ranks=ranks)
    share = SharedViews(trainer, ranks, lambda _: None)
    share.keep(7)
    camera = scene.views[0].camera
    looks, drawn = [ViewRequest(camera, share.own_options(7))] * 2, []
    for number in range(3):
        function = no_memory if (number, ranks.rank) == (0, failing) else shared_views.seen_rows
        with replaced(shared_views, "seen_rows", function):
            try:
                drawn.append(((), share.draw(7, looks)))
            except OutOfMemory as error:
                drawn.append((error.ranks, []))
        trainer.train_step()
    share.keep(8)
    drawn.append(((), share.draw(8, looks)))
    share.drop(7)
    share.drop(8)
    trainer.close()
    return drawn
