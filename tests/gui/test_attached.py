"""The page of a training elsewhere: what it shows, and what it leaves."""

from __future__ import annotations

import json
import queue
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from blob_scenes import write_blob_scene
from gui_parts import TIMEOUT, trained_run, wait_until

from splatstudio.gui.attached import AttachedStudio, open_attached, project_of
from splatstudio.gui.server.access import Listen
from splatstudio.gui.state.status import Choice
from splatstudio.runtime.channel.hub import Hub
from splatstudio.runtime.channel.remote_server import RemoteServer, RunCard
from splatstudio.runtime.messages import (
    Command,
    Evaluate,
    Evaluated,
    Finished,
    ModelLoaded,
    Pause,
    Progress,
    RankFigures,
    RanksReport,
    Saved,
    SettingChanged,
    Started,
    StateChanged,
    UpdateSettings,
)
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig, to_json

Remote = tuple[RemoteServer, Hub, queue.Queue[Command]]
RUN = Path("/cluster/runs/garden")
ROWS = [{"step": step, "loss": 1.0 / step, "num_gaussians": 9} for step in (10, 20, 30)]


@pytest.fixture
def training() -> Iterator[Remote]:
    orders: queue.Queue[Command] = queue.Queue()
    config = json.dumps(to_json(TrainConfig(steps=500)))
    card = RunCard(Path("/cluster/garden"), RUN, config, 2, json.dumps(ROWS))
    hub = Hub(orders.put)
    server = RemoteServer("127.0.0.1", 0, hub, lambda: card)
    hub.receive(ModelLoaded(0, 9, (0.0, 0.0, 0.0), 1.0))
    hub.receive(Started(30, 500, 9, 7, 2))
    hub.receive(StateChanged("training"))
    yield server, hub, orders
    server.close()


@pytest.fixture
def studio(training: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AttachedStudio]:
    monkeypatch.chdir(tmp_path)
    server, _, _ = training
    address = f"127.0.0.1:{server.port}"
    opened = open_attached(address, server.token, network=Listen(port=0), browser=False)
    yield opened
    opened.close()


def test_a_training_elsewhere_is_steered_without_its_disks(training: Remote, studio: AttachedStudio) -> None:
    _, hub, orders = training
    controller = studio.controller
    assert ["are not on this machine" in note for note in studio.controller.project.notes] == [True]
    wait_until(lambda: controller.status.state == "training")
    assert controller.status.total_steps == 500 and studio.controller.project.scene is None
    assert controller.history.loss.arrays()[0].tolist() == [10, 20, 30], "what came before is drawn, too"
    hub.receive(Progress(40, 500, 0.5, 20.0, 11, 5.0, 90.0))
    hub.receive(RanksReport(40, (RankFigures(0, 6, 0.1, 0.0, "node1"), RankFigures(1, 5, 0.1, 0.0, "node2"))))
    wait_until(lambda: controller.status.step == 40)
    assert controller.choice().label == "Pause"
    controller.press_primary()
    controller.change_settings({"ssim_weight": 0.4})
    controller.send(Evaluate())
    assert [orders.get(timeout=TIMEOUT) for _ in range(3)] == [
        Pause(),
        UpdateSettings((("ssim_weight", 0.4),)),
        Evaluate(),
    ]
    hub.receive(SettingChanged(40, "ssim_weight", 0.4))
    hub.receive(Evaluated(40, 21.5, 0.8, 2, RUN / "eval"))
    wait_until(lambda: controller.status.test_psnr == 21.5)
    assert controller.project.config.ssim_weight == 0.4
    assert studio.controller.project.export_path(40) == RUN / "exports" / "garden-40.ply", (
        "on the training's machine"
    )
    assert studio.controller.project.folder_of("camera_paths").parent == Path.cwd(), (
        "which the page itself writes"
    )


