"""From the start page to the studio and back again in a real browser, at one address."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from started_programs import start_program
from studio_page import CANVAS, OPENED, PAGE_TEST, TIMEOUT, WINDOW

from splatstudio.checkpoints.checkpoint import newest_checkpoint

pytestmark = PAGE_TEST


def test_a_browser_goes_to_the_studio_and_home_while_it_trains(
    browser: Any, blob_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(blob_folder, tmp_path / "scans" / "blobs")
    env = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHONUNBUFFERED": "1"}
    words = ("--no-browser", "--port", "0", "--sh-degree", "1", "--steps", "100000")
    process = start_program("-m", "splatstudio", "open", *words, cwd=tmp_path, env=env)
    tab = browser.new_page(viewport=WINDOW)
    tab.set_default_timeout(1000 * TIMEOUT)

    def button(name: str) -> Any:
        return tab.get_by_role("button", name=name, exact=True)

    try:
        while (found := re.search(r"http://\S+/\?token=\S+", line := process.stdout.readline())) is None:
            assert line, "it ended"
        tab.goto(found[0])
        tab.get_by_role("link", name="Browse this folder").click()
        tab.get_by_role("link", name="scans").click()
        tab.get_by_role("button", name="Start training of blobs").click()
        tab.wait_for_selector(CANVAS)
        tab.wait_for_function(
            """parseInt(document.querySelector('[data-splatstudio="step"]')?.textContent) > 0"""
        )
        button("Start page").click()
        button("Stay here").click()
        button("Start page").click()
        button("Save and go to the start page").click()
        row = tab.locator("button.entry").filter(has_text="runs/blobs")
        row.wait_for()
        assert newest_checkpoint(tmp_path / "runs" / "blobs") is not None, "it is saved"
        row.click()
        tab.wait_for_selector(CANVAS)
        compare_from_the_start_page(tab, tmp_path)
        drop_on_the_start_page(tab, shutil.copytree(blob_folder, tmp_path / "elsewhere" / "more blobs"))
        assert (tmp_path / "dropped" / "more blobs" / "images").is_dir()
    finally:
        tab.close()
        process.terminate()
        process.wait(120)


def compare_from_the_start_page(tab: Any, folder: Path) -> None:
    """Open a run with another one beside it, which lies elsewhere and was dropped or copied there."""
    tab.wait_for_function(OPENED)
    shutil.copytree(folder / "runs" / "blobs", folder / "runs" / "copy")
    tab.get_by_role("button", name="Start page", exact=True).click()
    tab.get_by_role("link", name="Compare copy").click()
    tab.get_by_role("button", name=re.compile("^blobs")).click()
    tab.wait_for_selector(CANVAS)
    tab.wait_for_function(OPENED)
    tab.locator(".ss-half[data-side=left]", has_text="blobs · step").wait_for()
    assert tab.locator(".ss-half[data-side=right]").inner_text().startswith("copy")
    tab.get_by_role("tab", name="Evaluate").click()
    tab.get_by_text("Compare runs", exact=True).click()
    chosen = tab.get_by_label("With", exact=True).locator("visible=true")
    chosen.wait_for()
    assert chosen.input_value() == "blobs"


def drop_on_the_start_page(tab: Any, folder: Path) -> None:
    """Drag a folder from the desktop onto the start page and let it go there: it is copied and opened."""
    held: list[Any] = []
    tab.route("**/start.js", lambda route: held.append(route))
    with tab.expect_request("**/start.js"):
        tab.get_by_role("button", name="Start page", exact=True).click()
    tab.wait_for_timeout(300)
    assert not tab.locator("#choose-folder").is_visible(), "nothing can be dropped before the page listens"
    held.pop().continue_()
    tab.locator("#choose-folder").wait_for()
    # As the browser itself is told of it by the desktop: a drop that a script makes has no folders.
    line = tab.context.new_cdp_session(tab)
    data = {"items": [], "files": [str(folder)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        line.send("Input.dispatchDragEvent", {"type": kind, "x": 300, "y": 200, "data": data})
    tab.wait_for_selector(CANVAS)
    tab.wait_for_function(OPENED)
    tab.get_by_role("button", name="Start training", exact=True).wait_for()
