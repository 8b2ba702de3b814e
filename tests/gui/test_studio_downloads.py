"""What an export will weigh, how far it is, and which files a browser is offered, without a browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from format_models import model
from test_studio_panels import evaluate_panel, notices, page, run, submitted  # noqa: F401  (fixtures)

from splatstudio.formats import format_of
from splatstudio.gui.dock import job_bar
from splatstudio.gui.state.status import Status
from splatstudio.gui.state.tasks import JobStatus
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.gui.theme import size
from splatstudio.models.model import Model
from splatstudio.runtime.file_tasks import FileTask, TaskEnd
from splatstudio.runtime.messages import Export, JobDone, JobProgress
from splatstudio.runtime.training_news import model_loaded


@pytest.mark.parametrize(("name", "degree"), [("PLY", 3), ("SPZ", 1), ("Web page", 0)])
@pytest.mark.parametrize("of_scene", [True, False])
def test_the_size_is_told_before_a_file_is_written(
    page: Any,  # noqa: F811
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


def test_an_export_shows_how_far_it_is(page: Any) -> None:  # noqa: F811
    command = Export(Path("/tmp/a.ply"))
    status = JobStatus(command)
    page.jobs.newest = lambda kind: status
    panel = ExportPanel(page)
    panel.refresh()
    assert panel._bar._bar.visible and panel._bar._bar.animated and panel._bar._cancel.visible
    status = JobStatus(command, progress=JobProgress(command.job, 3, 4, None))
    panel.refresh()
    assert panel._bar._bar.value == 75.0 and not panel._bar._bar.animated
    assert "3 of 4" in panel._bar._text.content


@pytest.mark.parametrize(("num_bytes", "offered"), [(499_999_999, True), (500_000_000, False)])
def test_only_what_a_browser_can_hold_is_offered(
    page: Any,  # noqa: F811
    tmp_path: Path,
    num_bytes: int,
    offered: bool,
) -> None:
    path = tmp_path / "a.ply"
    with open(path, "wb") as file:
        file.truncate(num_bytes)  # takes no room on the disk
    command = Export(path)
    page.jobs.newest = lambda kind: JobStatus(command, end=JobDone(command.job, path, num_bytes))
    panel = ExportPanel(page)
    panel.refresh()
    assert panel._bar._download.visible == offered and not panel._bar._bar.visible
    tab = evaluate_panel(page)
    tab._ended(FileTask("Merging step 10", (tmp_path,), path), TaskEnd(output=path))
    assert tab._download.visible == offered
    tab._ended(
        FileTask("Merging step 10", (tmp_path,), path), TaskEnd(output=tmp_path / "gone.ply", error="Why.")
    )
    assert not tab._download.visible


def test_what_grew_since_it_was_offered_is_not_sent(tmp_path: Path) -> None:
    told: list[str] = []
    client: Any = SimpleNamespace(add_notification=lambda title, text, color: told.append(text))
    with open(tmp_path / "a.ply", "wb") as file:
        file.truncate(job_bar.MAX_DOWNLOAD_BYTES)
    job_bar.download(client, tmp_path / "a.ply")
    assert told == [f"{tmp_path / 'a.ply'}: it has become too large to be sent"]
