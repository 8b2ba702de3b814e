"""The views that a surface is made of: a model's depth where photos were taken, or from an orbit."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.cameras.camera_path import orbit
from splatstudio.distributed.ranks import ALONE, Ranks
from splatstudio.gaussians.gaussians import Gaussians, central_bounds
from splatstudio.models.exporter import refined_camera
from splatstudio.models.model import ORBIT_DISTANCE, Model
from splatstudio.rendering.mode_pictures import median_depth
from splatstudio.rendering.render import RenderOptions, fastest_device, render
from splatstudio.scene.scaling import scaled
from splatstudio.scene.scene import Scene
from splatstudio.surfaces.tsdf import DepthView, points_seen

SURVEY_PIXELS = 160  # along the longer side of the pictures from which distances are learned
FARTHEST = 4.0  # times the median depth of all pictures: what lies behind is left out
PIXELS_A_VOXEL = 1.3  # at the median depth: pictures are no larger than they need to be
PIXELS_A_TEXEL = 1.5  # of the photos, as those of a texture have what is finer than a texel
MOST_POINTS = 200_000  # for quantiles
OUTERMOST = 0.005  # share of the points at either end that does not count for the size of the scene
HALF_TURNED = 0.1  # the length of the sum of two unit vectors that are nearly opposite
NEIGHBORS, LOOK_ALIKE = 3, 0.5  # of a camera; cosine between the directions in which two look
ORBIT_SIZE, ORBIT_VIEWS, ORBIT_HEIGHTS = 800, 16, (-0.5, 0.15, 0.8)  # pixels; views a loop; of the distance


@dataclass(frozen=True, eq=False)
class SurfaceView:
    """What one view tells: its depth, and its colors [H, W, 3] uint8 at the same pixels."""

    depth_view: DepthView
    rgb: Tensor


@dataclass(frozen=True)
class Survey:
    """What the views show, in the units of the model's frame."""

    median_depth: float
    farthest: float  # what lies farther from a camera is left out
    pixel: float  # the side of a pixel on the surface, at the median depth, in the photos' full size
    low: tuple[float, float, float]  # of the box around the surface
    high: tuple[float, float, float]

    @property
    def longest_side(self) -> float:
        """Return the longest side of the box."""
        return max(high - low for low, high in zip(self.low, self.high, strict=True))


