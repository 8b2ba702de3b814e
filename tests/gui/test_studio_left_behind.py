"""What the page shows of a model, of steps and of checkpoints that are no longer there."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import viser
from gui_parts import fake_camera, scores, trained_run

from splatstudio.cameras.camera import Camera
from splatstudio.evaluation.evaluate import write_evaluation
from splatstudio.files.run import Run
from splatstudio.gui.dock.status import header_html
from splatstudio.gui.state.compare import Comparison
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.photos import PhotoPixels, PhotoPsnr
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Notice
from splatstudio.gui.state.stream import FrameSource, ModelState, Stream, ViewSettings
from splatstudio.gui.tabs.view import ViewPanel
from splatstudio.runtime.client import ReceivedFrame, WorkerClient
from splatstudio.runtime.messages import Frame, ModelLoaded, StateChanged, ViewOptions
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig

pytestmark = pytest.mark.usefixtures("own_folder")


class OneModel(FrameSource):
    """Shows one model until it is left."""

    state = ModelState(7, False)

    def model_state(self) -> ModelState:
        return self.state

    def render(self, view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
        size = (camera.height, camera.width)
        frame = Frame(view, 1, 0, size[1], size[0], 7, 0.001)
        return ReceivedFrame(frame, np.zeros((*size, 3), np.uint8))

    def forget(self, view: int) -> None:
        pass


@pytest.fixture
def pictures(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a browser is sent."""
    sent: list[str] = []
    monkeypatch.setattr(
        "splatstudio.gui.state.stream.push_background_jpeg", lambda *_: sent.append("picture")
    )
    return sent


def browser(pictures: list[str]) -> viser.ClientHandle:
    scene = SimpleNamespace(set_background_image=lambda _: pictures.append("none"))
    storage = SimpleNamespace(get_item=lambda _: None)
    client = SimpleNamespace(camera=fake_camera(), client_id=7, scene=scene, local_storage=storage)
    return cast(viser.ClientHandle, client)


def wait_for(pictures: list[str], picture: str) -> None:
    deadline = time.monotonic() + 60.0
    while pictures[-1:] != [picture]:
        assert time.monotonic() < deadline, pictures
        time.sleep(0.01)


def test_the_picture_of_a_run_that_is_left_goes_from_the_view(pictures: list[str]) -> None:
    source = OneModel()
    stream = Stream(browser(pictures), source, ViewSettings())
    try:
        wait_for(pictures, "picture")
        source.state = ModelState(None, False)
        stream.wake()
        time.sleep(0.1)
        assert pictures[-1] == "picture", "it stays while the same model is read once more"
        source.state = ModelState(None, False, anew=True)
        stream.wake()
        wait_for(pictures, "none")
        source.state = ModelState(0, True)
        stream.wake()
        wait_for(pictures, "picture")
    finally:
        stream.close()


def test_a_photograph_alone_stays_when_its_run_is_left(pictures: list[str], blob_scene: Scene) -> None:
    """One stands in its camera and compares: until there is a new model it is shown alone."""
    source, camera = OneModel(), blob_scene.cameras[0]
    source.state = ModelState(None, False, anew=True)
    shelf = SimpleNamespace(
        pixels=lambda _, size, *__: PhotoPixels(np.zeros((size[1], size[0], 3), np.uint8))
    )
    standpoint = SimpleNamespace(here=0, camera=lambda _: camera)
    look = ViewSettings(comparison=Comparison("split"))
    stream = Stream(browser(pictures), source, look, cast(Any, standpoint), cast(Any, shelf))
    try:
        wait_for(pictures, "picture")
        time.sleep(0.6)
        assert "none" not in pictures, "it would go and come for ever"
    finally:
        stream.close()


