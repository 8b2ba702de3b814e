"""Paths as people type them: what is no path is said in a sentence, wherever it is typed."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
import viser
from gui_parts import as_user, evaluate_panel
from path_builder import random_keys

from splatstudio.gui.panel import Page
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.scene_overlay import PathEditor
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.export import ExportPanel
from splatstudio.gui.tabs.render import OutputSection
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig, with_whole_paths
from splatstudio.settings.typed_path import typed_path

NOBODY = "~no-such-user-here/model.ply"
SENTENCE = "the folder ~no-such-user-here of ~no-such-user-here/.* is not known"


def test_a_typed_path_is_a_path_or_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert typed_path("~/a b.ply") == tmp_path / "a b.ply"
    assert typed_path("runs/~x") == Path("runs/~x") and typed_path(Path("/a")) == Path("/a")
    with pytest.raises(ValueError, match=SENTENCE):
        typed_path(NOBODY)
    with pytest.raises(ValueError, match="NUL"):
        typed_path("a\0b")


def test_scene_project_and_first_model_are_refused_by_it() -> None:
    for use in (
        lambda: load_scene(NOBODY),
        lambda: open_project(Path(NOBODY), TrainConfig(), None),
        lambda: with_whole_paths(TrainConfig(init=NOBODY), Path()),
    ):
        with pytest.raises(ValueError, match=SENTENCE):
            use()


def refused(notices: list[Notice]) -> bool:
    return len(notices) == 1 and notices[0].bad and "~no-such-user-here" in notices[0].text


def test_fields_of_the_page_say_it_and_start_nothing(
    page: Page, notices: list[Notice], sent: list[Any]
) -> None:
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    render, export, evaluate = OutputSection(page, editor), ExportPanel(page), evaluate_panel(page)
    render._file.value = export._path.value = NOBODY
    client = cast(viser.ClientHandle, object())
    for start in (lambda: render._start(client), export._write, lambda: evaluate._output(NOBODY)):
        with pytest.raises(ValueError, match=SENTENCE):
            start()
    assert not notices and not sent


def test_a_folder_of_models_that_is_none_is_said_once(page: Page, notices: list[Notice]) -> None:
    panel = evaluate_panel(page)
    as_user(panel._list._root, NOBODY)
    for _ in range(2):
        panel.look()
        panel.refresh()
    assert refused(notices) and panel._list._run.options == ("–",) and panel._list.entries == ()
