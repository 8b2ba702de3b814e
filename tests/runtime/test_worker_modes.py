"""What a view can show, through a real worker on a tiny scene."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs, ring_of_cameras

from splatstudio.cameras.camera import Camera
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.gaussians import Gaussians, rgb_to_sh0
from splatstudio.kernels import reference, reference_modes
from splatstudio.kernels.stages import ProjectSettings, RasterSettings
from splatstudio.rendering.mode_pictures import color_table, error_picture, photo_in_view
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.runtime.messages import Finished, Job, SetView, Start, TrainJob, ViewJob, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame, WorkerClient
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

TIMEOUT = 120.0
Show = Callable[[Camera, ViewOptions], ReceivedFrame]


class Shown:
    """A worker, and pictures of what it has."""

    def __init__(self, job: Job):
        self.client = WorkerClient(job)
        self.client.start()
        self._seq = 0

    def picture(self, camera: Camera, options: ViewOptions) -> ReceivedFrame:
        self._seq += 1
        self.client.send(SetView(1, self._seq, camera, options))
        received = self.client.wait_for_frame(1, self._seq, TIMEOUT)
        assert received is not None, "no picture came"
        return received


@pytest.fixture
def open_model(tmp_path: Path) -> Iterator[Callable[[Gaussians], Shown]]:
    """Show Gaussians as a finished model."""
    shown: list[Shown] = []

    def show(gaussians: Gaussians) -> Shown:
        write_ply(tmp_path / "model.ply", gaussians)
        shown.append(Shown(ViewJob(tmp_path / "model.ply")))
        return shown[-1]

    yield show
    for worker in shown:
        worker.client.kill()


def plane(z: float, rgb: tuple[float, float, float] = (0.8, 0.2, 0.4)) -> Gaussians:
    """Return a dense wall of thin Gaussians across the view axis at depth `z`."""
    side = torch.linspace(-6.0, 6.0, 61)
    x, y = torch.meshgrid(side, side, indexing="ij")
    means = torch.stack([x.reshape(-1), y.reshape(-1), torch.full((61 * 61,), z)], dim=1)
    num = len(means)
    return Gaussians(
        means=means,
        quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(num, 1),
        scales=torch.tensor([[0.2, 0.2, 0.001]]).log().repeat(num, 1),
        opacities=torch.full((num,), 4.0),
        sh0=rgb_to_sh0(torch.tensor([rgb]))[:, None].repeat(num, 1, 1),
        shN=torch.zeros(num, 0, 3),
    )


def front() -> Camera:
    K = np.array([[60.0, 0, 35.0], [0, 60.0, 25.0], [0, 0, 1]])
    return Camera(np.eye(4), K, 70, 50)


def values_of(received: ReceivedFrame) -> np.ndarray:
    """Return the numbers that a picture shows, read back through its legend."""
    legend = received.frame.legend
    assert legend is not None
    table = color_table(legend.color_map).numpy().astype(int)
    distance = np.abs(received.image[:, :, None].astype(int) - table).sum(axis=-1)
    return legend.low + distance.argmin(axis=-1) * (legend.high - legend.low) / 255.0


def test_a_wall_has_the_depth_and_the_normal_that_it_has(open_model) -> None:
    worker = open_model(plane(4.0))
    for mode in ("depth", "median_depth"):
        received = worker.picture(front(), ViewOptions(mode=mode))
        assert received.frame.legend is not None and received.frame.legend.unit == "scene units"
        assert np.abs(values_of(received) - 4.0).max() < 0.02
    facing = worker.picture(front(), ViewOptions(mode="normals"))
    assert np.abs(facing.image.astype(int) - [128, 128, 255]).max() <= 2 and facing.frame.legend is None
    alpha = values_of(worker.picture(front(), ViewOptions(mode="alpha")))
    assert alpha.min() > 99.0


def test_near_and_far_cut_and_the_splat_scale_thins(open_model) -> None:
    worker = open_model(plane(4.0))
    pink = ViewOptions(background=(1.0, 0.0, 1.0))
    assert worker.picture(front(), pink).image[..., 1].min() > 30, "the wall hides the background"
    for cut in (replace(pink, near=4.5), replace(pink, far=3.5)):
        assert (worker.picture(front(), cut).image == [255, 0, 255]).all()
    assert (worker.picture(front(), replace(pink, far=4.5)).image != [255, 0, 255]).any(axis=-1).all()
    thin = worker.picture(front(), replace(pink, mode="alpha", splat_scale=0.2))
    assert values_of(thin).mean() < 60.0
    bad = worker.picture(front(), replace(pink, splat_scale=0.0))
    assert bad.frame.notice is not None and "above 0" in bad.frame.notice


def test_the_count_is_the_reference_count(open_model) -> None:
    gaussians = replace(blobs(), shN=torch.zeros(60, 0, 3))
    camera = ring_of_cameras()[2].resized(70, 50)
    received = open_model(gaussians).picture(camera, ViewOptions(mode="count"))
    tensors = gaussians.tensors()
    tensors |= {"scales": gaussians.scales.exp(), "opacities": gaussians.opacities.sigmoid()}
    projected = reference.project(*tensors.values(), camera=camera, settings=ProjectSettings(sh_degree=0))
    expected = reference_modes.rasterize_median(projected, RasterSettings(70, 50, torch.zeros(3))).count
    assert received.frame.legend is not None and received.frame.legend.high == expected.max() > 3
    assert (np.abs(values_of(received) - expected.numpy()) > 0.5).mean() < 0.02


def test_ellipsoids_are_solid_and_points_are_small(open_model) -> None:
    gaussians = replace(plane(4.0)[:1], means=torch.tensor([[0.0, 0.0, 4.0]]))
    worker = open_model(replace(gaussians, scales=torch.full((1, 3), 0.3).log()))
    solid = worker.picture(front(), ViewOptions(mode="ellipsoids")).image
    drawn = (solid > 0).any(axis=-1)
    # Two standard deviations: a disc of 2 * 0.3 / 4 * 60 = 9 px.
    assert abs(drawn.sum() / (np.pi * 9.0**2) - 1.0) < 0.1
    assert np.abs(solid[24, 35].astype(int) - [204, 51, 102]).max() <= 4, "fully lit where it faces us"
    edge = solid[24, np.nonzero(drawn[24])[0][0]]
    assert edge[0] < 0.75 * 204, "darker at its edge, with no background mixed in"
    points = worker.picture(front(), ViewOptions(mode="points")).image
    assert 4 <= (points > 0).any(axis=-1).sum() <= 12


def test_an_error_needs_photos(open_model) -> None:
    received = open_model(plane(4.0)).picture(front(), ViewOptions(mode="error", photo=0))
    assert received.frame.notice is not None and "without the photos" in received.frame.notice
    assert received.frame.legend is None and received.image[..., 0].min() > 150, "the colors instead"


def test_the_error_of_a_training_is_that_of_the_chosen_photo(
    blob_folder: Path, blob_scene: Scene, tmp_path: Path
) -> None:
    config = TrainConfig(steps=1, eval_steps=(), save_steps=(), sh_degree=1)
    worker = Shown(TrainJob(blob_folder, tmp_path / "run", config))
    try:
        worker.client.send(Start())
        deadline = time.monotonic() + TIMEOUT
        while not any(isinstance(event, Finished) for event in worker.client.poll(0.2)):
            assert time.monotonic() < deadline, "the training does not end"
        # Where the browser stands does not matter, its lens and size do.
        camera = replace(blob_scene.cameras[3], viewmat=np.eye(4))
        received = worker.picture(camera, ViewOptions(mode="error", photo=3))
        assert received.frame.notice is None and received.frame.legend is not None
        own = worker.picture(blob_scene.cameras[3], ViewOptions()).image.astype(float)
        photo = blob_scene.photo(3).rgb.astype(float)
        expected = np.abs(own - photo).mean(axis=-1)
        step = (received.frame.legend.high - received.frame.legend.low) / 255.0
        below = expected < received.frame.legend.high
        assert np.abs(values_of(received) - expected)[below].max() < 1.0 + 2 * step
        missing = worker.picture(camera, ViewOptions(mode="error", photo=99))
        assert missing.frame.notice is not None and "no photo number 99" in missing.frame.notice
    finally:
        worker.client.kill()


def test_the_error_is_zero_where_the_model_is_the_photo() -> None:
    gaussians, camera = blobs(), ring_of_cameras()[4]
    with torch.no_grad():
        photo = render(gaussians, camera).rgb.clamp(0.0, 1.0)
    target, shown = photo_in_view(photo, None, camera, camera)
    same = error_picture(gaussians, camera, RenderOptions(), target, shown)
    assert (same.image == color_table("turbo")[0].numpy()).all()
    # A wider lens, in which the photo fills the middle only.
    K = camera.K.copy()
    K[:2, :2] *= 0.5
    wide = replace(camera, K=K)
    target, shown = photo_in_view(photo, None, camera, wide)
    assert 0.2 < shown.float().mean() < 0.3 and shown[20, 24] and not shown[0].any()
    picture = error_picture(gaussians, wide, RenderOptions(), target, shown)
    assert (picture.image[0] == 20).all() and picture.legend is not None
    with torch.no_grad():
        rgb = render(gaussians, wide).rgb.clamp(0.0, 1.0)
    # What a wider lens sees of the scene is the photo, but for pixels being larger.
    assert (rgb - target).abs().mean(dim=-1)[shown].mean() < 0.05
