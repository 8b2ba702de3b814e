"""`splatstudio render`: a camera path as a video or as frames."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from splatstudio.cameras.camera_path import CameraPath, FrameFormat, orbit_of, spiral, through
from splatstudio.cameras.path_file import read_camera_path
from splatstudio.cli.options import Route
from splatstudio.cli.terminal import console, frame_progress
from splatstudio.models.model import Model, load_model, origin_of, own_orbit, scene_shown_by
from splatstudio.models.video import fitting, render_path
from splatstudio.rendering.modes import DrawnMode


def render_and_print(
    path: Path,
    output: Path,
    route: Route,
    frames: FrameFormat,
    quality: Literal["full", "small"],
    mode: DrawnMode,
) -> None:
    """Render the model in `path` along `route`, showing how far it is, and say what was written.

    Raises ValueError where the model, the path or the scene cannot be read.
    """
    model, camera_path = _model_and_path(path, route)
    for note in model.notes:
        console.print(note, style="yellow")
    camera_path = camera_path.formatted(frames)
    cameras = camera_path.cameras()
    with frame_progress(len(cameras)) as report:
        render_path(model, cameras, output, fps=camera_path.fps, quality=quality, mode=mode, on_frame=report)
    sized, more = fitting(cameras[0], output), ""
    if (sized.width, sized.height) != (cameras[0].width, cameras[0].height):
        more = f", of {sized.width} x {sized.height} px: a video has even sides"
    console.print(f"{len(cameras)} frames written to {output}{more}")


def _model_and_path(path: Path, route: Route) -> tuple[Model, CameraPath]:
    model = load_model(path, strict=route.strict, scene=route.scene)
    if route.path is not None:
        return model, read_camera_path(route.path, model.transform, scale_ratio=route.path_scale)
    if route.orbit and route.scene is None and origin_of(path) is None:
        console.print("The scene is not known: the orbit goes around the center of the splats.")
        return model, own_orbit(model)
    scene = scene_shown_by(path, route.scene, route.images, full_size=True)
    ready = orbit_of if route.orbit else spiral if route.spiral else through
    return model.in_frame_of(scene), ready(scene.cameras)
