"""How quickly the studio answers a moving camera, and what the looking costs the training.

A studio is opened on a scene with a model of 114 k splats; a client of its own process speaks the page's
protocol: it moves its camera 30 times a second and answers each picture as a browser does. Latency is the
time in the studio from a camera message to the first encoded picture that shows it or a newer one; the
speeds are shares of the speed with the browser closed.

    python tests/bench/latency.py --json
    python tests/bench/latency.py --ply MODEL.ply --scene FOLDER
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec
import numpy as np
import viser
import viser.transforms
import zstandard
from websockets.sync.client import connect
from websockets.typing import Subprotocol

from splatstudio.cameras.camera import Camera
from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.files.run import Run
from splatstudio.formats import read_splats
from splatstudio.gaussians.transform import transformed
from splatstudio.gui.app import Studio
from splatstudio.gui.state import stream
from splatstudio.optimization.optim import SplatAdam
from splatstudio.runtime.messages import Pause, Progress, Resume, ViewOptions
from splatstudio.runtime.supervisor import ReceivedFrame
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.strategy.population import Population, trainable
from splatstudio.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
WIDTH, HEIGHT = 640, 360
MESSAGES_PER_SECOND = 30
MEASURE_SECONDS = 8.0


def prepared_run(folder: Path, scene_path: Path, ply: Path, downscale: int) -> Path:
    """Write a run whose checkpoint holds the model of `ply`, which goes on with the same number of splats."""
    config = TrainConfig(
        steps=1_000_000,
        downscale=downscale,
        densify=DensifyConfig(enabled=False),
        eval_steps=(),
        save_steps=(),
    )
    scene = load_scene(scene_path, downscale=downscale, test_every=config.test_every)
    trainer = Trainer(scene, config)
    gaussians = trainable(transformed(read_splats(ply).gaussians, scene.transform))
    empty = trainer.checkpoint()
    population = Population(gaussians, SplatAdam.zeros(gaussians), empty.population.counts)
    counts = {name: value.new_zeros(len(gaussians)) for name, value in population.counts.items()}
    # The degree of the spherical harmonics grows with the steps: from here on it is the full one.
    checkpoint = replace(empty, step=5000, population=replace(population, counts=counts))
    run = Run.create(folder / "run", scene_path, config)
    save_checkpoint(run.path, checkpoint)
    trainer.close()
    return run.path


class Client:
    """The page as the studio sees it: a camera that may move, and two answers to each picture."""

    def __init__(self, port: int, token: str):
        self._socket = connect(
            f"ws://localhost:{port}/",
            sock=socket.create_connection(("127.0.0.1", port)),
            additional_headers={"Authorization": f"Bearer {token}"},
            subprotocols=[Subprotocol(f"viser-v{viser.__version__}")],
            compression=None,
            proxy=None,
            max_size=None,
        )
        self._sending = threading.Lock()
        threading.Thread(target=self._receive, daemon=True).start()

    def move(self, angle: float) -> None:
        """Send the camera, on a circle around the scene."""
        position = np.array([np.sin(angle), 0.3, -np.cos(angle)]) * 0.5
        forward = -position / np.linalg.norm(position)
        right = np.cross([0.0, 1.0, 0.0], forward)
        right /= np.linalg.norm(right)
        rotation = np.stack([right, np.cross(forward, right), forward], axis=1)
        self._send(
            {
                "type": "ViewerCameraMessage",
                "wxyz": viser.transforms.SO3.from_matrix(rotation).wxyz.tolist(),
                "position": position.tolist(),
                "fov": 0.9,
                "near": 0.01,
                "far": 1000.0,
                "image_height": HEIGHT,
                "image_width": WIDTH,
                "look_at": [0.0, 0.0, 0.0],
                "up_direction": [0.0, -1.0, 0.0],
            }
        )

    def _send(self, message: dict[str, Any]) -> None:
        with self._sending:
            self._socket.send(msgspec.msgpack.encode(message))

    def _receive(self) -> None:
        for data in self._socket:
            assert isinstance(data, bytes)
            size = int.from_bytes(data[8:16], "little")
            inner = zstandard.ZstdDecompressor().decompress(data[16 : 16 + size])
            for message in msgspec.msgpack.decode(inner)["messages"]:
                if message["type"] == "LocalStorageGetItemRequestMessage":
                    uuid = message["request_uuid"]
                    answer = {"value": None, "error": None, "request_uuid": uuid}
                    self._send({"type": "LocalStorageGetItemResponseMessage", **answer})


def client_process(connection: Connection, port: int, token: str) -> None:
    """Follow orders: how many seconds to look, moving or at rest; None ends."""
    client = Client(port, token)
    client.move(0.0)
    while (order := connection.recv()) is not None:
        seconds, moving = order
        start = time.monotonic()
        while (now := time.monotonic()) < start + seconds:
            if moving:
                client.move(0.4 * (now - start))
            time.sleep(1 / MESSAGES_PER_SECOND)
        connection.send("done")


@contextmanager
def browser(studio: Studio) -> Iterator[Callable[[float, bool], None]]:
    """A client in a process of its own; yields a function that lets it drag or rest for some seconds."""
    token = parse_qs(urlsplit(studio.url).query)["token"][0]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=client_process, args=(theirs, studio.port, token))
    process.start()

    def look(seconds: float, moving: bool) -> None:
        ours.send((seconds, moving))
        ours.recv()

    yield look
    ours.send(None)
    process.join()


class Probe:
    """Follows each camera message through the studio, to the first encoded picture that shows it."""

    def __init__(self, studio: Studio):
        self._waiting: deque[tuple[float, np.ndarray]] = deque()  # when, and the camera's position
        self._lock = threading.Lock()
        self._rendered = np.zeros(3)
        self.latencies: list[float] = []  # ms
        self.widths: list[float] = []  # px
        moved, render, push = (
            stream.Stream.camera_moved,
            studio.controller.render,
            stream.push_background_jpeg,
        )

        def camera_moved(viewed: stream.Stream) -> None:
            with self._lock:
                self._waiting.append((time.monotonic(), np.array(viewed.client.camera.position)))
            moved(viewed)

        def rendered(view: int, camera: Camera, options: ViewOptions) -> ReceivedFrame | None:
            received = render(view, camera, options)
            self._rendered = camera.position
            self.widths.append(camera.width)
            return received

        def pushed(client: viser.ClientHandle, jpeg: bytes) -> None:
            self._answer(time.monotonic())
            push(client, jpeg)

        for place, name, wrapped in (
            (stream.Stream, "camera_moved", camera_moved),
            (studio.controller, "render", rendered),
            (stream, "push_background_jpeg", pushed),
        ):
            setattr(place, name, wrapped)

    def _answer(self, now: float) -> None:
        """Take the messages that this picture answers: its own, and the older ones that it overtook."""
        with self._lock:
            shown = [np.allclose(self._rendered, position, atol=1e-6) for _, position in self._waiting]
            for _ in range(1 + max((i for i, here in enumerate(shown) if here), default=-1)):
                self.latencies.append(1000.0 * (now - self._waiting.popleft()[0]))

    def take(self) -> tuple[list[float], list[float]]:
        """Return the latencies and widths since the last time, and begin anew."""
        with self._lock:
            taken = self.latencies, self.widths
            self.latencies, self.widths = [], []
            self._waiting.clear()
        return taken


class StepCounter:
    """Steps a second of the training, over a stretch of time."""

    def __init__(self, studio: Studio):
        self.latest = 0
        studio.controller.listen(self._take)

    def _take(self, event: object) -> None:
        if isinstance(event, Progress):
            self.latest = event.step

    def rate(self, seconds: float, look: Callable[[float, bool], None] | None = None, moving: bool = False):
        """Return the steps a second while a browser drags or rests, or with none."""
        first, start = self.latest, time.monotonic()
        if look is not None:
            look(seconds, moving)
        else:
            time.sleep(seconds)
        return (self.latest - first) / (time.monotonic() - start)


@contextmanager
def every_pixel() -> Iterator[None]:
    """Let pictures of a moving camera have all pixels of the canvas, however long they take."""
    least, stream.LEAST_PIXELS = stream.LEAST_PIXELS, WIDTH * HEIGHT
    yield
    stream.LEAST_PIXELS = least


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return median and 95th percentile; NaN where there is nothing."""
    if not values:
        return float("nan"), float("nan")
    return statistics.median(values), float(np.percentile(values, 95))


