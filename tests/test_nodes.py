"""Two machines train one model, one of them dies with all that it runs, and the studio elsewhere goes on."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest
from torch._C._distributed_c10d import TCPStore

from splatstudio.camera import Camera, look_at
from splatstudio.manifest import read_manifest
from splatstudio.studio.attached import AttachedStudio
from splatstudio.studio.network import Network
from splatstudio.worker.attached import AttachedPlan
from splatstudio.worker.handshake import dial
from splatstudio.worker.messages import Export, ViewOptions

TIMEOUT = 150.0
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.skipif(shutil.which("torchrun", path=str(BIN)) is None, reason="no torchrun")
LENS = np.array([[80.0, 0, 48], [0, 80.0, 36], [0, 0, 1]])


class Nodes:
    """Agents of torchrun, as many as there are machines, each a process group of its own."""

    def __init__(self, command: list[str], log: Path, address: str):
        self._command, self.log, self.address = command, log, address
        self.agents: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        with open(self.log, "ab") as log:
            agent = subprocess.Popen(self._command, env=environment, stdout=log, stderr=log)
        self.agents.append(agent)
        return agent

    def kill(self, agent: subprocess.Popen[bytes]) -> None:
        """End a machine: its agent and all that it has started, at once."""
        with suppress(psutil.NoSuchProcess):
            processes = psutil.Process(agent.pid).children(recursive=True)
            for process in (psutil.Process(agent.pid), *processes):
                process.send_signal(signal.SIGKILL)
        agent.wait()

    def wait_until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not true():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


@pytest.fixture
def nodes(blob_folder: Path, tmp_path: Path) -> Iterator[Nodes]:
    # A store of neither machine: the one that hosts it could not be replaced.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        attach = f"127.0.0.1:{probe.getsockname()[1]}"
    launch = [BIN / "torchrun", "--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "5"]
    launch += ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{store.port}", "--rdzv-id", "test"]
    launch += ["--rdzv-conf", "is_host=0,keep_alive_interval=1,keep_alive_max_attempt=3"]
    launch += ["--local-addr", "127.0.0.1", "--no-python", "--"]
    train = [BIN / "splatstudio", "train", blob_folder, "--run", tmp_path / "run", "--steps", "100000"]
    train += ["--save-steps", "20", "--eval-steps", "--sh-degree", "1", "--attach", attach]
    made = Nodes([str(part) for part in (*launch, *train)], tmp_path / "log", attach)
    yield made
    for agent in made.agents:
        made.kill(agent)
    del store


def attached(nodes: Nodes) -> AttachedStudio:
    nodes.wait_until(lambda: b" --token " in nodes.log.read_bytes())
    found = re.search(r"attach (\S+) --token (\S+)", nodes.log.read_text())
    assert found is not None and found[1] == nodes.address
    line = dial(nodes.address, found[2], frames=True)
    return AttachedStudio(AttachedPlan(nodes.address, found[2], line), Network(port=0))


def test_the_studio_keeps_steering_when_a_machine_dies_and_is_replaced(nodes: Nodes, tmp_path: Path) -> None:
    first, second = nodes.start(), nodes.start()
    studio = attached(nodes)
    controller = studio.controller
    camera = Camera(look_at(np.array([0.0, -2.0, 1.0]), np.zeros(3), np.array([0.0, 0.0, 1.0])), LENS, 96, 72)

    def step() -> int:
        return controller.status.step if controller.status.state == "training" else 0

    def picture_step() -> int:
        received = controller.render(1, camera, ViewOptions())
        return received.frame.step if received is not None else 0

    try:
        nodes.wait_until(lambda: step() > 30)
        assert studio.project.scene is not None, "its photographs are on this machine"
        nodes.wait_until(lambda: picture_step() > 30)
        controller.save()
        nodes.wait_until(lambda: controller.last_saved is not None and controller.last_saved.step > 20)
        assert controller.last_saved is not None
        saved = controller.last_saved.step
        told = time.monotonic()
        nodes.kill(second)
        nodes.wait_until(lambda: controller.status.state == "restarting")
        nodes.start()
        nodes.wait_until(lambda: step() > saved)
        print(f"training again {time.monotonic() - told:.1f} s after the end of a machine")
        nodes.wait_until(lambda: picture_step() > saved)
        controller.change_settings({"ssim_weight": 0.3})
        nodes.wait_until(lambda: controller.project.config.ssim_weight == 0.3)
        controller.send(Export(tmp_path / "run" / "exports" / "a.ply", job=1))
        nodes.wait_until((tmp_path / "run" / "exports" / "a.ply").exists)
        controller.stop()
        nodes.wait_until(lambda: controller.status.state == "ended")
    finally:
        studio.close()
    assert [agent.wait(60) for agent in (first, nodes.agents[-1])] == [0, 0], nodes.log.read_text()
    newest = max((tmp_path / "run" / "ckpts").glob("step_*"))
    assert len(read_manifest(newest)["ranks"]) == 2 and f"Goes on from {tmp_path}" in nodes.log.read_text()
