"""What tests of the page share: fake browsers, runs without a worker, controllers without a process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import viser
import viser.transforms

from splatstudio.cameras.camera import Camera
from splatstudio.evaluation.evaluate import Evaluation, ImageScore
from splatstudio.files.run import Run
from splatstudio.gui.panel import Page
from splatstudio.gui.state.controller import Controller
from splatstudio.gui.state.project import open_project
from splatstudio.gui.state.status import Notice, Status
from splatstudio.gui.state.viewpoint import Viewpoint, fitting_fov
from splatstudio.gui.tabs.evaluate import EvaluatePanel
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.trainer import Trainer

TIMEOUT = 120.0  # a machine with other work is many times slower
MANY = TrainConfig(steps=100_000, eval_steps=(), save_steps=(), sh_degree=1)


def wait_until(condition: Callable[[], object], what: str = "") -> None:
    """Wait until something holds, and fail where it never does."""
    deadline = time.monotonic() + TIMEOUT
    while not condition():
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.02)


def fake_camera(**changes: Any) -> viser.CameraHandle:
    """Return a browser's camera, as far as the studio reads it."""
    values: dict[str, Any] = {
        "wxyz": np.array([1.0, 0.0, 0.0, 0.0]),
        "position": np.array([0.0, 0.0, -2.0]),
        "fov": 1.0,
        "image_width": 900,
        "image_height": 600,
    }
    return cast(viser.CameraHandle, type("Camera", (), values | changes)())


class FakeBrowsers:
    """A server of viser whose browsers come and go; each notes what it is shown."""

    def __init__(self) -> None:
        self.clients: dict[int, Any] = {}
        self.come: Any = None

    def get_clients(self) -> dict[int, Any]:
        return self.clients

    def on_client_connect(self, do: Any) -> None:
        self.come = do

    def open(self) -> list[tuple[str, str, Any]]:
        """Return what a new browser is shown, now and later: title, text, seconds."""
        shown: list[tuple[str, str, Any]] = []

        def add(title: str, text: str, auto_close_seconds: Any = None, color: Any = None) -> Any:
            line = (title, text, auto_close_seconds)
            shown.append(line)
            return SimpleNamespace(remove=lambda: shown.remove(line))

        client = SimpleNamespace(add_notification=add)
        self.clients[len(self.clients)] = client
        self.come(client)
        return shown


def trained_run(scene: Scene, run: Path, steps: int = 3, config: TrainConfig = MANY) -> Path:
    """Make a run folder with a checkpoint, without a worker."""
    Run.create(run, scene.path, config)
    trainer = Trainer(scene, config)
    for _ in range(steps):
        trainer.train_step()
    checkpoint = trainer.save(run)
    trainer.close()
    return checkpoint


def scores(psnr: float) -> Evaluation:
    """Return an evaluation of one photo."""
    image = ImageScore("a.png", psnr, 0.5)
    return Evaluation(psnr, 0.5, num_gaussians=7, images=(image,), seconds_per_image=0.1)


@dataclass
class Steered:
    """A controller and what it told the user."""

    controller: Controller
    notices: list[Notice]

    def wait(self, condition: Callable[[Status], bool], what: str) -> Status:
        wait_until(lambda: condition(self.controller.status), f"{what}; {self.controller.status}")
        return self.controller.status

    @classmethod
    def of(cls, path: Path, config: TrainConfig = MANY) -> Steered:
        """Return a controller whose worker has not been started."""
        notices: list[Notice] = []
        return cls(Controller(open_project(path, config, None), notices.append), notices)


def evaluate_panel(page: Page) -> EvaluatePanel:
    """Return an Evaluate tab that shows what is on the disk."""
    panel = EvaluatePanel(page, lambda client, index: None)
    panel.refresh()
    return panel


def as_user(handle: Any, value: Any) -> None:
    """Change a control as a browser does: it has the value, and its callbacks are told by whom."""
    handle._impl.value = value
    event = SimpleNamespace(client=SimpleNamespace(client_id=1), client_id=1, target=handle)
    for callback in tuple(handle._impl.update_cb):
        if (waiting := callback(event)) is not None:
            asyncio.run(waiting)


def standing_in(camera: Camera, width: int, height: int) -> Viewpoint:
    """Return the viewpoint of a browser with this canvas that was sent to `camera`."""
    rotation = viser.transforms.SO3.from_matrix(camera.viewmat[:3, :3].T)
    return Viewpoint(rotation.wxyz, camera.position, fitting_fov(camera, width / height), width, height)
