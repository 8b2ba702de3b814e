"""A model from the disk in the view while a training goes on behind it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import blobs
from gui_parts import MANY, Steered
from studio_page import PAGE_TEST, TIMEOUT, Screen
from test_studio_evaluate_page import Open, row, trained  # noqa: F401  (a fixture)

from splatstudio.cameras.camera import Camera
from splatstudio.formats.ply import write_ply
from splatstudio.gaussians.transform import transformed
from splatstudio.models.model import Model, load_model
from splatstudio.rendering.render import render_image
from splatstudio.runtime.client import WorkerClient
from splatstudio.runtime.messages import ViewOptions
from splatstudio.scene.scene import Scene

Desks = Callable[..., Steered]


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


@pytest.fixture
def training(steered: Desks, blob_folder: Path) -> Iterator[Steered]:
    it = steered(blob_folder)
    it.wait(lambda status: status.state == "ready", "ready")
    it.controller.press_primary()
    it.wait(lambda status: status.state == "training" and status.step > 2, "training")
    yield it


@pytest.fixture
def other(blob_scene: Scene, tmp_path: Path) -> Path:
    """Return a file of Gaussians, in the coordinates of the scene's files, that looks like no training."""
    few = blobs(seed=5, num=7)
    write_ply(tmp_path / "other.ply", transformed(few, np.linalg.inv(blob_scene.transform)))
    return tmp_path / "other.ply"


def seen(it: Steered, camera: Camera) -> np.ndarray:
    received = it.controller.render(1, camera, ViewOptions())
    assert received is not None
    return received.image.astype(int)


def test_a_model_is_shown_while_the_training_goes_on_and_back(
    training: Steered, other: Path, blob_scene: Scene
) -> None:
    controller, camera = training.controller, blob_scene.cameras[0]
    drawn: list[int] = []
    controller.preview.on_change = lambda: drawn.append(1)
    controller.view(other)
    until(lambda: controller.preview.worker is not None and drawn, "it is read, and drawn")
    assert controller.preview.path == other and not controller.model_state().training
    model: Model = load_model(other).in_frame_of(blob_scene)
    expected = render_image(model.gaussians, camera, model.options).astype(int)
    assert np.abs(seen(training, camera) - expected).max() <= 1
    step = controller.status.step
    training.wait(lambda status: status.state == "training" and status.step > step + 5, "it goes on")
    # The figures, and what the buttons do, are the training's.
    assert controller.choice().label == "Pause" and controller.status.num_gaussians != 7
    process = controller.preview.worker
    controller.preview.leave()
    assert len(drawn) > 1 and controller.preview.path is None and controller.model_state().training
    assert np.abs(seen(training, camera) - expected).max() > 20
    assert process is not None
    until(lambda: not process.alive, "its process leaves")


def test_a_file_that_cannot_be_read_leaves_the_training_in_the_view(
    training: Steered, tmp_path: Path, blob_scene: Scene
) -> None:
    (tmp_path / "broken.ply").write_bytes(b"ply\nnonsense")
    controller = training.controller
    controller.view(tmp_path / "broken.ply")
    until(lambda: training.notices and training.notices[-1].bad, "it is told")
    until(lambda: controller.preview.path is None, "it is given up")
    assert (
        "broken.ply" in training.notices[-1].text
        and "The training is not touched" in training.notices[-1].text
    )
    step = controller.status.step
    training.wait(lambda status: status.state == "training" and status.step > step, "it goes on")
    assert seen(training, blob_scene.cameras[0]).shape[2] == 3


def test_a_process_that_cannot_start_is_told_and_the_one_before_stays(
    training: Steered, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = training.controller
    controller.view(other)
    until(lambda: controller.preview.worker is not None, "it is read")
    before = controller.preview.worker

    def no_process(self: WorkerClient) -> WorkerClient:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(WorkerClient, "start", no_process)
    with pytest.raises(ValueError, match=r"cannot be shown: .*The training is not touched\."):
        controller.view(other.with_name("b.ply"))
    assert controller.preview.worker is before and controller.status.state == "training"


class TestOnThePage:
    """The same with the mouse."""

    pytestmark = PAGE_TEST

    def test_open_shows_a_checkpoint_beside_the_training(
        self,
        open_page: Open,
        blob_folder: Path,
        trained: Path,  # noqa: F811
    ) -> None:
        screen: Screen = open_page(blob_folder, height=900, config=MANY)
        screen.button("Resume from step 50").click()
        screen.wait(lambda: screen.text("state") == "Training", "training")
        screen.tab("Evaluate")
        row(screen, "Step 40 · ").click()
        screen.wait(lambda: "step_00000040" in screen.text("entry"), "it is chosen")
        screen.button("Open").click()
        back = screen.page.get_by_role("button", name="Back to the training")
        back.wait_for()
        screen.wait(lambda: screen.studio.controller.model_state().step == 40, "it is in the view")
        step = screen.step
        screen.wait(lambda: screen.step > step, "the training goes on")
        assert screen.text("state") == "Training"
        back.click()
        back.wait_for(state="hidden")
        screen.wait(lambda: (screen.studio.controller.model_state().step or 0) > 50, "its own again")
        assert screen.errors == []
