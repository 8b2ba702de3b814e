"""What panels do with emptied fields, with a task after another, and of which model they speak."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import viser
from example_checkpoints import example
from studio_page import PAGE_TEST
from test_studio_panels import evaluate_panel, notices, page, run, submitted  # noqa: F401  (fixtures)
from test_studio_parts import fake_camera

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.formats import FORMATS
from splatstudio.gui.dock.hotkeys import Hotkeys
from splatstudio.gui.dock.job_bar import JobBar
from splatstudio.gui.dock.preview_bar import BesideBar
from splatstudio.gui.server import viser_private
from splatstudio.gui.state.frame_source import ModelState
from splatstudio.gui.state.keyframes import Draft, PathEditor
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.state.tasks import JobBoard
from splatstudio.gui.tabs.export import ExportPanel, with_ending
from splatstudio.gui.tabs.render_output import OutputSection, PictureSection
from splatstudio.runtime.messages import (
    CancelJob,
    Command,
    Event,
    Export,
    JobCancelled,
    JobCommand,
    JobDone,
    JobFailed,
    Snapshot,
)
from splatstudio.settings.typed_path import typed_output

NAMELESS = ("", " ", "/", ".", "..", "a/..")


@pytest.mark.parametrize("text", NAMELESS)
def test_a_path_without_a_name_is_no_file_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="names no file"):
        typed_output(text)
    assert typed_output(" a b.ply ") == Path("a b.ply")


@pytest.mark.parametrize("text", NAMELESS)
def test_nothing_is_evaluated_or_exported_into_a_file_without_a_name(
    page: Any,  # noqa: F811
    run: Path,  # noqa: F811
    notices: list[Notice],  # noqa: F811
    submitted: list[Export],  # noqa: F811
    text: str,
) -> None:
    save_checkpoint(run, example(10))
    panel = evaluate_panel(page)
    panel._exported.value = text
    panel._do_more("Export")
    assert panel._worker.task is None and notices[-1].title == "Not started" and notices[-1].bad
    export = ExportPanel(page)
    export._path.value = text
    export._format.value = "SPZ"
    export._choose()
    export._write()
    assert submitted == [] and notices[-1].title == "Not exported" and "names no file" in notices[-1].text


def test_an_ending_is_never_the_whole_name() -> None:
    ply = next(form for form in FORMATS if form.name == "PLY")
    assert with_ending("", ply) == "" and with_ending("/", ply) == "/" and with_ending("a/", ply) == "a.ply"


@pytest.fixture
def path_page(page: Any, tmp_path: Path) -> SimpleNamespace:  # noqa: F811
    """Return the page with what the Render tab needs beside."""
    page.hotkeys = Hotkeys(page.server)
    page.viewport = SimpleNamespace(stream=lambda client: None)
    page.controller.status = Status(state="training", has_model=True)
    page.controller.model_state = lambda: ModelState(7, training=False)
    return page


@pytest.mark.parametrize("text", ["", "/"])
def test_an_emptied_field_is_filled_again_when_the_path_changes(path_page: Any, text: str) -> None:
    editor = PathEditor(Draft(CameraPath(())))
    output = OutputSection(path_page, editor, path_page.jobs)
    output.refresh()
    suggested = output._file.value
    output._file.value = text
    path_page.controller.status = Status(has_model=False)
    output.refresh()
    assert output._file.value == suggested and suggested.endswith(".mp4")


class Worker:
    """What a task is sent to."""

    def __init__(self) -> None:
        self.sent: list[Command] = []
        self.hearers: list[Callable[[Event], None]] = []

    def send(self, command: Command) -> None:
        self.sent.append(command)

    def subscribe(self, hearer: Callable[[Event], None]) -> None:
        self.hearers.append(hearer)


def test_a_picture_is_of_the_model_that_is_shown(
    path_page: Any,
    notices: list[Notice],  # noqa: F811
) -> None:
    training, shown = Worker(), Worker()
    controller = path_page.controller
    controller.send, controller.replacements = training.send, []
    board = JobBoard(controller, notices.append)
    section = PictureSection(path_page, board)
    client: Any = SimpleNamespace(camera=fake_camera())
    section._shoot(client)
    assert len(training.sent) == 1 and shown.sent == []
    # Another model beside a training that has none of its own left.
    controller.beside.worker, controller.status = shown, Status(state="failed", has_model=False)
    section.refresh()
    assert not section._take.disabled
    section._shoot(client)
    section._shoot(client)
    assert len(training.sent) == 1 and len(shown.sent) == 2 and len(shown.hearers) == 1
    taken = board.newest(Snapshot)
    assert taken is not None and taken.end is None
    board.cancel(taken.command.job)
    assert shown.sent[-1] == CancelJob(taken.command.job) and len(training.sent) == 1
    shown.hearers[0](JobCancelled(taken.command.job))
    assert "cancelled" in notices[-1].title and notices[-1].text == "Nothing of it was kept."
    first: Any = shown.sent[0]
    shown.hearers[0](JobCancelled(first.job))
    assert notices[-1].text == "Its model was taken out of the view; nothing of the file was kept."
    controller.beside.worker = None
    section.refresh()
    assert section._take.disabled


@pytest.fixture
def gui() -> Iterator[viser.GuiApi]:
    server = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    yield server.gui
    server.stop()


@pytest.mark.parametrize("end", [None, JobFailed(2, "no"), JobCancelled(2)])
def test_a_download_belongs_to_the_task_that_is_shown(gui: viser.GuiApi, tmp_path: Path, end: Any) -> None:
    controller: Any = SimpleNamespace(
        status=Status(has_model=True), send=lambda command: None, replacements=[]
    )
    board = JobBoard(controller, lambda notice: None)
    bar = JobBar(gui, board, Export)
    first: JobCommand = Export(tmp_path / "a.ply")
    board.submit(first)
    board.follow(JobDone(1, tmp_path / "a.ply", 100))
    bar.refresh()
    assert bar._download.visible and "a.ply" in bar._download.label
    board.submit(Export(tmp_path / "b.ply"))
    if end is not None:
        board.follow(end)
    bar.refresh()
    assert not bar._download.visible
    board.submit(Export(tmp_path / "c.ply"))
    board.follow(JobDone(3, tmp_path / "c.ply", 100))
    if end is None:
        board.follow(JobDone(2, tmp_path / "b.ply", 100))
    bar.refresh()
    assert bar._download.visible and "c.ply" in bar._download.label


def test_what_is_behind_another_model_is_said_as_it_is(path_page: Any) -> None:
    controller = path_page.controller
    controller.beside.path = Path("other.ply")
    bar = BesideBar(path_page)
    said = {
        Status(state="training", has_model=True): "goes on behind it",
        Status(state="paused", has_model=True): "is paused",
        Status(state="finished", has_model=True): "has stopped",
        Status(state="ended"): "has ended",
        Status(state="failed"): "has failed",
    }
    for status, words in said.items():
        controller.status = status
        bar.refresh()
        text = bar._text.content
        assert bar._text.visible and "other.ply" in text and words in text, text
        assert ("videos and exports" in text) == status.has_model
        assert ("goes on" in text) == (status.state == "training")
    controller.beside.path = None
    bar.refresh()
    assert not bar._text.visible and not bar._back.visible


class TestInABrowser:
    """What a page runs, twice: as after each reconnection."""

    pytestmark = PAGE_TEST

    def test_a_page_that_reconnects_is_dressed_once(self, browser: Any) -> None:
        blank = browser.new_page()
        blank.evaluate(
            """() => {
              window.made = [];
              window.setInterval = () => window.made.push("interval");
              document.addEventListener = kind => window.made.push(kind);
              document.body.addEventListener = kind => window.made.push(kind);
            }"""
        )
        made = []
        for _ in range(2):
            for source in viser_private.PAGE_SCRIPTS:
                blank.evaluate(f"() => {{ {source} }}")
            made.append(
                (blank.evaluate("window.made"), blank.evaluate("document.querySelectorAll('style').length"))
            )
        assert (
            made[0] == made[1]
            and {"click", "interval", "keydown", "keyup"} < set(made[0][0])
            and made[0][1] > 0
        )
        blank.close()
