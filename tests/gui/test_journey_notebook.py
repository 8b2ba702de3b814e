"""A run in a notebook: a real Jupyter server, whose page shows the studio below a cell."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from free_ports import free_port
from studio_page import CANVAS, OPENED, PAGE_TEST, TIMEOUT

pytestmark = PAGE_TEST
SECRET = "a-secret-of-jupyters"
KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def notebook(*sources: str) -> str:
    """Return a notebook's file with these cells."""
    cells = [
        {"cell_type": "code", "id": f"cell{i}", "metadata": {}, "execution_count": None, "outputs": []}
        | {"source": source}
        for i, source in enumerate(sources)
    ]
    return json.dumps(
        {"nbformat": 4, "nbformat_minor": 5, "metadata": {"kernelspec": KERNEL}, "cells": cells}
    )


@pytest.fixture
def jupyter(tmp_path: Path) -> Iterator[int]:
    """A Jupyter server in the test's folder, with nothing of the user's; its port."""
    port = free_port()
    folders = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    environment = os.environ | {name: str(tmp_path / "jupyter" / name.lower()) for name in folders}
    words = ["--no-browser", "--allow-root", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    words += [
        f"--IdentityProvider.token={SECRET}",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    with (tmp_path / "jupyter.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *words],
            cwd=tmp_path,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    yield port
    server.terminate()
    server.wait(TIMEOUT)


def get_when_it_serves(page: Any, url: str) -> None:
    """Go to a page of a server that is starting."""
    from playwright.sync_api import Error

    for _ in range(int(4 * TIMEOUT)):
        try:
            page.goto(url)
            return
        except Error as error:
            assert "ERR_CONNECTION_REFUSED" in str(error)
            page.wait_for_timeout(250)
    raise AssertionError("Jupyter does not start")


def picture_in(frame: Any) -> np.ndarray:
    """Return what is seen of the scene, [H, W, 3] uint8."""
    decoded = cv2.imdecode(np.frombuffer(frame.locator(CANVAS).screenshot(), np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    return decoded


def test_a_cell_shows_a_run_below_it(browser: Any, saved_run: Path, tmp_path: Path, jupyter: int) -> None:
    from playwright.sync_api import TimeoutError as PlaywrightTimeout

    show = f"import splatstudio as ss\npage = ss.show({str(saved_run)!r}, height=420)\npage"
    (tmp_path / "look.ipynb").write_text(notebook(show))
    page = browser.new_page(viewport={"width": 1300, "height": 600})
    page.set_default_timeout(1000 * TIMEOUT)
    get_when_it_serves(page, f"http://localhost:{jupyter}/lab/tree/look.ipynb?token={SECRET}")
    cell = page.locator(".jp-CodeCell .cm-content").first
    # A cell that is run before its kernel is there may be forgotten, and a click that comes too early, too.
    page.locator(".jp-NotebookPanel-toolbar [data-status=idle]").first.wait_for(state="attached")
    prompt = page.locator(".jp-CodeCell .jp-InputPrompt").first
    while prompt.inner_text().strip() in ("", "[ ]:"):
        if page.locator(".jp-Dialog").count():  # on a busy machine Jupyter may ask which kernel is meant
            page.keyboard.press("Enter")
        else:
            with suppress(PlaywrightTimeout):  # it asks just now
                cell.click(timeout=5000)
                page.keyboard.press("Shift+Enter")
        page.wait_for_timeout(1000)
    element = page.wait_for_selector(".jp-OutputArea-output iframe[title=splatstudio]")
    assert "//localhost:" in element.get_attribute("src"), "the site of the notebook"
    frame = element.content_frame()
    frame.wait_for_selector(CANVAS)
    frame.wait_for_function(OPENED)
    frame.wait_for_function("document.title.startsWith('blobs')")
    # Splats of several colors: without a picture the view is of one.
    colors = np.unique(picture_in(frame).reshape(-1, 3) // 32, axis=0)
    assert len(colors) > 20, colors
    page.close()
