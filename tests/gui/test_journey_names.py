"""Names of strangers in a real browser, under TLS: nothing of them is executed, and all is drawn as text."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from gui_parts import trained_run
from studio_page import MANY, PAGE_TEST, Screen, close_screen, row, screen_of

from splatstudio.cameras.camera_path import CameraPath
from splatstudio.formats import write_gaussians
from splatstudio.gui.app import Studio
from splatstudio.gui.server.access import Listen
from splatstudio.gui.server.start_page import StartPage
from splatstudio.gui.server.start_views import Entry, StartContent
from splatstudio.gui.state.scene_overlay import PathStore
from splatstudio.models.model import load_model
from splatstudio.runtime.channel.tls import TlsFiles
from splatstudio.scene.load import load_scene

pytestmark = PAGE_TEST

IMAGE = "<img src=x onerror=window.ran=1>"
# No name of a file can hold a slash: the ends of elements stand in folders.
PHOTOS = (
    f"a{IMAGE}.png",
    "b<script>window.ran=1<",
    "c\"'`><svg onload=window.ran=1>.png",
    "d😀🏳\u200d🌈e\u0301.png",
    "e\u202egnp.live\u202c\u200f.png",
    "f" + "é" * 125 + ".png",
    "g${window.ran=1}{{constructor.constructor('window.ran=1')()}}.png",
    "h&lt;b&gt;&amp;%3Cb%3E<b>bold.png",
    "i<iframe srcdoc='<script>parent.ran=1<",
)
SLASHED = {PHOTOS[1]: PHOTOS[1] + "/script>.png", PHOTOS[8]: PHOTOS[8] + "/script>'>.png"}


def hostile_scene(folder: Path, blobs: Path) -> tuple[Path, list[str]]:
    """Copy the scene of blobs below `folder`, all that a stranger may name being named so."""
    scene = folder / f"s{IMAGE}\"'😀\u202e"
    shutil.copytree(blobs, scene)
    told = scene / "sparse" / "0" / "images.txt"
    text, names = told.read_text(), []
    for number, photo in enumerate(PHOTOS, start=1):
        name = SLASHED.get(photo, photo)
        place = scene / "images" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (scene / "images" / f"view_{number:02d}.png").rename(place)
        text = text.replace(f"view_{number:02d}.png", name)
        names.append(name)
    told.write_text(text)
    return scene, names


def nothing_ran(page: Any) -> None:
    assert page.evaluate("window.ran") is None
    assert page.locator('img[src="x"], svg[onload], iframe[srcdoc]').count() == 0


def test_names_are_drawn_and_never_run(
    browser: Any, blob_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: TlsFiles
) -> None:
    monkeypatch.chdir(tmp_path)
    scene, names = hostile_scene(tmp_path, blob_folder)
    run = tmp_path / "runs" / f"r{IMAGE}é\u202e"
    checkpoint = trained_run(load_scene(scene), run)
    network = Listen("localhost", 0, tls_cert=certificate.tls_cert, tls_key=certificate.tls_key)
    studio = Studio(run, network=network, config=MANY)
    PathStore(studio.controller.project).write(CameraPath(()), f"p{IMAGE}", with_frames=False)
    screen = screen_of(browser, studio, height=900, ignore_https_errors=True)
    try:
        look_at_all_tabs(screen, names, f"{scene.name} · {run.name}")
        export_with_a_name(screen, run)
        assert screen.errors == []
    finally:
        close_screen(screen)
    open_the_exported_page(browser, checkpoint, tmp_path)
    choose_on_the_start_page(browser, [scene, run], network)


def look_at_all_tabs(screen: Screen, names: list[str], title: str) -> None:
    """See each name where it is shown, as it is written."""
    page = screen.page
    assert page.evaluate("location.protocol") == "https:"
    screen.wait(lambda: screen.text("name") == title, "the names of scene and run are in the head")
    for tab in ("Train", "View", "Evaluate", "Render", "Export", "Log"):
        screen.tab(tab)
        nothing_ran(page)
    screen.tab("Evaluate")
    row(screen, "Step 3 · ").click()
    screen.seen("Evaluate").click()
    tested = names[0]  # every eighth by name
    screen.wait(row(screen, f"{tested} · ").is_visible, "the photo's name is drawn as it is written")
    nothing_ran(page)
    row(screen, f"{tested} · ").click()
    screen.tab("View")
    screen.wait(lambda: f"At {tested}" in screen.text("standing"), "the browser stands in its camera")
    listed = page.locator(".ss-photo .text > div:first-child")
    screen.wait(lambda: sorted(listed.all_text_contents()) == sorted(names), "all names are in the list")
    for name in (names[1], names[8]):
        page.locator(".ss-photo").filter(has_text=name).first.click()
        screen.wait(lambda name=name: f"At {name}" in screen.text("standing"), name)
    nothing_ran(page)


def export_with_a_name(screen: Screen, run: Path) -> None:
    """Type such a name: the file is called so, and the news tell it as text."""
    screen.tab("Export")
    written = run / "exports" / f"x{IMAGE}.ply"
    screen.enter("File", str(written))
    screen.seen("Export PLY").click()
    screen.wait(written.exists, "it is exported")
    screen.tab("Log")
    screen.wait(lambda: written.name in screen.text("news"), "the news tell its name")
    nothing_ran(screen.page)


def open_the_exported_page(browser: Any, checkpoint: Path, folder: Path) -> None:
    """Open a web page that a model was exported to, whose title is the name of its file."""
    exported = folder / f"x{IMAGE}<title>.html"
    write_gaussians(exported, load_model(checkpoint).gaussians)
    page = browser.new_page()
    page.goto(f"file://{quote(str(exported))}")
    page.locator("canvas").first.wait_for()
    assert exported.stem in page.title()
    nothing_ran(page)


def choose_on_the_start_page(browser: Any, paths: list[Path], network: Listen) -> None:
    """See the paths that were opened last, and what failed, as text."""
    start = StartPage(
        network, lambda: StartContent([("Last", [Entry(p, IMAGE) for p in paths])], paths[0], paths[1])
    )
    page = browser.new_page(ignore_https_errors=True)
    page.goto(start.url)
    entries = page.locator("button.entry")
    texts = entries.all_text_contents()
    assert all(str(path) in text and IMAGE in text for path, text in zip(paths, texts, strict=False))
    entries.first.click()
    assert start.next_request().path == str(paths[0])
    start.show_progress(IMAGE)
    start.tell(f"{paths[0]} cannot be opened")
    page.get_by_role("alert").filter(has_text=IMAGE).wait_for()
    nothing_ran(page)
    start.close()
