"""Two machines train one model, one of them dies with all that it runs, and the studio elsewhere goes on."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.checkpoints.manifest import read_manifest
from splatstudio.cli.train import train_scene
from splatstudio.gui.attached import (
    AttachedStudio,
    Gathering,
    attached_studio,
    nodes_asked_for,
    words_for_training,
)
from splatstudio.gui.server.access import THIS_MACHINE, Listen
from splatstudio.runtime.messages import Export, Pause, Resume, Save, Stop, ViewOptions
from splatstudio.runtime.remote_run import Unreachable
from splatstudio.runtime.store_host import EVERYWHERE, KEY, StoreHost, announce, own_address
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import DeviceOptions

TIMEOUT = 150.0
BIN = Path(sys.executable).parent
pytestmark = pytest.mark.skipif(shutil.which("torchrun", path=str(BIN)) is None, reason="no torchrun")
NETWORK = "10.77.77"
LENS = np.array([[80.0, 0, 48], [0, 80.0, 36], [0, 0, 1]])


@dataclass(frozen=True)
class Machine:
    """Where an agent runs: what goes before its command, and how the others reach it."""

    inside: tuple[str, ...]
    address: str
    interface: str


class Nodes:
    """Machines, an agent of torchrun on each."""

    def __init__(self, machines: list[Machine], log: Path, store: StoreHost):
        self.machines, self.log, self.store = machines, log, store
        self.agents: dict[int, subprocess.Popen[bytes]] = {}
        self.command: list[str] = []

    def start(self, number: int) -> None:
        machine = self.machines[number]
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": machine.interface, "OMP_NUM_THREADS": "1"}
        environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        command = [*machine.inside, *(part.replace("OWN", machine.address) for part in self.command)]
        with open(self.log, "ab") as log:
            self.agents[number] = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def kill(self, number: int) -> None:
        """End a machine: its agent and all that it has started, at once."""
        agent = self.agents[number]
        with suppress(psutil.NoSuchProcess):
            root = psutil.Process(agent.pid)
            for process in (root, *root.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):  # one has ended by itself; the others have not
                    process.send_signal(signal.SIGKILL)
        agent.wait()

    def wait_until(self, true: Callable[[], object]) -> None:
        deadline = time.monotonic() + TIMEOUT
        while not true():
            assert time.monotonic() < deadline, self.log.read_text()
            time.sleep(0.05)


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


@pytest.fixture
def machines(request: pytest.FixtureRequest) -> Iterator[list[Machine]]:
    """Two machines: on loopback, or each a network of its own behind a bridge, which needs root."""
    if request.param == "loopback":
        yield [Machine((), "127.0.0.1", "lo")] * 2
        return
    names, bridge = [f"splat{os.getpid()}n{i}" for i in (1, 2)], f"sb{os.getpid()}"
    try:
        ip("link", "add", bridge, "type", "bridge")
        ip("addr", "add", f"{NETWORK}.254/24", "dev", bridge)
        ip("link", "set", bridge, "up")
        for number, name in enumerate(names, 1):
            outer = f"sv{os.getpid()}{number}"
            ip("netns", "add", name)
            ip("link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", outer, "master", bridge, "up")
            ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
            for interface in ("eth0", "lo"):
                ip("-n", name, "link", "set", interface, "up")
        yield [
            Machine(("ip", "netns", "exec", name), f"{NETWORK}.{number}", "eth0")
            for number, name in enumerate(names, 1)
        ]
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "delete", name], check=False)
        subprocess.run(["ip", "link", "delete", bridge], check=False)


@pytest.fixture
def nodes(machines: list[Machine], blob_folder: Path, tmp_path: Path) -> Iterator[Nodes]:
    # A store of neither machine: the one that hosts it could not be replaced.
    store_at = "127.0.0.1" if machines[0].interface == "lo" else f"{NETWORK}.254"
    store = StoreHost(0, store_at)
    made = Nodes(machines, tmp_path / "log", store)
    words = ("--steps", "100000", "--save-steps", "20", "--eval-steps", "--sh-degree", "1")
    gathering = Gathering(blob_folder, tmp_path / "run", 2, store_at, "1", words)
    variable, *command = shlex.split(gathering.command(store.port))
    assert variable == "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1", "of which the machines need each"
    made.command = [part if part != "torchrun" else str(BIN / part) for part in command]
    made.command[1:1] = ["--local-addr", "OWN"]
    made.command = [part if part != "splatstudio" else str(BIN / part) for part in made.command]
    yield made
    for number in made.agents:
        made.kill(number)
    del store


def attached(nodes: Nodes) -> AttachedStudio:
    opened: list[AttachedStudio] = []

    def attach() -> bool:
        with suppress(Unreachable):
            opened.append(attached_studio(nodes.store.dialed, Listen(port=0)))
        return bool(opened)

    nodes.wait_until(attach)
    return opened[0]


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "machines",
    [
        "loopback",
        pytest.param(
            "namespaces",
            marks=pytest.mark.skipif(
                "SPLATSTUDIO_NAMESPACES" not in os.environ, reason="changes the network"
            ),
        ),
    ],
    indirect=True,
)
def test_the_studio_keeps_steering_when_a_machine_dies_and_is_replaced(nodes: Nodes, tmp_path: Path) -> None:
    nodes.start(0)
    nodes.start(1)
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
        assert studio.controller.project.scene is not None, "its photos are on this machine"
        nodes.wait_until(lambda: picture_step() > 30)
        controller.send(Save())
        nodes.wait_until(lambda: controller.last_saved is not None and controller.last_saved.step > 20)
        assert controller.last_saved is not None
        saved = controller.last_saved.step
        controller.change_settings({"ssim_weight": 0.3})
        nodes.wait_until(lambda: controller.project.config.ssim_weight == 0.3)
        controller.send(Pause())
        nodes.wait_until(lambda: controller.status.state == "paused")
        told = time.monotonic()
        nodes.kill(0)  # that of rank 0, to which the studio talks
        nodes.wait_until(lambda: controller.status.state == "disconnected")
        nodes.start(0)
        nodes.wait_until(lambda: controller.status.state == "paused")
        assert controller.status.step == saved, "it stands still again, at what was saved"
        assert "started again: ssim_weight is 0.3; it stands still" in nodes.log.read_text()
        controller.send(Resume())
        nodes.wait_until(lambda: step() > saved)
        print(f"training again {time.monotonic() - told:.1f} s after the end of a machine")
        nodes.wait_until(lambda: picture_step() > saved)
        assert controller.project.config.ssim_weight == 0.3
        controller.send(Export(tmp_path / "run" / "exports" / "a.ply", job=1))
        nodes.wait_until((tmp_path / "run" / "exports" / "a.ply").exists)
        controller.send(Stop())
        nodes.wait_until(lambda: controller.status.state == "ended")
    finally:
        studio.close()
    assert [agent.wait(TIMEOUT) for agent in nodes.agents.values()] == [0, 0], nodes.log.read_text()
    newest = max((tmp_path / "run" / "ckpts").glob("step_*"))
    assert len(read_manifest(newest)["ranks"]) == 2 and f"Goes on from {tmp_path}" in nodes.log.read_text()


def test_the_settings_of_the_studios_command_are_those_of_the_training() -> None:
    given = ["/data/a b", "--nodes", "2", "--steps", "100", "--nodes-at", "h:1", "--save-steps", "5", "9"]
    given += [
        "--run=/r",
        "--no-browser",
        "--densify.absgrad",
        "--max-splats",
        "900",
        "--allow_host",
        "x",
        "y",
    ]
    words = words_for_training(given, Path("/data/a b"))
    assert words == ("--steps", "100", "--save-steps", "5", "9", "--densify.absgrad", "--max-splats", "900")
    assert words_for_training(["--steps", "9", "scenes/garden/"], Path("scenes/garden")) == ("--steps", "9")
    command = shlex.split(Gathering(Path("/data/a b"), Path("/r"), 2, "studio", words=words).command(29400))
    assert command[-len(words) - 2 : -2] == list(words)
    assert command[command.index("train") + 1 :][:3] == ["/data/a b", "--run", "/r"]
    assert command[-2:] == ["--attach-via", "studio:29400"]
    assert command[command.index("--rdzv-endpoint") + 1] == "studio:29400"


def test_what_is_missing_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="--nodes needs --run"):
        nodes_asked_for([], tmp_path, None, DeviceOptions(nodes=2), THIS_MACHINE)
    with pytest.raises(ValueError, match="--nodes-at needs HOST:PORT"):
        nodes_asked_for([], tmp_path, tmp_path, DeviceOptions(nodes=2), THIS_MACHINE)
    for asked, sentence in (
        (DeviceOptions(nodes=2, gpus="0,1"), "CUDA_VISIBLE_DEVICES"),
        (DeviceOptions(nodes=2, max_splats="auto"), "as numbers"),
        (DeviceOptions(nodes=2, fit_batch=True), "as numbers"),
    ):
        with pytest.raises(ValueError, match=sentence):
            nodes_asked_for([], tmp_path, tmp_path, asked, THIS_MACHINE)
    for alone in (DeviceOptions(nodes_at="h:1"), DeviceOptions(nodes=0)):
        with pytest.raises(ValueError, match="--nodes says how many, 2 or more"):
            train_scene(tmp_path, TrainConfig(), None, resume=False, given=(), devices=alone)
    with pytest.raises(ValueError, match="--nodes is for `splatstudio open`"):
        train_scene(tmp_path, TrainConfig(), None, resume=False, given=(), devices=DeviceOptions(nodes=2))
    with socket.create_server(("0.0.0.0", 0)) as taken, pytest.raises(ValueError, match="choose another"):
        StoreHost(taken.getsockname()[1])


def test_rank_0_is_found_by_the_store() -> None:
    host = StoreHost()
    at = ("127.0.0.1", host.port)
    with pytest.raises(Unreachable, match="have not met yet"):
        host.dialed()
    assert own_address(at) == "127.0.0.1"
    announce(at, "127.0.0.1:1", "token")
    with pytest.raises(Unreachable, match="no training answers"):
        host.dialed()
    for said in ("{", "7", "[" * 60_000, '{"address": "127.0.0.1:1"}'):
        host._store.set(KEY, said)
        with pytest.raises(ValueError, match="is not understood"):
            host.dialed()
    del host
    with pytest.raises(OSError):
        own_address(at)


@pytest.mark.parametrize(
    ("host", "listens_on"),
    [
        ("127.0.0.2", "127.0.0.2"),
        ("localhost", "127.0.0.1"),
        (None, EVERYWHERE),
        ("192.0.2.1", EVERYWHERE),  # of no machine: this one is behind a router
        ("itself", EVERYWHERE),  # a name that means loopback here, and not for the others
        ("unheard-of", EVERYWHERE),
    ],
)
def test_the_store_listens_where_the_machines_are_told_to_come(
    monkeypatch: pytest.MonkeyPatch, host: str | None, listens_on: str
) -> None:
    def looked_up(name: str, port: int, **_: object) -> list[tuple[object, ...]]:
        known = {"itself": "127.0.1.1", "localhost": "127.0.0.1"}
        if name == "unheard-of":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known.get(name, name), port))]

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    store = StoreHost(0, host)
    monkeypatch.undo()
    assert store.address == listens_on
    at = (listens_on if listens_on != EVERYWHERE else "127.0.0.1", store.port)
    announce(at, "127.0.0.1:1", "token")
    if listens_on == "127.0.0.2":
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", store.port))
