"""From what a browser asks for to a picture: the mode, and the photograph that it may be compared with."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splatstudio.cameras.camera import Camera
from splatstudio.evaluation.evaluate import target_for
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.sky import Sky
from splatstudio.gaussians.trimming import hidden
from splatstudio.rendering.mode_pictures import (
    Picture,
    camera_at_photo,
    draw_mode,
    error_picture,
    photo_in_view,
    scaled,
)
from splatstudio.rendering.render import RenderOptions
from splatstudio.runtime.messages import ViewOptions
from splatstudio.scene.scene import Scene


@dataclass(frozen=True, eq=False)
class _Target:
    """A photograph as a render of it should look, and what it depends on."""

    scene: Scene
    index: int
    behind: tuple[tuple[float, float, float], Sky | None] | None  # None: the photograph has no alpha
    rgb: Tensor  # [H, W, 3]
    mask: Tensor | None  # [H, W] bool


class Painter:
    """Draws models as views ask for it; keeps the photograph that was compared with last."""

    def __init__(self) -> None:
        self._target: _Target | None = None

    def paint(
        self,
        gaussians: Gaussians,
        camera: Camera,
        options: RenderOptions,
        wanted: ViewOptions,
        scene: Scene | None = None,
    ) -> tuple[Picture, str | None]:
        """Return the picture, of the camera's size, and why it is not the one asked for (None: it is).

        `options` are the model's own. Without a `scene`, or without the photograph, "error" shows colours.
        """
        notice = None
        if wanted.splat_scale > 0:
            gaussians = scaled(gaussians, wanted.splat_scale)
        else:
            notice = f"Splats cannot be drawn {wanted.splat_scale} times as large; choose a number above 0."
        stand = drawn_from(camera, wanted, scene)
        behind = stand.position - stand.viewmat[2, :3]
        gaussians = hidden(gaussians, wanted.trim, behind.tolist())
        options = asked_for(options, wanted)
        if wanted.mode != "error":
            return draw_mode(wanted.mode, gaussians, camera, options), notice
        try:
            target = self._photograph(scene, wanted.photo, options, gaussians.device)
        except ValueError as error:
            return draw_mode("color", gaussians, camera, options), f"No error to show: {error}"
        photo = target.scene.views[target.index].camera
        camera = camera_at_photo(camera, photo)
        rgb, shown = photo_in_view(target.rgb, target.mask, photo, camera)
        return error_picture(gaussians, camera, options, rgb, shown), notice

    def _photograph(
        self,
        scene: Scene | None,
        index: int | None,
        options: RenderOptions,
        device: torch.device,
    ) -> _Target:
        """Return a photograph of the scene; ValueError says what is missing."""
        if scene is None:
            raise ValueError("this model was opened without the photographs of its scene")
        if index is None:
            raise ValueError("choose a photograph to compare with")
        if not 0 <= index < len(scene.views):
            raise ValueError(f"the scene has no photograph number {index}; it has {len(scene.views):,}")
        kept, behind = self._target, (options.background, options.sky)
        same = kept is not None and kept.scene is scene and kept.index == index
        if kept is not None and same and kept.behind in (None, behind):
            return kept
        photo = scene.photo(index)
        rgb, mask = target_for(photo, scene.views[index].camera, options, device)
        self._target = _Target(scene, index, None if photo.alpha is None else behind, rgb, mask)
        return self._target


def drawn_from(camera: Camera, wanted: ViewOptions, scene: Scene | None) -> Camera:
    """Return the camera that a view is drawn from: a comparison stands where its photograph was taken."""
    if wanted.mode != "error" or scene is None or wanted.photo is None:
        return camera
    if not 0 <= wanted.photo < len(scene.views):
        return camera
    return camera_at_photo(camera, scene.views[wanted.photo].camera)


def asked_for(options: RenderOptions, wanted: ViewOptions) -> RenderOptions:
    """Return the options of a model with what a view asks for in place of its own."""
    return replace(
        options,
        background=wanted.background,
        sky=options.sky if wanted.sky else None,
        near=options.near if wanted.near is None else wanted.near,
        far=options.far if wanted.far is None else wanted.far,
        antialiased=options.antialiased if wanted.antialiased is None else wanted.antialiased,
        sh_degree=options.sh_degree if wanted.sh_degree is None else max(0, wanted.sh_degree),
    )
