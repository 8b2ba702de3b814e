"""Fixtures of the tests of the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import viser
from gui_parts import MANY, Steered, trained_run
from plateau_settings import ANYHOW, FLAT_NEWS

from splatstudio.files.run import Run
from splatstudio.gui.panel import Hotkeys, Page
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.history import History
from splatstudio.gui.state.project import Project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.state.stream import ModelState
from splatstudio.gui.state.tasks import TaskBoard
from splatstudio.runtime.messages import Command
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blob_folder: Path) -> Path:
    """The current folder is an empty one, in which the studio makes its runs/."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def own_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The list of what was opened last is an empty one of this test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "splatstudio" / "recent.json"


@pytest.fixture
def flat_run(own_folder: Path, blob_scene: Scene) -> Run:
    """A stopped run in runs/blobs whose score stood still."""
    trained_run(blob_scene, Path("runs/blobs"), 22, ANYHOW)
    stopped = Run.open(Path("runs/blobs"))
    stopped.append_metrics(FLAT_NEWS.row())
    return stopped


@pytest.fixture
def steered(own_folder: Path) -> Iterator[Callable[..., Steered]]:
    """Make controllers with a worker; it is ended after the test."""
    made: list[Steered] = []

    def make(path: Path, config: TrainConfig = MANY) -> Steered:
        made.append(Steered.of(path, config))
        made[-1].controller.open()
        return made[-1]

    yield make
    for each in made:
        each.controller.close()


@pytest.fixture
def idle(own_folder: Path, blob_folder: Path) -> Steered:
    """Return the controller of a new training whose worker is not started."""
    return Steered.of(blob_folder, TrainConfig(steps=5))


@pytest.fixture
def run(blob_scene: Scene, tmp_path: Path) -> Path:
    return Run.create(tmp_path / "runs" / "blobs", blob_scene.path, TrainConfig()).path


@pytest.fixture
def notices() -> list[Notice]:
    return []


@pytest.fixture
def sent() -> list[Command]:
    """What the training's worker is told."""
    return []


@pytest.fixture
def server() -> Iterator[viser.ViserServer]:
    """Return a server that nobody visits."""
    made = viser.ViserServer(host="127.0.0.1", port=0, verbose=False)
    yield made
    made.stop()


class _StillController(SimpleNamespace):
    """What panels ask of a controller, without a worker."""

    in_view = Controller.in_view


@pytest.fixture
def page(
    blob_scene: Scene, run: Path, notices: list[Notice], sent: list[Command], server: viser.ViserServer
) -> Page:
    """What panels are built from, with a server that nobody visits and no worker."""
    controller: Any = _StillController(
        project=Project(blob_scene.path, blob_scene, None, run, TrainConfig()),
        status=Status(has_model=True, num_gaussians=60),
        preview=SimpleNamespace(path=None, worker=None, loaded=None, shown=None, leave=lambda: None),
        beside=SimpleNamespace(path=None, worker=None, leave=lambda: None),
        history=History(),
        replacements=[],
        pids=(),
        send=sent.append,
        other_model=None,
        shown_path=None,
        step_to_show=None,
        last_saved=None,
        can_order=False,
        _worker=SimpleNamespace(job=None),
        _sh_degree=3,
        model_state=lambda: ModelState(7, training=False),
    )
    viewport = SimpleNamespace(show_trim=lambda trim: None, stream=lambda client: None, beside_slider="")
    board = TaskBoard(controller, notices.append)
    parts = (server, controller, viewport, None, Hotkeys(server), board)
    return Page(*cast(Any, parts), notify=notices.append, changed=lambda panel: None, withdraw=notices.remove)