def test_who_comes_later_keeps_what_came_before(
    training: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training was begun long ago: that is no reason to draw it from there on alone."""
    monkeypatch.chdir(tmp_path)
    server, hub, _ = training
    hub.receive(Started(0, 500, 9, 7, 2))
    hub.receive(Evaluated(20, 21.5, 0.8, 2, RUN / "eval"))
    hub.receive(Progress(40, 600, 0.5, 20.0, 11, 5.0, 90.0))
    address = f"127.0.0.1:{server.port}"
    studio = open_attached(address, server.token, network=Listen(port=0), browser=False)
    try:
        controller = studio.controller
        wait_until(lambda: controller.status.step == 40)
        assert controller.history.loss.arrays()[0].tolist() == [10, 20, 30, 40]
        assert controller.history.test_psnr.arrays()[0].tolist() == [20] and controller.status.loss == 0.5
        # Ranks that are started again go back to a checkpoint: that is told as it is.
        hub.receive(Started(20, 600, 10, 7, 2))
        wait_until(lambda: controller.status.step == 20)
        assert controller.history.loss.arrays()[0].tolist() == [10, 20]
    finally:
        studio.close()


def test_nothing_is_started_here_when_it_has_ended(training: Remote, studio: AttachedStudio) -> None:
    server, hub, orders = training
    controller = studio.controller
    hub.receive(StateChanged("finished"))
    hub.receive(Finished(500, True, RUN / "ckpts" / "step_00000500"))
    server.close()
    wait_until(lambda: controller.status.state == "ended")
    assert (controller.choice().label, controller.choice().enabled) == ("Ended", False)
    controller.press_primary()
    controller.begin_new_run()
    assert not controller.can_begin_new_run and not controller.can_set_up and not controller.can_train_more
    assert controller.pids == () and orders.empty()


def test_a_line_that_breaks_is_told_as_that_until_the_training_is_back(
    training: Remote, studio: AttachedStudio
) -> None:
    server, hub, _ = training
    controller = studio.controller
    wait_until(lambda: controller.in_view.num_gaussians == 9)
    hub.receive(Saved(30, RUN / "ckpts" / "step_00000030"))
    wait_until(lambda: controller.last_saved is not None)
    port, card = server.port, server._card
    server.close()
    wait_until(lambda: controller.status.state == "disconnected")
    assert controller.choice() == Choice("Not connected", enabled=False) and not controller.can_order
    assert controller.in_view.num_gaussians is None, "nothing of it can be exported or rendered"
    assert "may have ended. It last saved step 30." in controller.status.message
    again = RemoteServer("127.0.0.1", port, hub, card, server.token)
    try:
        wait_until(lambda: controller.status.state == "training")
        assert controller.status.message == "" and controller.in_view.num_gaussians == 9
        assert controller.choice().label == "Pause"
    finally:
        again.close()


def test_closing_the_page_leaves_the_training(training: Remote, studio: AttachedStudio) -> None:
    server, _, orders = training
    wait_until(lambda: server.num_clients == 1)
    studio.close()
    wait_until(lambda: server.num_clients == 0)
    assert orders.empty(), "not even an order to save"


def test_a_run_that_has_written_nothing_yet_shows_its_photos(blob_folder: Path, tmp_path: Path) -> None:
    config = json.dumps(to_json(TrainConfig()))
    card = RunCard(blob_folder, tmp_path / "run", config, 1)
    assert project_of(card).scene is not None, "it has no folder yet"
    (tmp_path / "run").mkdir()
    assert project_of(card).scene is not None, "nor a word in it"
    (tmp_path / "run" / "run.json").write_text("{}")
    assert project_of(card).scene is None, "it is somebody else's"


def test_a_run_that_has_gone_on_with_a_copy_of_its_scene_shows_its_photos(
    blob_scene: Scene, blob_folder: Path, tmp_path: Path
) -> None:
    trained_run(blob_scene, tmp_path / "run")
    copy, other = tmp_path / "copy", write_blob_scene(tmp_path / "other", num_views=3)
    shutil.copytree(blob_folder, copy)
    config = json.dumps(to_json(TrainConfig()))
    assert project_of(RunCard(copy, tmp_path / "run", config, 1)).scene is not None
    assert project_of(RunCard(other, tmp_path / "run", config, 1)).scene is None, "it is somebody else's"