def measure(studio: Studio, rounds: int) -> dict[str, float]:
    """Measure latency and speed; the speeds alternate with the closed browser's, so that drift cancels."""
    steps, probe = StepCounter(studio), Probe(studio)
    studio.start_training()
    while steps.latest == 0:
        time.sleep(0.1)
    steps.rate(3.0)
    alone, idle, dragging = [], [], []
    paused: tuple[list[float], list[float]] = ([], [])
    training: tuple[list[float], list[float]] = ([], [])
    full: tuple[list[float], list[float]] = ([], [])
    dragging_full = []
    for _ in range(rounds):
        alone.append(steps.rate(MEASURE_SECONDS))
        with browser(studio) as look:
            look(2.0, False)
            idle.append(steps.rate(MEASURE_SECONDS, look, False))
            look(2.0, True)
            probe.take()
            dragging.append(steps.rate(MEASURE_SECONDS, look, True))
            for kept, new in zip(training, probe.take(), strict=True):
                kept.extend(new)
            with every_pixel():
                look(1.0, True)
                probe.take()
                dragging_full.append(steps.rate(MEASURE_SECONDS, look, True))
            for kept, new in zip(full, probe.take(), strict=True):
                kept.extend(new)
            studio.controller.send(Pause())
            look(2.0, True)
            probe.take()
            look(MEASURE_SECONDS, True)
            for kept, new in zip(paused, probe.take(), strict=True):
                kept.extend(new)
            studio.controller.send(Resume())
            time.sleep(0.5)
    speed = statistics.median(alone)
    return {
        "paused_p50_ms": round(percentiles(paused[0])[0], 1),
        "paused_p95_ms": round(percentiles(paused[0])[1], 1),
        "training_p50_ms": round(percentiles(training[0])[0], 1),
        "training_p95_ms": round(percentiles(training[0])[1], 1),
        "training_slowdown_dragging": round(statistics.median(dragging) / speed, 3),
        "training_slowdown_idle": round(statistics.median(idle) / speed, 3),
        "training_frames_per_second": round(len(training[1]) / (rounds * MEASURE_SECONDS), 1),
        "training_full_p50_ms": round(percentiles(full[0])[0], 1),
        "training_full_p95_ms": round(percentiles(full[0])[1], 1),
        "training_full_slowdown_dragging": round(statistics.median(dragging_full) / speed, 3),
        "training_full_frames_per_second": round(len(full[1]) / (rounds * MEASURE_SECONDS), 1),
        "training_full_width": statistics.median(full[1]),
        "steps_per_second_alone": round(speed, 2),
        "paused_width": statistics.median(paused[1]),
        "training_width": statistics.median(training[1]),
    }


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ply", type=Path, default=SHARED / "bench" / "banana_114k.ply")
    parser.add_argument("--scene", type=Path, default=SHARED / "scenes" / "banana")
    parser.add_argument("--downscale", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    arguments = parser.parse_args()
    if not arguments.ply.exists() or not arguments.scene.exists():
        sys.exit(f"{arguments.ply} or {arguments.scene} does not exist; name others with --ply and --scene")
    with tempfile.TemporaryDirectory() as folder:
        run_dir = prepared_run(Path(folder), arguments.scene, arguments.ply, arguments.downscale)
        os.chdir(folder)
        studio = Studio(run_dir)
        try:
            figures = measure(studio, arguments.rounds)
        finally:
            # It saves first: a training that is killed is a failure, of which the studio would tell.
            studio.close()
    if arguments.json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value}")


if __name__ == "__main__":
    main()