class ModelViews:
    """The views of a model: as many as there are cameras, each drawn when it is asked for.

    What has been drawn is kept while it takes `room` bytes at most. Several ranks, which hold the same model,
    draw in turns: what yields views is called by all of them, and yields the same ones to each.
    """

    def __init__(
        self, model: Model, scene: Scene | None, room: int, *, between: bool = False, ranks: Ranks = ALONE
    ):
        """Draw `model` where the photos of `scene` were taken; None: from an orbit around it.

        `between`: its depth also halfway between photos.
        """
        self._ranks = ranks
        self._gaussians: Gaussians = model.gaussians.to(fastest_device())
        self._options: RenderOptions = model.options
        self._scene, self._room = scene, room
        self._kept: dict[int, SurfaceView] = {}
        self._factor = 1.0
        if scene is None:
            self._cameras = tuple(_around(model))
        else:
            self._cameras = tuple(refined_camera(model, view.name, view.camera) for view in scene.views)
        self._between = tuple(cameras_between(self._cameras)) if between else ()
        self.are_photos = scene is not None
        self.farthest = float("inf")

    def __len__(self) -> int:
        return len(self._cameras)

    @property
    def positions(self) -> np.ndarray:
        """Return where the cameras stand, [C, 3]."""
        return np.reshape([camera.position for camera in self._cameras], (-1, 3))

    def survey(self, on_view: Callable[[int], object] = lambda number: None) -> Survey | None:
        """Look at small pictures of all views; None: nothing is seen in any."""
        points, depths, sizes = [], [], []
        small = [_no_longer_than(SURVEY_PIXELS, camera) for camera in self._cameras]

        def drawn(number: int) -> Tensor:
            return median_depth(self._gaussians, small[number], self._options).cpu()

        for number, (camera, depth) in enumerate(
            zip(self._cameras, self._in_turns(small, drawn), strict=True)
        ):
            points.append(points_seen(DepthView(small[number], depth)))
            depth = depth[(depth > 0) & depth.isfinite()]
            depths.append(depth.double())
            sizes.append(depth.double() / max(camera.K[0, 0], camera.K[1, 1]))
            on_view(number + 1)
        depth, pixels, where = torch.cat(depths), torch.cat(sizes), torch.cat(points)
        if not len(depth):
            return None
        median = float(depth.median())
        self.farthest = FARTHEST * median
        where = where[depth <= self.farthest]
        where = where[:: max(1, len(where) // MOST_POINTS)]
        ends = torch.quantile(where, torch.tensor([OUTERMOST, 1.0 - OUTERMOST], dtype=where.dtype), dim=0)
        low, high = (tuple(end.tolist()) for end in ends)
        return Survey(median, self.farthest, float(pixels.median()), low, high)

    def sharpen(self, survey: Survey, voxel_size: float) -> None:
        """Draw from now on pictures as large as voxels of this size need them, photos' size at most."""
        factor = min(1.0, PIXELS_A_VOXEL * survey.pixel / voxel_size)
        if factor != self._factor:
            self._factor = factor
            self._kept.clear()

    @property
    def num_depths(self) -> int:
        """Return how many `depths` there are."""
        return len(self._cameras) + len(self._between)

    def depths(self) -> Iterator[DepthView]:
        """Yield the depth of one view after the other, then that of those between them."""
        cameras = self._depth_cameras()
        for camera, depth in zip(cameras, self._in_turns(cameras, self._depth), strict=True):
            yield DepthView(camera, depth)

    def own_depths(self) -> Iterator[DepthView]:
        """Yield those of the `depths` that this rank draws."""
        cameras = self._depth_cameras()
        for number in range(self._ranks.rank, len(cameras), self._ranks.num_ranks):
            yield DepthView(cameras[number], self._depth(number))

    def all(self) -> Iterator[SurfaceView]:
        """Yield one view after the other."""
        cameras = self._depth_cameras()[: len(self)]
        planes = self._in_turns(cameras, lambda number: _planes(self.view(number)))
        for camera, four in zip(cameras, planes, strict=True):
            rgb = four[..., 4:]
            depth = four[..., :4].contiguous().view(torch.float32)[..., 0]
            yield SurfaceView(DepthView(camera, depth), rgb)

    def _depth_cameras(self) -> list[Camera]:
        return [_resized(camera, self._factor) for camera in (*self._cameras, *self._between)]

    def _depth(self, number: int) -> Tensor:
        if number < len(self):
            return self.view(number).depth_view.depth
        return self._near_depth(_resized(self._between[number - len(self)], self._factor))

    def pictures(self, photos: Scene | None, survey: Survey, texel: float) -> Iterator[SurfaceView]:
        """Yield the views with the pictures of `photos`, the scene in another size; None: their own.

        Their pixels on the surface are not much smaller than a `texel` (scene units), as the mean counts.
        """
        for number in range(len(self)):
            view = self.view(number)
            if photos is not None:
                rgb = photos.photo(number).rgb
                pixel = survey.pixel * self._cameras[number].width / rgb.shape[1]
                factor = min(1.0, PIXELS_A_TEXEL * pixel / texel)
                width, height = (max(1, round(side * factor)) for side in rgb.shape[1::-1])
                view = replace(view, rgb=torch.from_numpy(scaled(rgb, width, height)))
            yield view

    def view(self, number: int) -> SurfaceView:
        """Return a view; raises ValueError where its photo cannot be read."""
        if number not in self._kept:
            drawn = self._drawn(number)
            taken = sum(view.rgb.numel() * 7 // 3 for view in self._kept.values())
            if taken + drawn.rgb.numel() * 7 // 3 > self._room:
                return drawn
            self._kept[number] = drawn
        return self._kept[number]

    def _in_turns(self, cameras: Sequence[Camera], draw: Callable[[int], Tensor]) -> Iterator[Tensor]:
        """Yield draw(0), draw(1) and so on, which are pictures [H, W, ...] of `cameras`.

        Each is drawn by one rank and given to all.
        """
        num = self._ranks.num_ranks
        for first in range(0, len(cameras), num):
            own = draw(min(first + self._ranks.rank, len(cameras) - 1))  # past the end nobody takes it
            pictures = self._ranks.all_gather(own.flatten())
            for camera, picture in zip(cameras[first : first + num], pictures, strict=False):
                yield picture.view(camera.height, camera.width, *own.shape[2:])

    def _near_depth(self, camera: Camera) -> Tensor:
        """Return the median depth that a camera sees, [H, W]; 0 where that is too far away."""
        depth = median_depth(self._gaussians, camera, self._options).cpu()
        return torch.where((depth > 0) & (depth <= self.farthest), depth, 0.0)

    @torch.no_grad()
    def _drawn(self, number: int) -> SurfaceView:
        camera = _resized(self._cameras[number], self._factor)
        depth = self._near_depth(camera)
        if self._scene is None:
            rgb = render(self._gaussians, camera, self._options).rgb.clamp(0, 1).mul(255).byte().cpu()
            return SurfaceView(DepthView(camera, depth), rgb)
        photo = self._scene.photo(number)
        shown = np.ones(photo.rgb.shape[:2], bool) if photo.mask is None else photo.mask
        if photo.alpha is not None:
            shown = shown & (photo.alpha > 127)
        planes = torch.from_numpy(np.concatenate([photo.rgb, shown[..., None] * np.uint8(255)], axis=-1))
        size = [camera.height, camera.width]
        planes = functional.interpolate(planes.permute(2, 0, 1)[None].float(), size=size, mode="area")[0]
        depth = torch.where(planes[3] > 254.0, depth, 0.0)
        rgb = planes[:3].round().byte().permute(1, 2, 0).contiguous()
        return SurfaceView(DepthView(camera, depth), rgb)


def cameras_between(cameras: Sequence[Camera]) -> Iterator[Camera]:
    """Yield a camera halfway between each one and its nearest NEIGHBORS that look alike, with its lens.

    There the photos say what the model looks like from both sides.
    """
    places = np.reshape([camera.position for camera in cameras], (-1, 3))
    pairs = set()
    for number, place in enumerate(places):
        nearest = np.argsort(np.linalg.norm(places - place, axis=1), kind="stable")
        others = [int(other) for other in nearest if other != number][:NEIGHBORS]
        pairs |= {(min(number, other), max(number, other)) for other in others}
    for one, other in sorted(pairs):
        a, b = cameras[one].viewmat, cameras[other].viewmat
        middle = (places[one] + places[other]) / 2
        if float(a[2, :3] @ b[2, :3]) < LOOK_ALIKE:
            continue
        down = a[1, :3] + b[1, :3]
        if np.linalg.norm(down) < HALF_TURNED:  # of a drone that came back: either is as good
            down = a[1, :3]
        viewmat = look_at(middle, middle + a[2, :3] + b[2, :3], -down)
        yield replace(cameras[one], viewmat=viewmat)


def _planes(view: SurfaceView) -> Tensor:
    """Return the bytes of the depth of each pixel, and its color, [H, W, 7] uint8."""
    depth = view.depth_view.depth.contiguous()
    return torch.cat([depth[..., None].view(torch.uint8), view.rgb], dim=-1)


def _no_longer_than(pixels: int, camera: Camera) -> Camera:
    return _resized(camera, min(1.0, pixels / max(camera.width, camera.height)))


def _resized(camera: Camera, factor: float) -> Camera:
    if factor >= 1.0:
        return camera
    return camera.resized(max(1, round(camera.width * factor)), max(1, round(camera.height * factor)))


def _around(model: Model) -> Iterator[Camera]:
    """Yield cameras on three loops around the middle of a model, which look at it."""
    center, radius = central_bounds(model.gaussians)
    up = model.up
    for height in ORBIT_HEIGHTS:
        distance = ORBIT_DISTANCE * radius
        path = orbit(np.array(center), distance, height * distance, up=up)
        path = replace(path, width=ORBIT_SIZE, height=ORBIT_SIZE)
        cameras = path.cameras()
        yield from cameras[:: max(1, len(cameras) // ORBIT_VIEWS)]
