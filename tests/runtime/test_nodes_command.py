"""What the studio says to start on each of several machines."""

from __future__ import annotations

import shlex
import socket
from pathlib import Path

import pytest

from splatstudio.cli.train import train_scene
from splatstudio.gui.app import Gathering, nodes_asked_for, words_for_training
from splatstudio.gui.server.access import THIS_MACHINE
from splatstudio.runtime.remote_run import Unreachable
from splatstudio.runtime.store_host import EVERYWHERE, KEY, StoreHost, announce, own_address
from splatstudio.settings.config import TrainConfig
from splatstudio.training.device_options import DeviceOptions


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
        host.dialled()
    assert own_address(at) == "127.0.0.1"
    announce(at, "127.0.0.1:1", "token")
    with pytest.raises(Unreachable, match="no training answers"):
        host.dialled()
    for said in ("{", "7", "[" * 60_000, '{"address": "127.0.0.1:1"}'):
        host._store.set(KEY, said)
        with pytest.raises(ValueError, match="is not understood"):
            host.dialled()
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
