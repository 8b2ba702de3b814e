"""Watching and steering a training from a terminal: who gets in, what is obeyed, what is told."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from splatstudio.cli.attach import attach, command_of
from splatstudio.cli.options import attach_token
from splatstudio.cli.terminal import event_line
from splatstudio.runtime.channel.hub import Hub
from splatstudio.runtime.channel.remote_server import RemoteServer, RunCard
from splatstudio.runtime.messages import (
    Command,
    Finished,
    OrderRefused,
    Pause,
    Progress,
    RankFigures,
    RanksReport,
    SetCap,
    Step,
    UpdateSettings,
    Warned,
)
from splatstudio.runtime.remote_run import dial
from splatstudio.training.device_options import DeviceOptions

BIN = Path(sys.executable).parent


class Remote:
    """A training on the line: its hub, what it was told to do, its server."""

    def __init__(self, port: int = 0, token: str | None = None) -> None:
        self.obeyed: list[Command] = []
        self.hub = Hub(self.obeyed.append)
        card = RunCard(Path("scene"), Path("run"), "{}", 2)
        self.server = RemoteServer("127.0.0.1", port, self.hub, lambda: card, token)
        self.address = f"127.0.0.1:{self.server.port}"


@pytest.fixture
def remote() -> Iterator[Remote]:
    made = Remote()
    yield made
    made.server.close()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_who_has_the_token_hears_and_is_obeyed(remote: Remote) -> None:
    remote.hub.receive(Warned("before"))
    with closing(dial(remote.address, remote.server.token, frames=False)) as line:
        assert line.receive() == Warned("before")
        assert line.card == RunCard(Path("scene"), Path("run"), "{}", 2)
        for text in ("pause", "step 7", "cap 900", "set optim.means_lr 1e-5"):
            line.send(command_of(text))
        until(lambda: len(remote.obeyed) == 4)
        remote.hub.receive(Warned("after"))
        assert line.receive() == Warned("after")
    assert remote.obeyed == [Pause(), Step(7), SetCap(900), UpdateSettings((("optim.means_lr", 1e-5),))]


def test_an_answer_to_one_is_not_told_to_who_comes_later(remote: Remote) -> None:
    remote.hub.receive(Warned("the disk is full"))
    with closing(dial(remote.address, remote.server.token, frames=False)) as line:
        assert line.receive() == Warned("the disk is full")
        remote.hub.receive(OrderRefused("Not changed: unknown setting 'foo'."))
        assert line.receive() == OrderRefused("Not changed: unknown setting 'foo'.")
    remote.hub.receive(Finished(9, True, None))
    with closing(dial(remote.address, remote.server.token, frames=False)) as line:
        assert [line.receive(), line.receive()] == [Warned("the disk is full"), Finished(9, True, None)]


def test_where_lines_are_kept_the_progress_is_one_now_and_then(
    remote: Remote, capsys: pytest.CaptureFixture[str]
) -> None:
    ends: list[int] = []
    terminal = threading.Thread(
        target=lambda: ends.append(attach(remote.address, remote.server.token, [])), daemon=True
    )
    terminal.start()
    until(lambda: remote.server.num_clients == 1)
    printed: list[str] = []

    def is_printed(text: str) -> bool:
        printed.append(capsys.readouterr().out)
        return text in "".join(printed)

    for step in (1, 2, 3):  # each by itself: of those that wait on the line, the newest replaces the others
        remote.hub.receive(Progress(step, 9, 0.1, 30.0, 100, 20.0, 1.0))
        remote.hub.receive(Warned(f"warning {step}"))
        until(partial(is_printed, f"warning {step}"))
    remote.hub.receive(Finished(9, True, None))
    remote.hub.receive(Warned("the end"))
    until(partial(is_printed, "the end"))
    remote.server.close()
    terminal.join(120)
    assert ends == [0] and "".join(printed).count("loss") == 1, printed


@pytest.mark.parametrize("token", ["", "wrong", "\udcff"])
def test_a_wrong_token_is_refused_in_a_sentence(remote: Remote, token: str) -> None:
    remote.hub.receive(Warned("secret"))
    for watch in (lambda a: attach(a, token, ["stop"]), lambda a: dial(a, token, frames=True)):
        with pytest.raises(ValueError, match="the token is not that of this training"):
            watch(remote.address)
    assert remote.server.num_clients == 0 and remote.obeyed == []


def test_a_terminal_finds_a_training_that_was_started_again(remote: Remote) -> None:
    ends: list[int] = []
    terminal = threading.Thread(
        target=lambda: ends.append(attach(remote.address, remote.server.token, [])), daemon=True
    )
    terminal.start()
    until(lambda: remote.server.num_clients == 1)
    remote.server.close()
    again = Remote(remote.server.port, remote.server.token)
    again.hub.receive(Finished(9, True, None))
    until(lambda: again.server.num_clients == 1)
    again.server.close()
    terminal.join(120)
    assert ends == [0]


def test_a_terminal_can_be_left_while_nobody_answers(remote: Remote) -> None:
    def typed() -> Iterator[str]:
        remote.server.close()
        yield "quit"

    assert attach(remote.address, remote.server.token, typed()) == 0


def test_typed_lines_become_commands_or_a_sentence() -> None:
    assert command_of("set densify.absgrad TRUE") == UpdateSettings((("densify.absgrad", True),))
    assert command_of("step") == Step(1)
    for unsendable in (
        "cap 99999999999999999999",
        'set a {"b":1}',
        "step 9007199254740993",
        "set near 1e400",
    ):
        with pytest.raises(ValueError, match="cannot be sent"):
            command_of(unsendable)
    for wrong in ("fly", "step x", "cap", "set a", "pause now"):
        with pytest.raises(ValueError, match="none of: pause"):
            command_of(wrong)
    row = RankFigures(rank=1, num_gaussians=5000, step_seconds=0.1, wait_seconds=0.02)
    assert (
        event_line(RanksReport(3, (row,)), "") == "rank 1: 5,000 splats, 100 ms a step, 20 ms of it waiting"
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
        answers = attached.stdout

        def read_until(answer: str) -> None:
            while line := answers.readline():
                told.append(line)
                if answer in line and "Type:" not in line:
                    return

        sayings = [("evaluate", "PSNR"), ("set optim.means_lr 1e-5", "optim.means_lr"), ("step 5", "paused")]
        read_until("rank 1: ")  # Told every second or so: a training this short could end before it.
        for typed, answer in [*sayings, ("save", "Saved"), ("stop", "finished")]:
            attached.stdin.write(typed + "\n")
            attached.stdin.flush()
            read_until(answer)
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
    assert "optim.means_lr is 1e-05" in told and "State: paused" in told, told
    assert "State: finished" in told and "rank 1: " in told, told
    assert len(list((tmp_path / "run" / "ckpts").glob("step_*/rank00001-of-00002.safetensors"))) >= 1


def test_the_secret_is_typed_or_in_a_file_or_in_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    file.write_text("of the file\n")
    monkeypatch.setenv("SPLATSTUDIO_TOKEN", "of the environment")
    assert attach_token("typed", None) == "typed"
    assert attach_token(None, file) == "of the file"
    assert attach_token(None, None) == "of the environment"
    with pytest.raises(ValueError, match="are two secrets: omit one"):
        attach_token("typed", file)
    file.write_text("\n")
    with pytest.raises(ValueError, match="token holds no secret"):
        attach_token(None, file)
    monkeypatch.delenv("SPLATSTUDIO_TOKEN")
    with pytest.raises(
        ValueError, match=r"a secret is needed.*--token-file or the variable SPLATSTUDIO_TOKEN"
    ):
        attach_token(None, None)
    with pytest.raises(OSError, match="not a regular file"):
        attach_token(None, Path("/dev/zero"))
