"""What an export will weigh, how far it is, and which files a browser is offered, without a browser."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from format_models import model

from splatstudio.formats import format_of
from splatstudio.gui.state.status import Status
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.gui.theme import size
from splatstudio.models.model import Model
from splatstudio.runtime.model_loaded import model_loaded


@pytest.mark.parametrize(("name", "degree"), [("PLY", 3), ("SPZ", 1), ("Web page", 0)])
@pytest.mark.parametrize("of_scene", [True, False])
def test_the_size_is_told_before_a_file_is_written(
    page: Any,
    name: str,
    degree: int,
    of_scene: bool,
) -> None:
    controller = page.controller
    if not of_scene:
        controller.project = replace(controller.project, scene=None)
    controller.status = Status(num_gaussians=2_000_000, has_model=True)
    panel = ExportPanel(page)
    panel._format.value = name
    panel.refresh()
    form = format_of(f"a{panel._chosen.endings[0]}")
    assert form is not None and form is panel._chosen
    gaussians = model(5, degree)
    # Another model takes the place of the first one: its harmonics count.
    panel.follow(model_loaded(Model(gaussians), 2_000_000))
    panel.refresh()
    assert f"about {size(form.estimated_bytes(2_000_000, degree))}" in panel._facts.content
