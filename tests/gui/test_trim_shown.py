"""What an export leaves out is hidden in the views, which then show what the file will hold."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import blobs, ring_of_cameras

from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.gaussians.trimming import KEEP_ALL, Trim, trimmed
from splatstudio.gui.state.status import Status
from splatstudio.gui.tabs.export import ExportPanel, TrimSection
from splatstudio.rendering.modes import DrawnMode
from splatstudio.rendering.render import RenderOptions
from splatstudio.runtime.looks import ViewRequest, decoded_looks, encoded_looks
from splatstudio.runtime.messages import Exported, ViewOptions
from splatstudio.runtime.painter import Painter

CAMERA = ring_of_cameras()[2]


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
    (look,) = decoded_looks(encoded_looks([ViewRequest(CAMERA, ViewOptions(trim=trim))]))
    assert look.options == ViewOptions(trim=trim)


def test_at_most_as_many_splats_are_announced_and_afterwards_how_many_it_were(page: Any) -> None:
    panel = ExportPanel(page)
    page.controller.status = Status(state="viewing", has_model=True, num_gaussians=1000)
    panel.refresh()
    assert "at most" not in panel._facts.content
    panel._trim._opacity.value = 0.3
    panel.refresh()
    assert "at most 1,000" in panel._facts.content
    panel.follow(Exported(Path("a.ply"), 755, 10))
    panel.refresh()
    assert "a.ply: 755 splats" in panel._facts.content


def test_the_section_tells_the_views_what_to_hide(page: Any) -> None:
    told: list[Trim] = []
    section = TrimSection(page.server, told.append)
    call: Callable[[], None] = section._tell
    section._opacity.value = 0.3
    call()
    assert told[-1] == Trim(0.3) and section._hide.visible
    section._hide.value = False
    call()
    assert told[-1] == KEEP_ALL and section.trim == Trim(0.3)
    section._hide.value = True
    section._opacity.value = 0.0
    call()
    assert told[-1] == KEEP_ALL and not section._hide.visible
