"""The page of a training that a launcher started, in a real browser: it is watched and paused there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from studio_page import PAGE_TEST, close_screen, screen_of

from splatstudio.gui.attached import open_attached
from splatstudio.gui.server.network import Listen

pytestmark = PAGE_TEST


@pytest.fixture
def training(blob_folder: Path, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Start a training as a launcher does, of one rank, and return its address and token."""
    variables = {"TORCHELASTIC_RUN_ID": "page", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    variables |= {"LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [str(Path(sys.executable).parent / "splatstudio"), "train", str(blob_folder)]
    command += ["--run", str(tmp_path / "run"), "--steps", "100000", "--sh-degree", "1"]
    command += ["--save-steps", "--eval-steps", "--attach", "127.0.0.1:0"]
    log = tmp_path / "log"
    with open(log, "wb") as written:
        process = subprocess.Popen(
            command,
            env={**os.environ, **variables, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE,
            stderr=written,
            text=True,
        )
    try:
        assert process.stdout is not None
        found = None
        while found is None and (line := process.stdout.readline()):
            found = re.search(r"attach (\S+) --token (\S+)", line)
        assert found is not None, log.read_text()
        yield found[1], found[2]
    finally:
        process.kill()
        process.communicate()


def test_a_training_elsewhere_is_watched_and_paused_in_its_page(
    browser: Any, training: tuple[str, str]
) -> None:
    studio = open_attached(*training, network=Listen(port=0), browser=False)
    screen = screen_of(browser, studio)
    try:
        screen.wait(lambda: screen.step > 20, "the page shows how it gets on")
        screen.button("Pause").click()
        screen.wait(lambda: screen.text("state") == "Paused", "it pauses")
        step = screen.step
        screen.button("Resume").click()
        screen.wait(lambda: screen.step > step, "it goes on")
        assert screen.errors == []
    finally:
        close_screen(screen)
