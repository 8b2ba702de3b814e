"""Runs are renamed and deleted on the start page: by who sees the page alone, and after being asked."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from gate_client import get
from start_visitor import ANY_PORT, Visitor, write_step

from splatstudio.cli.start import start_content
from splatstudio.files.recent import recent_paths, remember
from splatstudio.files.run import Run, RunLock, figures_of_run
from splatstudio.gui.server.start_page import OpenRequest, StartPage
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def folder(tmp_path: Path, own_list: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder where the command was started, with two runs, one of which was opened before."""
    home = tmp_path / "home"
    home.mkdir()
    monkeypatch.chdir(home)
    (home / "photos").mkdir()
    for name in ("one", "two"):
        Run.create(home / "runs" / name, home / "photos", TrainConfig())
    write_step(home / "runs" / "one", 12000)
    assert remember(home / "runs" / "one" / "ckpts" / "step_00012000") == ""
    return home


@pytest.fixture
def page(folder: Path) -> Iterator[StartPage]:
    made = StartPage(ANY_PORT, start_content)
    yield made
    made.close()


def offered(visitor: Visitor) -> set[str]:
    found = re.findall(r'<button name="open" value="([^"]+)" class="entry">', visitor.get()[1])
    return {Path(html.unescape(path)).name for path in found} - {"demo"}


def test_deleting_asks_once_and_says_what_goes(page: StartPage, folder: Path) -> None:
    visitor = Visitor(page)
    front = visitor.get()[1]
    ways = [html.unescape(way) for way in re.findall(r'href="(/run[^"]*)"', front)]
    way = next(way for way in ways if way.endswith("one"))
    status, asked = visitor.get(way)
    assert status == 200 and (folder / "runs" / "one").exists(), "the first click deletes nothing"
    for told in ("12,000", "photos stay", str(folder / "photos"), "Delete this run", ">Size<"):
        assert told in asked, told
    assert visitor.ask("/run", do="delete", key=visitor.key, folder=str(folder / "runs/one"))[0] == 303
    assert not (folder / "runs" / "one").exists() and (folder / "photos").exists()
    assert offered(visitor) == {"two"}
    assert visitor.ask("/run", do="delete", key=visitor.key, folder=str(folder / "runs/one"))[0] == 404


def test_what_was_done_is_told_once(page: StartPage, folder: Path) -> None:
    visitor = Visitor(page)
    assert visitor.ask("/run", do="delete", key=visitor.key, folder="runs/two")[0] == 303
    assert "The run two is deleted." in visitor.get()[1]
    assert "The run two is deleted." not in visitor.get()[1]


def test_a_renamed_run_is_offered_under_its_new_name(page: StartPage, folder: Path) -> None:
    visitor = Visitor(page)
    asked = {"do": "rename", "key": visitor.key, "folder": str(folder / "runs" / "one")}
    refused = "cannot be the name of a run"
    for name, why in (("two", "There is a two beside one already"), ("<b>first", refused)):
        assert visitor.ask("/run", **asked, name=name)[0] == 303
        told = visitor.ask("/run", folder=asked["folder"])[1]
        assert why in told and f'value="{html.escape(name)}"' in told, "it can be mended where it was typed"
        assert why not in visitor.get()[1] and why not in visitor.ask("/run", folder="runs/two")[1]
    assert visitor.ask("/run", **asked, name="first & best")[0] == 303
    text = visitor.get()[1]
    assert "The run one is called first &amp; best now." in text
    assert offered(visitor) >= {"two", "first & best"} and (folder / "runs" / "first & best").is_dir()
    assert recent_paths() == (folder / "runs" / "first & best" / "ckpts" / "step_00012000",)


