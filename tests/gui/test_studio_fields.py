"""What panels do with emptied fields, with a task after another, and of which model they speak."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gui_parts import evaluate_panel
from studio_page import PAGE_TEST
from test_checkpoint import example

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.formats import FORMATS
from splatstudio.gui.server import viser_private
from splatstudio.gui.state.camera_paths import Draft, PathEditor
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.tabs.export import ExportPanel, with_ending
from splatstudio.gui.tabs.render_output import OutputSection
from splatstudio.settings.typed_path import typed_output

NAMELESS = ("", " ", "/", ".", "..", "a/..")


@pytest.mark.parametrize("text", NAMELESS)
def test_a_path_without_a_name_is_no_file_to_write(text: str) -> None:
    with pytest.raises(ValueError, match="names no file"):
        typed_output(text)
    assert typed_output(" a b.ply ") == Path("a b.ply")


@pytest.mark.parametrize("text", NAMELESS)
def test_nothing_is_evaluated_or_exported_into_a_file_without_a_name(
    page: Any,
    run: Path,
    notices: list[Notice],
    sent: list[Any],
    text: str,
) -> None:
    save_checkpoint(run, example(10))
    panel = evaluate_panel(page)
    panel._exported.value = text
    panel._do_more("Export")
    assert not page.tasks.is_busy("evaluate") and notices[-1].title == "Not started" and notices[-1].bad
    export = ExportPanel(page)
    export._path.value = text
    export._format.value = "SPZ"
    export._choose()
    export._write()
    assert sent == [] and notices[-1].title == "Not exported" and "names no file" in notices[-1].text


def test_an_ending_is_never_the_whole_name() -> None:
    ply = next(form for form in FORMATS if form.name == "PLY")
    assert with_ending("", ply) == "" and with_ending("/", ply) == "/" and with_ending("a/", ply) == "a.ply"


@pytest.mark.parametrize("text", ["", "/"])
def test_an_emptied_field_is_filled_again_when_the_path_changes(page: Any, text: str) -> None:
    editor = PathEditor(Draft(CameraPath(())))
    output = OutputSection(page, editor)
    output.refresh()
    suggested = output._file.value
    output._file.value = text
    page.controller.status = Status(has_model=False)
    output.refresh()
    assert output._file.value == suggested and suggested.endswith(".mp4")


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
            blank.evaluate(f"() => {{ {viser_private.page_script()} }}")
            made.append(
                (blank.evaluate("window.made"), blank.evaluate("document.querySelectorAll('style').length"))
            )
        assert (
            made[0] == made[1]
            and {"click", "interval", "keydown", "keyup"} < set(made[0][0])
            and made[0][1] > 0
        )
        blank.close()
