"""What lies at a place of the picture, and the list of keys."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splatstudio.cameras.camera import Camera
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gui.state.stream import FrameSource, ModelState
from splatstudio.gui.state.viewpoint import Viewpoint
from splatstudio.gui.tabs.navigation import point_seen
from splatstudio.rendering.mode_pictures import draw_mode
from splatstudio.rendering.render import RenderOptions
from splatstudio.runtime.messages import Frame, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame

# Turned, so that a wrong direction of a rotation shows.
TURNED = np.array([0.9, 0.1, -0.3, 0.2]) / np.linalg.norm([0.9, 0.1, -0.3, 0.2])


class Drawn(FrameSource):
    """Draws Gaussians where the product asks a worker."""

    def __init__(self, gaussians: Gaussians):
        self.gaussians = gaussians
        self.asked: list[tuple[int, Camera, ViewOptions]] = []
        self.forgotten: list[int] = []
        self.answers = True

    def model_state(self) -> ModelState:
        return ModelState(0, training=False)

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        self.asked.append((view, camera, options))
        if not self.answers:
            return None
        picture = draw_mode("median_depth", self.gaussians, camera, RenderOptions())
        return ReceivedFrame(
            Frame(view, 0, 0, camera.width, camera.height, 0, 0.0, picture.legend), picture.image
        )

    def forget(self, view: int) -> None:
        self.forgotten.append(view)


def wall(viewpoint: Viewpoint, depth: float) -> Gaussians:
    """Return small opaque splats in a plane at `depth` before a viewpoint; nothing at its left."""
    camera = viewpoint.camera(1.0)
    right, up = np.meshgrid(np.linspace(-0.2, 1.5, 60), np.linspace(-1.0, 1.0, 60))
    local = np.stack([right.ravel(), up.ravel(), np.full(right.size, depth)], axis=1)
    means = torch.tensor(local @ camera.viewmat[:3, :3] + camera.position, dtype=torch.float32)
    num = len(means)
    return Gaussians(
        means=means,
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(num, 1),
        scales=torch.full((num, 3), -3.5),
        opacities=torch.full((num,), 6.0),
        sh0=torch.zeros(num, 1, 3),
        shN=torch.zeros(num, 0, 3),
    )


@pytest.mark.parametrize("place", [(0.5, 0.5), (0.8, 0.3), (0.99, 0.99)])
def test_the_point_at_a_place_of_the_canvas_is_found(place: tuple[float, float]) -> None:
    viewpoint = Viewpoint(TURNED, np.array([3.0, -2.0, 1.0]), 0.6, 640, 400)
    drawn = Drawn(wall(viewpoint, depth=2.0))
    point = point_seen(drawn, -4, viewpoint, ViewOptions(splat_scale=0.5), place)
    assert point is not None
    camera = viewpoint.camera(1.0)
    seen = camera.viewmat[:3, :3] @ (point - camera.position)
    assert seen[2] == pytest.approx(2.0, abs=0.06)  # a splat's own size
    on_canvas = (camera.K @ seen)[:2] / seen[2] / (640, 400)
    assert on_canvas == pytest.approx(place, abs=1e-6)
    ((view, small, options),) = drawn.asked
    assert (view, drawn.forgotten) == (-4, [-4]) and small.width * small.height <= 64
    assert options.splat_scale == 0.5, "as the browser draws it"


def test_where_nothing_is_no_point_is_found() -> None:
    viewpoint = Viewpoint(TURNED, np.array([3.0, -2.0, 1.0]), 0.6, 640, 400)
    drawn = Drawn(wall(viewpoint, depth=2.0))
    assert point_seen(drawn, -1, viewpoint, ViewOptions(), (0.02, 0.5)) is None
    drawn.answers = False
    assert point_seen(drawn, -1, viewpoint, ViewOptions(), (0.5, 0.5)) is None
    assert drawn.forgotten == [-1, -1]