def test_only_a_new_run_leaves_the_model_that_was_seen(
    blob_scene: Scene, blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained_run(blob_scene, Path("runs/blobs"))
    for order in ("start", "send", "close"):
        monkeypatch.setattr(WorkerClient, order, lambda *_: None)
    controller = Controller(open_project(blob_folder, TrainConfig(), None), lambda _: None)
    loaded = ModelLoaded(3, 60, (0.0, 0.0, 0.0), 1.0)

    def shown(*events: Any) -> ModelState:
        for event in events:
            controller._worker.receive(event)
        return controller.model_state()

    assert shown(loaded, StateChanged("viewing")) == ModelState(3, False)
    controller.press_primary()
    assert controller.status.state == "loading" and shown() == ModelState(None, False)
    shown(loaded, StateChanged("finished"))
    controller.start_over()
    assert shown() == ModelState(None, False, anew=True)
    assert controller.replacements == ["The training was resumed", "A new run was begun with Start over"]
    assert not shown(loaded).anew


def test_a_run_that_is_opened_shows_nothing_of_steps_that_no_checkpoint_has(
    blob_scene: Scene, blob_folder: Path
) -> None:
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    run = Run.open(Path("runs/blobs"))
    name = blob_scene.views[0].name
    for step, loss in ((1, 0.4), (3, 0.3), (40, 0.1)):  # killed after the 40th
        run.append_metrics({"step": step, "loss": loss, "psnr": 10.0 + step, "view": name})
        run.append_metrics({"step": step, "test_psnr": 20.0 + step})
        write_evaluation(run.path, step, scores(20.0 + step))
    told: list[Notice] = []
    controller = Controller(open_project(blob_folder, TrainConfig(), None), told.append)
    history = controller.history
    for curve in (history.loss, history.train_psnr, history.test_psnr):
        assert curve.last_step == 3
    assert controller.status.test_psnr == 23.0 and controller.last_step == 3 and not told
    # What is known, instead of a line.
    assert controller.status.loss == pytest.approx(0.39)
    assert "0.3900" in header_html("blobs", controller.status, 1)
    book = PhotoPsnr(blob_scene)
    book.load(run.path, controller.last_step)
    assert book.errors.psnr[0] == 13.0
    assert checkpoint.name == "step_00000003"


def test_a_damaged_checkpoint_is_told_on_the_page_when_a_run_is_opened_and_resumed(
    blob_scene: Scene, blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in ("start", "send", "close"):
        monkeypatch.setattr(WorkerClient, order, lambda *_: None)
    checkpoint = trained_run(blob_scene, Path("runs/blobs"))
    newer = checkpoint.with_name("step_00000009")
    newer.mkdir()
    (newer / "manifest.json").write_text("{cut off")
    for path in (blob_folder, Path("runs/blobs")):
        told: list[Notice] = []
        controller = Controller(open_project(path, TrainConfig(), None), told.append)
        assert [notice.title for notice in told] == ["A checkpoint is damaged"] and told[0].bad
        assert "step_00000009" in told[0].text and "step 3 is used instead" in told[0].text
        controller.status = Controller(controller.project, lambda _: None).status
        controller._worker.receive(StateChanged("viewing"))
        controller.press_primary()
        assert len(told) == 1, "it was told"
    (newer / "manifest.json").write_text("{cut off once more, since")
    (checkpoint.with_name("step_00000011")).mkdir()
    controller._worker.receive(StateChanged("ended"))
    controller.press_primary()
    assert len(told) == 2 and "step_00000011" in told[1].text
    (checkpoint / "manifest.json").write_text("")
    told.clear()
    Controller(open_project(Path("runs/blobs"), TrainConfig(), None), told.append)
    assert len(told) == 3 and "no other checkpoint is good" in told[0].text


def test_the_head_mixes_no_figures_of_two_runs(
    blob_scene: Scene, blob_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for order in ("start", "send", "close"):
        monkeypatch.setattr(WorkerClient, order, lambda *_: None)
    own, other = trained_run(blob_scene, Path("runs/blobs")), trained_run(blob_scene, Path("runs/<other>"), 5)
    Run.open(Path("runs/blobs")).append_metrics({"step": 3, "loss": 0.5, "test_psnr": 23.0})
    controller = Controller(open_project(Path("runs/blobs"), TrainConfig(), None), lambda _: None)

    def head(path: Path, step: int) -> str:
        controller.view(path)
        controller._worker.receive(ModelLoaded(step, 60, (0.0, 0.0, 0.0), 1.0))
        controller._worker.receive(StateChanged("viewing"))
        return header_html("blobs", controller.status, 1, None, controller.other_model)

    told = head(other, 5)
    assert (
        controller.other_model == other and "runs/&lt;other&gt;/ckpts/step_00000005, not of this run" in told
    )
    assert ">5</div>" in told and "0.5000" not in told and "23.00 dB" not in told and "100,000" not in told
    told = head(own, 3)
    assert controller.other_model is None and "not of this run" not in told
    assert "3 / 100,000" in told and "0.5000" in told and "23.00 dB" in told


def test_the_points_come_back_when_a_new_run_takes_the_model_away() -> None:
    shown: list[bool] = []
    panel: Any = object.__new__(ViewPanel)
    state = ModelState(None, False)
    panel._page = SimpleNamespace(controller=SimpleNamespace(model_state=lambda: state))
    panel._parts, panel._all = None, lambda: [SimpleNamespace(show_points=shown.append)]
    panel.follow(ModelLoaded(3, 60, (0.0, 0.0, 0.0), 1.0))
    panel.follow(StateChanged("ready"))
    assert shown == [False], "before the first training they are as the user has them"
    state = ModelState(None, False, anew=True)
    panel.follow(StateChanged("ready"))
    assert shown == [False, True]
