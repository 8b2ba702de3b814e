"""Values become the declared type, or a sentence says what is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, cast

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
from splatstudio.settings.setting import typed_path, typed_value

COLOR = tuple[float, float, float]
CHOICE = Literal["auto", "fp32"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float, 3, 3.0),
        (int | None, None, None),
        (COLOR, [0, 0.5, 1], (0.0, 0.5, 1.0)),
        (tuple[str, ...], ("a", "b"), ("a", "b")),
        (CHOICE, "auto", "auto"),
    ],
)
def test_values_of_the_declared_type_are_taken(kind: Any, value: Any, expected: Any) -> None:
    result = typed_value(kind, value, "it")
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        (float, ".3", 0.3),
        (float, "+0.3", 0.3),
        (float, "-.5", -0.5),
        (float, "5.", 5.0),
        (float, "3e-1", 0.3),
        (float | None, " .5 ", 0.5),
        (int, "+5", 5),
        (COLOR, [".1", "-.2", "3"], (0.1, -0.2, 3.0)),
        (int | Literal["auto"], "auto", "auto"),
        (Path, "+5.", Path("+5.")),
        (str, "+5", "+5"),
        (tuple[str, ...], ["+5", ".5"], ("+5", ".5")),
    ],
)
def test_numbers_are_taken_as_people_type_them(kind: Any, text: Any, value: Any) -> None:
    assert typed_value(kind, text, "it", as_typed=True) == value


@pytest.mark.parametrize("text", ["", ".", "+", "1..2", "e5", "0x1", "1,5"])
def test_what_spells_no_number_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="it must be a number"):
        typed_value(float, text, "it", as_typed=True)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, 1.0, "a whole number"),
        (int, True, "a whole number"),
        (float, "1", "a number"),
        (bool, 1, "true or false"),
        (str, 1, "a text"),
        (COLOR, [0.0, 1.0], "3 numbers"),
        (tuple[int, ...], [1, "a"], "whole numbers"),
        (CHOICE, "fp16", "one of auto, fp32"),
        (int | CHOICE, "many", "a whole number or one of auto, fp32"),
    ],
)
def test_others_are_refused_with_what_is_wanted(kind: Any, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        typed_value(kind, value, "setting it")
    assert str(caught.value) == f"setting it must be {wanted}, not {value!r}"


def test_what_somebody_typed_stands_for_what_it_spells() -> None:
    assert typed_value(int, "12", "it", as_typed=True) == 12
    assert typed_value(float, "1e-3", "it", as_typed=True) == 1e-3
    assert typed_value(int | CHOICE, "auto", "it", as_typed=True) == "auto"
    with pytest.raises(ValueError, match=r"it must be a whole number, not '1\.5'"):
        typed_value(int, "1.5", "it", as_typed=True)


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
