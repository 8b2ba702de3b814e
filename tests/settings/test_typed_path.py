"""Paths as people type them: what is no path is said in a sentence, wherever it is typed."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import viser
from path_builder import random_keys

from splatstudio.gui.state.controller import Notice
from splatstudio.gui.state.keyframes import PathEditor
from splatstudio.gui.state.project import open_project
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.gui.tabs.export import CHOICES, ExportPanel
from splatstudio.gui.tabs.model_list import ModelList
from splatstudio.gui.tabs.render_output import OutputSection
from splatstudio.scene import load_scene
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


def section(kind: Any, **parts: Any) -> tuple[Any, list[Notice]]:
    """Return a part of the page without a page, and what it tells."""
    made, notices = kind.__new__(kind), []
    page = SimpleNamespace(notify=notices.append)
    vars(made).update({"_page": page, "_notify": notices.append, **parts})
    return made, notices


def refused(notices: list[Notice]) -> bool:
    return len(notices) == 1 and notices[0].bad and "~no-such-user-here" in notices[0].text


def test_fields_of_the_page_say_it_and_start_nothing() -> None:
    sent: list[Any] = []
    board = SimpleNamespace(submit=lambda command, then=None: sent.append(command))
    editor = PathEditor()
    for key in random_keys(1, 2):
        editor.add(key)
    field = SimpleNamespace(value=NOBODY)
    render, told = section(OutputSection, _editor=editor, _file=field, _board=board)
    render._start(cast(viser.ClientHandle, object()))
    assert refused(told)
    controller = SimpleNamespace(project=SimpleNamespace(scene=None))
    chosen = SimpleNamespace(value=next(iter(CHOICES)))
    export, told = section(ExportPanel, _path=field, _controller=controller, _jobs=board, _format=chosen)
    export._write()
    assert refused(told)
    evaluate, told = section(EvaluatePanel)
    assert evaluate._output(NOBODY) is None and refused(told)
    assert not sent


def test_a_folder_of_models_that_is_none_is_said_once() -> None:
    run = SimpleNamespace(options=("old",), value="old")
    panel, told = section(
        ModelList,
        _root=SimpleNamespace(value=NOBODY),
        _run=run,
        _folders=(Path("old"),),
        selected=None,
        _refused="",
        _lock=threading.RLock(),
        _draw=lambda: None,
    )
    panel.scan()
    panel.scan()
    assert refused(told) and run.options == ("–",) and panel.entries == ()
