"""Watching and steering a training over a socket: who gets in, what is obeyed, what is told."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from splatstudio.cli.attach import attach, described, order_of
from splatstudio.runtime.channel.handshake import RunCard
from splatstudio.runtime.channel.remote_server import RemoteServer
from splatstudio.runtime.messages import Command, Finished, Pause, SetCap, Step, UpdateSettings, Warned
from splatstudio.runtime.remote_run import RemoteLine, dial
from splatstudio.train.device_options import DeviceOptions

BIN = Path(sys.executable).parent


@pytest.fixture
def server() -> Iterator[tuple[RemoteServer, list[Command]]]:
    obeyed: list[Command] = []
    card = RunCard(Path("scene"), Path("run"), "{}", 2)
    made = RemoteServer("127.0.0.1", 0, obeyed.append, lambda: card)
    yield made, obeyed
    made.close()


def connected(server: RemoteServer, *, frames: bool = False) -> RemoteLine:
    return dial(f"127.0.0.1:{server.port}", server.token, frames=frames)


def closed(line: socket.socket) -> bool:
    """Say whether the server has let go without a word."""
    try:
        return line.recv(1) == b""
    except ConnectionResetError:
        return True


def test_who_has_the_token_hears_and_is_obeyed(server: tuple[RemoteServer, list[Command]]) -> None:
    made, obeyed = server
    made.tell(Warned("before"))
    line = connected(made)
    with line.socket, line.answers as answers:
        heard = json.loads(answers.readline())
        assert (heard["event"], heard["sentence"]) == ("Warned", "before")
        assert line.card == RunCard(Path("scene"), Path("run"), "{}", 2)
        for text in ("pause", "step 7", "cap 900", "set optim.means_lr 1e-5"):
            line.socket.sendall(json.dumps(order_of(text)).encode() + b"\n")
        deadline = time.monotonic() + 120
        while len(obeyed) < 4 and time.monotonic() < deadline:
            time.sleep(0.01)
        made.tell(Warned("after"))
        assert json.loads(answers.readline())["sentence"] == "after"
    assert obeyed == [Pause(), Step(7), SetCap(900), UpdateSettings((("optim.means_lr", 1e-5),))]


@pytest.mark.parametrize("token", ["", "wrong", "\udcff"])
def test_a_wrong_token_is_refused_in_a_sentence(
    server: tuple[RemoteServer, list[Command]], token: str
) -> None:
    made, obeyed = server
    made.tell(Warned("secret"))
    for watch in (lambda a: attach(a, token, ["stop"]), lambda a: dial(a, token, frames=True)):
        with pytest.raises(ValueError, match="the token is not that of this training"):
            watch(f"127.0.0.1:{made.port}")
    assert made.num_spectators == 0 and obeyed == []


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b'{"order": "Close"}\n',
        b'{"order": "Start"}\n',
        b'{"order": "Step", "count": 1e99}\n',
        b'{"order": "Step", "count": NaN}\n',
        b'{"order": "Pause", "more": 1}\n',
        b"[1, 2]\n",
        b'{"order": "' + b"a" * 100_000 + b'"}\n',
    ],
)
def test_what_is_no_order_ends_the_line_and_nothing_else(
    server: tuple[RemoteServer, list[Command]], line: bytes
) -> None:
    made, obeyed = server
    client = connected(made)
    with client.socket:
        client.socket.sendall(line)
        assert closed(client.socket)
    made.tell(Warned("still there"))
    again = connected(made)
    with again.socket, again.answers:
        assert b"still there" in again.answers.readline()
    assert obeyed == []


def test_a_terminal_finds_a_training_that_was_started_again(
    server: tuple[RemoteServer, list[Command]],
) -> None:
    made, _ = server
    ends: list[int] = []
    address = f"127.0.0.1:{made.port}"
    terminal = threading.Thread(target=lambda: ends.append(attach(address, made.token, [])), daemon=True)
    terminal.start()
    deadline = time.monotonic() + 120
    while made.num_spectators == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    made._spectators[0]._client.sendall(b'{"event": "Prog')  # it dies in the midst of a line
    made.close()
    card = RunCard(Path("scene"), Path("run"), "{}", 2)
    again = RemoteServer("127.0.0.1", made.port, lambda _: None, lambda: card, made.token)
    again.tell(Finished(9, True, None))
    while again.num_spectators == 0 and time.monotonic() < deadline:
        time.sleep(0.01)
    again.close()
    terminal.join(120)
    assert ends == [0]


def test_a_terminal_can_be_left_while_nobody_answers(server: tuple[RemoteServer, list[Command]]) -> None:
    made, _ = server

    def typed() -> Iterator[str]:
        made.close()
        yield "quit"

    assert attach(f"127.0.0.1:{made.port}", made.token, typed()) == 0


def test_typed_lines_become_orders_or_a_sentence() -> None:
    assert order_of("set densify.absgrad TRUE")["values"] == [["densify.absgrad", True]]
    assert order_of("step") == {"order": "Step", "count": 1}
    for wrong in ("fly", "step x", "cap", "set a", "pause now"):
        with pytest.raises(ValueError, match="none of: pause"):
            order_of(wrong)
    row = {"rank": 1, "num_gaussians": 5000, "step_seconds": 0.1, "wait_seconds": 0.02}
    assert described({"event": "RanksReport", "ranks": [row]}) == (
        "rank 1: 5,000 splats, 100 ms a step, 20 ms of it waiting"
    )
    with pytest.raises(ValueError, match="HOST:PORT"):
        attach("nowhere", "t", [])
    with pytest.raises(ValueError, match="HOST:PORT"):
        DeviceOptions(attach="nowhere").attach_at  # noqa: B018


def steer(command: list[object]) -> str:
    """Evaluate, change a setting, train five steps and stop; return what was told."""
    told: list[str] = []
    with subprocess.Popen(
        [str(part) for part in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as attached:
        assert attached.stdin is not None and attached.stdout is not None
        sayings = [("evaluate", "PSNR"), ("set optim.means_lr 1e-5", "optim.means_lr"), ("step 5", "paused")]
        for typed, answer in [*sayings, ("save", "Saved"), ("stop", "finished")]:
            attached.stdin.write(typed + "\n")
            attached.stdin.flush()
            while line := attached.stdout.readline():
                told.append(line)
                if answer in line and "Type:" not in line:
                    break
        told.append(attached.communicate(timeout=200)[0])
        assert attached.returncode == 0, told
    return "".join(told)


def test_a_training_of_torchrun_is_steered_from_another_terminal(blob_folder: Path, tmp_path: Path) -> None:
    train = [BIN / "splatstudio", "train", blob_folder, "--run", tmp_path / "run", "--steps", "100000"]
    train += ["--save-steps", "--eval-steps", "--sh-degree", "1", "--attach", "127.0.0.1:0"]
    launcher = [BIN / "torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", "--"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [*launcher, *train], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as training:
        assert training.stdout is not None
        try:
            found = None
            while found is None and (line := training.stdout.readline()):
                found = re.search(r"attach (\S+) --token (\S+)", line)
            assert found is not None, "it never said where it is"
            command = [BIN / "splatstudio", "attach", found[1], "--token", found[2], "--terminal"]
            told = steer(command)
            assert training.wait(200) == 0
        finally:
            training.kill()
    assert "optim.means_lr is 1e-05" in told and "StateChanged: paused" in told, told
    assert "StateChanged: finished" in told and "rank 1: " in told, told
    assert len(list((tmp_path / "run" / "ckpts").glob("step_*/rank00001-of-00002.safetensors"))) >= 1
