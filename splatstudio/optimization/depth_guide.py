"""The depths of the sparse points as a guide: where one is shown, the model should be as far away."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.devices.transfer import to_device
from splatstudio.optimization.gradients import RenderOutput, TrainView
from splatstudio.scene.scene import Scene
from splatstudio.scene.tracks import visible_points
from splatstudio.settings.config import DepthConfig, TrainConfig

MIN_ALPHA = 0.5  # where less is drawn there is no surface yet whose depth could be judged


class DepthGuide:
    """The points that each training photograph of a scene shows."""

    def __init__(self, points: Mapping[int, np.ndarray], extent: float) -> None:
        """`points` [M, 3], in the scene's frame, by the view's index; `extent` the scene's radius."""
        self._points = points
        self._extent = extent

    @classmethod
    def of(cls, scene: Scene, config: DepthConfig) -> DepthGuide:
        """Return the guide that the settings ask for; where they ask for none it knows no points.

        Raises ValueError for a scene that does not know which photograph shows which point.
        """
        if not config.weight > 0:
            return cls({}, scene.extent)
        shown = visible_points(scene)
        views = ((index, scene.views[index].name) for index in scene.train_indices)
        return cls({index: shown[name] for index, name in views if name in shown}, scene.extent)

    def penalty(
        self, view: TrainView, output: RenderOutput, config: TrainConfig, *, step: int
    ) -> Tensor | None:
        """Return what the loss of a output gains after `step` steps, a scalar; None: nothing."""
        error = self.error(view.index, view.camera, output.alpha, output.depth_sum, view.mask)
        return None if error is None else error * depth_weight(config.depth, step=step, steps=config.steps)

    def error(
        self, index: int, camera: Camera, alpha: Tensor, depth_sum: Tensor, mask: Tensor | None = None
    ) -> Tensor | None:
        """Return how wrong the drawn depths are at the points that the view `index` shows, a scalar.

        It is the mean of |1/drawn - 1/true| in units of 1/extent, over the points at whose pixel more than
        half is covered and that `mask` [H, W] bool does not leave out; `alpha` and `depth_sum` [H, W] as of
        `RenderOutput`. It is 0 where there is no such point, and None where the camera shows none at all.
        A GPU is not waited for.
        """
        points = self._points.get(index)
        if points is None:
            return None
        seen = points @ camera.viewmat[:3, :3].T + camera.viewmat[:3, 3]
        seen = seen[seen[:, 2] > 0]
        pixels = seen @ camera.K.T
        columns, rows = np.floor(pixels[:, :2] / pixels[:, 2:]).T
        inside = (columns >= 0) & (columns < camera.width) & (rows >= 0) & (rows < camera.height)
        if not inside.any():
            return None
        place = to_device(torch.as_tensor(rows[inside] * camera.width + columns[inside]).long(), alpha.device)
        true = to_device(torch.as_tensor(seen[inside, 2]).to(alpha.dtype), alpha.device)
        # By `index_select`, whose gradients are summed in the order of the points. Those of an index come
        # from several threads where there are tens of thousands, in another order each time.
        covered = alpha.reshape(-1).index_select(0, place)
        counts = (covered.detach() > MIN_ALPHA).to(alpha)
        if mask is not None:
            counts = counts * mask.reshape(-1)[place].to(counts)
        drawn = depth_sum.reshape(-1).index_select(0, place) / covered.clamp_min(1e-6)
        wrong = (1.0 / drawn.clamp_min(1e-6) - 1.0 / true).abs() * self._extent
        return (wrong * counts).sum() / counts.sum().clamp_min(1.0)


def depth_weight(config: DepthConfig, *, step: int, steps: int) -> float:
    """Return the weight of the guide after `step` of `steps` steps: it falls exponentially."""
    return config.weight * config.weight_decay ** min(step / max(steps, 1), 1.0)
