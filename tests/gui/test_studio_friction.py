"""Small things that a newcomer stumbles over: each was one."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_checkpoints import example
from gate_client import get
from studio_page import PAGE_TEST
from test_studio_panels import evaluate_panel, notices, page, run, submitted  # noqa: F401  (fixtures)

from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.devices.monitor import DeviceReading
from splatstudio.files.run import Run
from splatstudio.gui.server import GatedServer, open_server
from splatstudio.gui.server.connection import STILL_HERE
from splatstudio.gui.server.viser_private import _SAY_LOST, PAGE_SCRIPTS
from splatstudio.gui.tabs.devices import DevicesPanel
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.models.model import load_model
from splatstudio.settings.config import TrainConfig


def chosen(panel: EvaluatePanel) -> tuple[str, int | None]:
    """Return the run and the step that are chosen; not while a callback of the page is changing them."""
    with panel._lock:
        return panel._list._run.value, panel._list.selected and panel._list.selected.step


def test_the_list_of_models_turns_to_the_run_of_the_page_once(page: Any, run: Any) -> None:  # noqa: F811
    other, anew = run.parent / "a run", run.parent / "started over"
    for folder in (other, anew):
        Run.create(folder, page.controller.project.path, TrainConfig())
    save_checkpoint(run, example(10))
    save_checkpoint(other, example(20))
    panel = evaluate_panel(page)
    assert chosen(panel) == (run.name, 10)
    panel._list._run.value = other.name
    panel._list.look_elsewhere()
    assert chosen(panel) == (other.name, 20), "the user's choice stays"
    page.controller.project = replace(page.controller.project, run_dir=anew)
    panel._list.scan()
    assert chosen(panel) == (other.name, 20), "there is nothing to see yet"
    save_checkpoint(anew, example(30))
    panel._list.scan()
    assert chosen(panel) == (anew.name, 30)


def test_only_what_a_device_tells_can_be_plotted(page: Any) -> None:  # noqa: F811
    page.controller.pids = ()
    tab = page.server.gui.add_tab_group().add_tab("Devices")
    panel = DevicesPanel(page, tab)
    panel.close()
    cpu = DeviceReading(0, "CPU rank 0", 10**9, 0, 10**10, 50.0)
    panel._offer((cpu,))
    assert panel._choice.options == ("Utilization", "Memory of ours")
    panel._offer((DeviceReading(0, "GPU", 10**9, 0, 8 * 10**9, 55.0, 61.0, None),))
    assert panel._choice.options == ("Utilization", "Memory of ours", "Temperature")
    panel._offer((cpu,))
    assert "Temperature" in panel._choice.options, "what was told once is offered on"


def test_who_names_the_scene_in_place_of_its_run_is_told_so(blob_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="this is a scene, and its models are in the run folders"):
        load_model(blob_folder)
    with pytest.raises(ValueError, match=r"a run with checkpoints$"):
        load_model(tmp_path)


def test_the_command_says_its_version() -> None:
    command = [sys.executable, "-m", "splatstudio", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0 and told.stdout.startswith("splatstudio 0.") and not told.stderr


@pytest.fixture
def gated() -> Any:
    server = open_server(port=0)
    yield server
    server.stop()


def test_a_page_that_would_not_be_let_in_any_more_is_told_so(gated: GatedServer) -> None:
    assert get(gated.port, STILL_HERE)[0] == 403
    assert get(gated.port, STILL_HERE, Authorization=f"Bearer {gated.url.rpartition('=')[2]}")[0] == 200


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_ctrl_c_right_after_the_start_does_not_end_the_fork_server() -> None:
    script = """
import multiprocessing, multiprocessing.forkserver as server
from pathlib import Path
from splatstudio.runtime.group import _no_ctrl_c
multiprocessing.set_forkserver_preload([])
process = multiprocessing.get_context("forkserver").Process(target=int)
with _no_ctrl_c():
    process.start()
status = Path(f"/proc/{server._forkserver._forkserver_pid}/status").read_text()
blocked = next(line for line in status.splitlines() if line.startswith("SigBlk"))
print("SIGINT is blocked:", bool(int(blocked.split()[1], 16) & 2))
process.join()
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert "SIGINT is blocked: True" in told.stdout, told.stderr


class TestInABrowser:
    """What the scripts of the page do, in a page of their own."""

    pytestmark = PAGE_TEST

    def test_the_arrow_keys_of_a_slider_do_not_reach_the_camera_and_pictures_have_names(
        self, browser: Any
    ) -> None:
        blank = browser.new_page()
        icon = "<button><svg class='tabler-icon tabler-icon-list-search'></svg></button>"
        blank.set_content(
            f"<div id=slider role=slider tabindex=0>a</div><div id=canvas tabindex=0>b</div>{icon}"
        )
        blank.evaluate(
            "() => { window.heard = [];"
            " for (const to of [window, document])"
            "   to.addEventListener('keydown', event => window.heard.push(event.key)); }"
        )
        for source in PAGE_SCRIPTS:
            blank.evaluate(f"() => {{ {source} }}")
        blank.focus("#slider")
        blank.keyboard.press("ArrowRight")
        assert blank.evaluate("window.heard") == []
        blank.keyboard.press("p")
        blank.focus("#canvas")
        blank.keyboard.press("ArrowLeft")
        assert blank.evaluate("window.heard") == ["p", "p", "ArrowLeft", "ArrowLeft"]
        blank.locator("button[aria-label='All commands']").wait_for(state="attached")
        blank.close()

    def test_a_page_says_that_its_studio_is_gone_until_it_is_back(self, browser: Any) -> None:
        lost = browser.new_page()
        lost.evaluate(
            "() => { window.setInterval = call => { window.ask = call; };"
            " window.fetch = async () => {"
            "   if (!window.status_) throw new TypeError('Failed to fetch');"
            "   return {ok: window.status_ === 200, status: window.status_}; }; }"
        )
        lost.evaluate(f"() => {{ {_SAY_LOST} }}")
        alert = lost.get_by_role("alert")
        for status, told in (
            (200, None),
            (0, None),  # one may be missed
            (0, "No connection to the studio"),
            (403, "The studio was started anew"),
            (200, None),
            (0, None),
        ):
            lost.evaluate("async status => { window.status_ = status; await window.ask(); }", status)
            assert alert.count() == (0 if told is None else 1)
            assert told is None or told in alert.inner_text()
        lost.close()
