"""How one browser wants to see the model, and what has to be rendered for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from splatstudio.cameras.camera import Camera
from splatstudio.gui.state.compare import Comparison, Place, place_of
from splatstudio.gui.state.viewpoint import MIN_SIDE, Viewpoint
from splatstudio.runtime.channel.frame_slots import MAX_FRAME_PIXELS
from splatstudio.runtime.messages import ViewOptions


@dataclass(frozen=True)
class ViewSettings:
    """What a browser has chosen. `max_scale` limits the pictures to that times the window's pixels a side."""

    options: ViewOptions = field(default_factory=ViewOptions)
    comparison: Comparison = field(default_factory=Comparison)
    max_scale: float = 1.0
    splats: bool = True  # whether the model is shown at all

    @property
    def wants_photo(self) -> bool:
        """Say whether there is something to see only from a photograph's camera."""
        return self.comparison.kind != "off" or self.options.mode == "error"

    def draws_like(self, other: ViewSettings) -> bool:
        """Say whether a picture that was rendered for `other` will do: the model is drawn the same way."""
        mine, its = self.comparison, other.comparison
        return replace(self, comparison=replace(its, kind=mine.kind)) == other


@dataclass(frozen=True, eq=False)
class FrameRequest:
    """A picture to be rendered. `place` is where it goes among the canvas's pixels, None: it fills them."""

    camera: Camera
    options: ViewOptions
    photo: int | None = None
    place: Place | None = None


def shot_for(
    look: ViewSettings, viewpoint: Viewpoint, scale: float, standing: tuple[int, Camera] | None
) -> FrameRequest:
    """Return what to render at `scale` times the canvas's pixels a side.

    `standing` is the photograph, and its camera, in which the browser stands. Only there it can be compared
    with the model, and is then given its own intrinsics and size, whatever shape the canvas has.
    """
    if standing is None or not look.wants_photo:
        options = look.options
        if options.mode == "error":
            options = replace(options, mode="color")
        return FrameRequest(viewpoint.camera(scale), options)
    index, camera = standing
    # At the canvas's full size also where the model is rendered with fewer pixels: the photograph is sharp.
    place = place_of(camera, viewpoint, look.max_scale)
    share = min(1.0, scale / look.max_scale, math.sqrt(MAX_FRAME_PIXELS / (place.width * place.height)))
    width, height = (max(MIN_SIDE, int(n * share)) for n in (place.width, place.height))
    options = replace(look.options, photo=index)
    if look.comparison.kind == "difference":
        options = replace(options, mode="color")
    return FrameRequest(camera.resized(width, height), options, index, place)
