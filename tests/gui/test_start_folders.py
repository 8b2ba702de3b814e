"""The folders on the start page: what they hold, what it is, and that nothing outside of them is shown."""

from __future__ import annotations

import errno
import html
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gate_client import get
from scene_builder import tiny_scene, write_colmap, write_pictures, write_transforms
from start_visitor import ANY_PORT, Visitor, write_step

from splatstudio.cli.start import start_content
from splatstudio.files.recent import remember
from splatstudio.files.run import Run
from splatstudio.formats import FORMATS
from splatstudio.gui.server import folder_listing
from splatstudio.gui.server.folder_listing import MODELS, Bounds, list_folder
from splatstudio.gui.server.start_page import OpenRequest, StartPage
from splatstudio.gui.server.start_views import StartContent
from splatstudio.settings.config import TrainConfig

TINY = tiny_scene(3, num_points=4)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder where the command was started, beside others that are none of its business."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture
def page(home: Path) -> Iterator[StartPage]:
    made = StartPage(ANY_PORT, lambda: StartContent((), home / "demo", home))
    yield made
    made.close()


def kinds(folder: Path, *named: Path) -> dict[str, str]:
    listing = list_folder(folder, Bounds.around((folder, *named)))
    return {entry.path.name: entry.kind for entry in listing.entries}


def links(text: str) -> list[str]:
    return [html.unescape(link) for link in re.findall(r'href="(/browse[^"]*)"', text)]


def opened(text: str) -> list[str]:
    """Return the names of what has a button to open it."""
    found = re.findall(r'name="open" value="([^"]+)"', text)
    return [Path(html.unescape(path)).name for path in found]


def test_what_lies_in_a_folder_is_told_by_names_alone(home: Path) -> None:
    write_colmap(home / "posed", TINY)
    write_transforms(home / "nerfstudio", TINY)
    write_pictures(home / "photos", TINY)
    write_pictures(home / "kept" / "input", TINY)
    run = Run.create(home / "runs" / "one", home / "posed", TrainConfig())
    write_step(run.path, 12000)
    write_step(run.path, 300)
    (home / "other" / "point_cloud").mkdir(parents=True)
    (home / "other" / "cfg_args").write_text("")
    for name in (
        "film.MOV",
        "a.compressed.ply",
        "b.spz",
        "scene.tar.gz",
        "notes.txt",
        "photo.jpg",
        ".hidden.ply",
    ):
        (home / name).write_bytes(bytes(2_500_000))
    os.mkfifo(home / "pipe.ply")
    assert kinds(home) == {
        "kept": "Photos",
        "nerfstudio": "Scene",
        "other": "Model",
        "photos": "Photos",
        "posed": "Scene",
        "runs": "Folder",
        "a.compressed.ply": "Model",
        "b.spz": "Model",
        "film.MOV": "Video",
        "scene.tar.gz": "Archive",
    }
    bounds = Bounds.around([home])
    (one,) = list_folder(home / "runs", bounds).entries
    assert (one.kind, one.detail, one.can_train) == ("Run", "step 12,000", False)
    listing = list_folder(home, bounds)
    details = {entry.path.name: entry.detail for entry in listing.entries}
    assert details["photos"] == "3 photos" and details["b.spz"] == "2.5 MB"
    assert listing.num_pictures == 1 and "COLMAP" in details["posed"]
    inside = list_folder(home / "posed", bounds)
    assert inside.here.kind == "Scene" and inside.here.can_train
    assert {entry.kind for entry in inside.entries} == {"Folder"}, "it is opened as a whole"


def test_every_file_of_splats_that_can_be_read_is_offered() -> None:
    endings = {ending for form in FORMATS if form.read for ending in form.endings}
    assert endings and all(ending.endswith(MODELS) for ending in endings)
    assert set(MODELS) <= endings


def test_names_are_sorted_as_people_do_and_shown_a_part_at_a_time(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_listing, "MOST_SHOWN", 4)
    for number in range(1, 11):
        (home / f"scan{number}").mkdir()
    bounds = Bounds.around([home])
    listing = list_folder(home, bounds)
    assert [entry.path.name for entry in listing.entries] == ["scan1", "scan2", "scan3", "scan4"]
    assert listing.total == 10 and not listing.cut
    assert [entry.path.name for entry in list_folder(home, bounds, 8).entries] == ["scan9", "scan10"]
    assert list_folder(home, bounds, 10**9).first == 8, "what is asked for beyond the end is the last part"
    monkeypatch.setattr(folder_listing, "MOST_NAMES", 6)
    assert list_folder(home, bounds).cut and list_folder(home, bounds).total == 6


