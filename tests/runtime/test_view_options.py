"""What a view is drawn with: what an export omits is hidden, and the sky or the background is behind."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from blob_models import blobs, ring_of_cameras
from worker_watcher import finish

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.sky import Sky
from splatstudio.gaussians.trimming import KEEP_ALL, Trim, trimmed
from splatstudio.models.model import Model
from splatstudio.rendering.modes import DrawnMode
from splatstudio.rendering.render import RenderOptions, render_image
from splatstudio.runtime.channel.codec import decode, encode
from splatstudio.runtime.messages import Event, Snapshot, ViewOptions, ViewRequest
from splatstudio.runtime.tasks import Tasks
from splatstudio.runtime.view_renderer import Painter

RED = (1.0, 0.0, 0.0)
OPTIONS = RenderOptions(sky=Sky(((0.3, 0.9, 1.2), (0.1, 0.4, 0.0), (0.0, 0.3, 0.2), (0.2, 0.0, 0.1))))
CAMERA = ring_of_cameras()[2]


@pytest.mark.parametrize("sky", [True, False])
def test_a_view_has_the_sky_until_its_user_wants_the_background(sky: bool) -> None:
    camera = ring_of_cameras()[2]
    picture, notice = Painter().paint(blobs(), camera, OPTIONS, ViewOptions(RED, sky=sky))
    expected = render_image(blobs(), camera, OPTIONS if sky else RenderOptions(background=RED))
    assert notice is None and np.array_equal(picture.image, expected)


def test_a_model_without_a_sky_is_before_the_background() -> None:
    picture, _ = Painter().paint(blobs(), ring_of_cameras()[2], RenderOptions(), ViewOptions(RED))
    expected = render_image(blobs(), ring_of_cameras()[2], RenderOptions(background=RED))
    assert np.array_equal(picture.image, expected)


def test_other_ranks_are_told_of_the_sky() -> None:
    for sky in (True, False):
        look = decode(encode(ViewRequest(ring_of_cameras()[0], ViewOptions(RED, sky=sky))), ViewRequest)
        assert look.options == ViewOptions(RED, sky=sky)


def test_a_snapshot_is_as_the_view(tmp_path: Path) -> None:
    camera, events = ring_of_cameras()[2], list[Event]()
    jobs, model = Tasks(events.append, lambda: False), Model(blobs(), options=OPTIONS)
    file = tmp_path / "shot.png"
    jobs.start(Snapshot(camera, file, ViewOptions(RED, sky=False)), lambda: model)
    finish(jobs)
    stored = cv2.imread(str(file))
    assert stored is not None
    expected = render_image(blobs(), camera, RenderOptions(background=RED))
    assert np.array_equal(stored[..., ::-1], expected)


def middle_half(gaussians: Gaussians) -> Trim:
    """Return a trim that keeps some of the Gaussians and leaves out some, by their place and by opacity."""
    low, high = gaussians.means.quantile(0.2, dim=0).tolist(), gaussians.means.quantile(0.9, dim=0).tolist()
    return Trim(float(gaussians.opacities.sigmoid().quantile(0.2)), (*low, *high))


@pytest.mark.parametrize("mode", ["color", "points", "ellipsoids", "count"])
def test_a_view_shows_what_the_file_will_hold(mode: DrawnMode) -> None:
    model = blobs()
    trim = middle_half(model)
    kept = trimmed(model, trim)
    assert 0 < len(kept) < len(model)
    painter = Painter()
    everything, _ = painter.paint(model, CAMERA, RenderOptions(), ViewOptions(mode=mode))
    shown, _ = painter.paint(model, CAMERA, RenderOptions(), ViewOptions(mode=mode, trim=trim))
    expected, _ = painter.paint(kept, CAMERA, RenderOptions(), ViewOptions(mode=mode))
    assert np.array_equal(shown.image, expected.image)
    assert not np.array_equal(shown.image, everything.image)


def test_a_trim_that_leaves_nothing_shows_nothing() -> None:
    far = Trim(0.0, (1e6, 1e6, 1e6, 2e6, 2e6, 2e6))
    picture, notice = Painter().paint(blobs(), CAMERA, RenderOptions(), ViewOptions(trim=far))
    assert notice is None and not picture.image.any()


@pytest.mark.parametrize("trim", [KEEP_ALL, Trim(0.25), Trim(0.0, (-1.0, -2.0, -3.0, 1.0, 2.0, 3.0))])
def test_other_ranks_are_told_so(trim: Trim) -> None:
    look = decode(encode(ViewRequest(CAMERA, ViewOptions(trim=trim))), ViewRequest)
    assert look.options == ViewOptions(trim=trim)