def test_a_run_that_is_trained_stays(page: StartPage, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("splatstudio.files.run.PATIENCE_SECONDS", 0.0)
    visitor, lock = Visitor(page), RunLock(folder / "runs" / "two")
    for deed, place in (("delete", "/"), ("rename", "/run?folder=runs/two")):
        assert visitor.ask("/run", do=deed, name="x", key=visitor.key, folder="runs/two")[0] == 303
        assert "is in use by process" in visitor.get(place)[1]
        assert "is in use by process" in visitor.get(place)[1], "also after a reload"
    monkeypatch.setattr("splatstudio.gui.server.start_page._TOLD_SECONDS", 0.0)
    for place in ("/", "/run?folder=runs/two"):
        assert "is in use by process" not in visitor.get(place)[1], "but not for ever"
    lock.release()
    assert (folder / "runs" / "two" / "run.json").exists()


def test_a_run_with_other_files_says_why_it_stays(page: StartPage, folder: Path) -> None:
    (folder / "runs" / "two" / "notes.txt").write_text("mine")
    visitor = Visitor(page)
    text = visitor.ask("/run", folder="runs/two")[1]
    assert "holds what no run writes (notes.txt)" in text and "Delete this run" not in text
    assert visitor.ask("/run", do="delete", key=visitor.key, folder="runs/two")[0] == 303
    assert (folder / "runs" / "two" / "notes.txt").exists()


def test_who_lacks_the_key_or_the_secret_changes_nothing(page: StartPage, folder: Path) -> None:
    visitor = Visitor(page)
    deed = "/run?do=delete&folder=runs/one"
    assert visitor.get(deed)[0] == 403
    assert visitor.get(f"{deed}&key=wrong", Origin=f"http://localhost:{page.port}")[0] == 403
    key = visitor.key
    for status, headers in (
        (403, {}),
        (403, {"Cookie": visitor.cookie, "Origin": "http://evil.example"}),
        (421, {"Cookie": visitor.cookie, "Host": "evil.example"}),
    ):
        answer = get(page.port, f"{deed}&key={key}", **headers)
        assert answer[0] == status and "default-src 'none'" in answer[1]["content-security-policy"]
        assert get(page.port, "/run?folder=runs/one", **headers)[0] == status
    assert (folder / "runs" / "one" / "run.json").exists()


def test_only_runs_within_bounds_and_no_links_are_changed(page: StartPage, folder: Path) -> None:
    outside = Run.create(folder.parent / "outside", folder, TrainConfig()).path
    (folder / "runs" / "link").symlink_to(outside)
    (folder / "runs" / "near").symlink_to(folder / "runs" / "one")
    changeable = {entry.path.name: entry.is_run for entry in start_content().lists[0][1]}
    assert changeable == {"one": True, "two": True, "link": False, "near": False}
    visitor = Visitor(page)
    for path in (
        outside,
        "runs/link",
        "runs/near",
        "runs/../../outside",
        "photos",
        "",
        "/",
        "a\0b",
        "runs/none",
    ):
        assert visitor.ask("/run", folder=str(path))[0] == 404, path
        for deed in ("delete", "rename"):
            visitor.ask("/run", do=deed, name="taken", key=visitor.key, folder=str(path))
    assert (outside / "run.json").exists() and (folder / "photos").is_dir()
    assert {path.name for path in (folder / "runs").iterdir()} == {"one", "two", "link", "near"}


def test_a_reload_shows_what_has_come_and_got_on(
    page: StartPage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("splatstudio.gui.server.start_page._FRESH_SECONDS", 0.0)
    visitor = Visitor(page)
    recent = "step_00012000"
    assert offered(visitor) == {"one", "two", recent}
    run = Run.create(folder / "runs" / "three", folder / "photos", TrainConfig()).path
    assert offered(visitor) == {"one", "two", "three", recent}
    write_step(run, 300)
    assert "step 300" in visitor.get()[1]
    (folder / "runs").rename(folder / "away")
    assert offered(visitor) == set()
    monkeypatch.setattr("splatstudio.gui.server.start_page._FRESH_SECONDS", 60.0)
    (folder / "away").rename(folder / "runs")
    assert offered(visitor) == set(), "the disk is not looked at for each of many reloads"


def test_runs_say_how_far_and_how_good_they_are(folder: Path) -> None:
    scores = folder / "runs" / "one" / "eval"
    scores.mkdir()
    (scores / "step_00009000.json").write_text('{"psnr": 27.126}')
    (scores / "step_00013000.json").write_text('{"psnr": 11.0}')  # of a step that is lost
    write_step(folder / "runs" / "two", 7)
    page = StartPage(ANY_PORT, start_content)
    try:
        text = html.unescape(Visitor(page).get()[1])
    finally:
        page.close()
    assert "step 12,000 · 27.13 dB at step 9,000" in text, "of an earlier one than the model"
    assert "step 7 ·" in text and "11.00" not in text
    (scores / "step_00012000.json").write_text('{"psnr": 27.5}')
    assert figures_of_run(folder / "runs" / "one") == "step 12,000 · 27.50 dB"


def test_a_damaged_checkpoint_is_not_told_as_what_was_saved(page: StartPage, folder: Path) -> None:
    newest, before = write_step(folder / "runs" / "two", 900), write_step(folder / "runs" / "two", 300)
    visitor = Visitor(page)

    def told() -> tuple[str, str]:
        listed = visitor.ask("/browse", folder=str(folder / "runs"))[1]
        found = re.search(r"two</a><span class=\"detail\">([^<]*)<", listed)
        assert found is not None
        return figures_of_run(folder / "runs" / "two"), found[1]

    assert told() == ("step 900", "step 900")
    (newest / "rank00000-of-00001.safetensors").write_bytes(b"1234")
    assert told() == ("step 300 (step 900 is damaged)",) * 2
    (before / "manifest.json").unlink()
    assert told() == ("step 900 is damaged",) * 2


def test_runs_of_the_same_scene_come_first_in_a_comparison(page: StartPage, folder: Path) -> None:
    (folder / "flowers").mkdir()
    for name, scene in (("a", "flowers"), ("b", "photos"), ("c", "flowers")):
        run = Run.create(folder / "runs" / name, folder / scene, TrainConfig()).path
        write_step(run, 300)
    text = Visitor(page).ask("/compare", folder=str(folder / "runs" / "two"))[1]
    beside = re.findall(r'name="beside" value="([^"]+)"', text)
    names = [Path(path).name for path in beside]
    assert set(names[:2]) == {"one", "b"} and set(names[2:]) == {"a", "c"}
    assert text.count("another scene, flowers") == 2


def test_runs_beside_one_have_pictures_wherever_they_lie(folder: Path) -> None:
    for name in ("near", "far"):
        run = Run.create(folder / "elsewhere" / name, folder / "photos", TrainConfig()).path
        write_step(run, 300)
    assert remember(folder / "elsewhere" / "near") == ""
    page = StartPage(ANY_PORT, start_content)
    try:
        visitor = Visitor(page)
        text = visitor.ask("/compare", folder=str(folder / "elsewhere" / "near"))[1]
        assert "elsewhere/far" in text
        pictures = re.findall(r'<img src="([^"]+)"', text)
        assert len(pictures) == 2 and {visitor.data(html.unescape(it)).status for it in pictures} == {200}
    finally:
        page.close()


def test_nothing_is_changed_while_something_is_being_opened(page: StartPage, folder: Path) -> None:
    visitor = Visitor(page)
    key = visitor.key
    visitor.choose(open="runs/one")
    assert "Opening" in visitor.ask("/run", do="delete", key=key, folder="runs/one")[1]
    assert (folder / "runs" / "one").exists()


def test_a_run_is_compared_with_another_that_has_a_model(page: StartPage, folder: Path) -> None:
    far = Run.create(folder / "old" / "far", folder / "photos", TrainConfig()).path
    write_step(far, 300)
    visitor = Visitor(page)
    ways = [html.unescape(way) for way in re.findall(r'href="(/compare[^"]*)"', visitor.get()[1])]
    assert len(ways) == 1 and ways[0].endswith("two"), "the other run has none beside it with a model"
    status, text = visitor.get(ways[0])
    beside = re.findall(r'name="beside" value="([^"]+)"', text)
    assert status == 200 and beside == ["runs/one"], "two has no model, and far is in another folder"
    assert "step 12,000" in text and "<img" in text
    only = visitor.ask("/compare", folder=str(folder / "runs" / "one"))[1]
    assert "No other run with a saved model" in only
    listed = visitor.ask("/browse", folder=str(folder / "runs"))[1]
    assert "Compare two" in listed and "Compare one" not in listed
    assert visitor.ask("/compare", folder=str(folder / "photos"))[0] == 404
    assert visitor.choose(open="runs/two", beside="runs/one") == 303
    assert page.next_request() == OpenRequest("runs/two", train=False, beside="runs/one")