def test_a_slow_disk_gives_plain_folders(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_colmap(home / "scene", TINY)
    monkeypatch.setattr(folder_listing, "LOOK_SECONDS", -1.0)
    assert kinds(home) == {"scene": "Folder"}


def test_the_page_goes_down_and_up_and_never_above_where_it_began(page: StartPage, home: Path) -> None:
    write_colmap(home / "scans" / "to&do <1>", TINY)
    visitor = Visitor(page)
    assert '"/browse"' in visitor.get()[1]
    status, top = visitor.get("/browse")
    (down,) = links(top)
    assert status == 200 and "Folder" in top and opened(top) == []
    scans = visitor.get(down)[1]
    assert opened(scans) == ["to&do <1>"] and "to&amp;do &lt;1&gt;" in scans and "<1>" not in scans
    assert links(scans)[0] == f"/browse?folder={str(home).replace('/', '%2F')}", "the way up"
    assert "Start training" in scans and "camera poses of COLMAP" in scans
    scene = visitor.get(links(scans)[1])[1]
    assert "This folder: Scene" in scene and opened(scene) == ["to&do <1>"]
    for outside in (home.parent, Path("/"), home / "..", home / "scans/../..", home / "none", Path("/etc")):
        status, text = visitor.ask("/browse", folder=str(outside))
        assert status == 404 and "There is no such folder" in text, outside
    assert visitor.ask("/browse", folder="a\0b")[0] == 404
    assert visitor.ask("/browse", folder=str(home), **{"from": "x" * 50})[0] == 200
    assert visitor.get("/browse/etc")[0] == 404


def test_links_lead_nowhere_else_but_to_what_was_opened_before(page: StartPage, home: Path) -> None:
    other = write_colmap(home.parent / "elsewhere", TINY)
    (home.parent / "model.ply").write_bytes(b"ply")
    inside = write_colmap(home / "real", TINY)
    for name, target in (("away", other), ("up", home.parent), ("near", inside), ("loop", home / "loop")):
        (home / name).symlink_to(target)
    (home / "far.ply").symlink_to(home.parent / "model.ply")
    shown = kinds(home)
    assert shown == {"away": "Closed", "near": "Scene", "real": "Scene", "up": "Closed", "far.ply": "Closed"}
    visitor = Visitor(page)
    text = visitor.get("/browse")[1]
    assert opened(text) == ["near", "real"] and not any(
        "away" in link or "up" in link for link in links(text)
    )
    assert visitor.ask("/browse", folder=str(home / "away"))[0] == 404
    assert visitor.ask("/browse", folder=str(home / "up" / "elsewhere"))[0] == 404
    assert kinds(home, other)["away"] == "Scene"
    listing = list_folder(other, Bounds.around((home, other)))
    assert listing.here.kind == "Scene" and Bounds.around((home, other)).above(other) == ()


def test_what_was_opened_before_may_be_browsed(own_folder: Path, own_list: Path, blob_folder: Path) -> None:
    assert start_content().bounds.inside(blob_folder) is None or blob_folder.is_relative_to(own_folder)
    assert remember(blob_folder) == ""
    bounds = start_content().bounds
    assert bounds.inside(blob_folder / "images") == (blob_folder / "images").resolve()
    named = start_content([own_folder.parent])
    assert named.bounds.inside(own_folder.parent) == own_folder.parent.resolve()


def test_a_choice_in_a_folder_is_opened_or_trained(page: StartPage, home: Path) -> None:
    scene = write_colmap(home / "scene", TINY)
    visitor = Visitor(page)
    assert visitor.ask("/", open=str(scene), train="1", key="wrong")[0] == 403
    assert visitor.choose(open=str(scene), train="1") == 303
    assert page.next_request() == OpenRequest(str(scene), train=True)
    status, text = visitor.get("/browse")
    assert status == 200 and "Opening" in text and "real" not in text, "it is told there, too"


def test_strangers_see_no_folders(page: StartPage, home: Path) -> None:
    (home / "secret").mkdir()
    cookie = Visitor(page).cookie
    for status, headers in (
        (403, {}),
        (403, {"Cookie": cookie.partition("=")[0] + "=wrong"}),
        (421, {"Cookie": cookie, "Host": "evil.example"}),
        (403, {"Cookie": cookie, "Origin": "http://evil.example"}),
    ):
        answered, told, text = get(page.port, "/browse", **headers)
        assert answered == status and "secret" not in text, headers
        assert "default-src 'none'" in told["content-security-policy"]
    answered, told, text = get(page.port, "/browse", Cookie=cookie)
    assert answered == 200 and "secret" in text and "default-src 'none'" in told["content-security-policy"]


def test_a_folder_that_may_not_be_read_is_told(
    page: StartPage, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "closed").mkdir()
    visitor, scandir = Visitor(page), os.scandir

    def refuse(path: Path) -> Any:
        if path == home / "closed":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert kinds(home) == {"closed": "Closed"}
    status, text = visitor.ask("/browse", folder=str(home / "closed"))
    assert status == 403 and "Permission denied" in text


def test_a_folder_whose_own_name_is_no_text_is_browsed(tmp_path: Path) -> None:
    start = tmp_path / os.fsdecode(b"half-\xff")
    write_colmap(tmp_path / "text" / "scans" / "one", TINY)
    (tmp_path / "text").rename(start)  # OpenCV dies of such a name
    page = StartPage(ANY_PORT, lambda: StartContent((), start / "demo", start))
    try:
        visitor = Visitor(page)
        (scans,) = links(visitor.get("/browse")[1])
        assert "%FF" in scans and opened(visitor.get(scans)[1]) == ["one"]
        assert visitor.get("/browse?folder=/\xe9")[0] == 404
        assert visitor.ask("/", open="x", key="\xe9")[0] == 403
    finally:
        page.close()


def test_names_that_are_no_text_are_counted(page: StartPage, home: Path) -> None:
    os.mkdir(os.fsencode(home) + b"/half-\xff")
    assert list_folder(home, Bounds.around([home])).num_unnamed == 1
    assert "One entry has a name that is no text" in Visitor(page).get("/browse")[1]
