"""What strangers can do to a studio's page and to a training that is attached to: tries, counted.

    python tests/bench/attack.py [--scale 1.0] [--json]

`splatstudio open` runs with 1,024 file descriptors, and torchrun trains on two ranks with --attach, both on
all networks. Strangers send wrong secrets, wrong names, requests that were heard before, garbage and nothing,
and come in crowds; garbage goes to each port of the ranks, too, that of their store and those of gloo. After
each kind the right secret must be let in and the training must have gone on; a traceback, or anything that a
stranger is told beyond a refusal, is a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

import psutil
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from splatstudio.runtime.channel.codec import decode, encode
from splatstudio.runtime.channel.remote_server import PROTOCOL, Greeting, Hello, proof
from splatstudio.runtime.messages import Progress
from splatstudio.runtime.remote_run import dial
from splatstudio.scene.demo import demo_scene

BIN = Path(sys.executable).parent
DESCRIPTORS = 1024
PATIENCE = 240.0  # for a program to start, on a machine with other work
TRAIN = ("--steps", "1000000", "--densify.no-enabled")
CHANCE = random.Random(1)


@dataclass(frozen=True)
class Row:
    """A kind of attack, how often it was tried, and what came of it."""

    fault: str
    cases: int
    outcome: str
    good: bool


class Program:
    """A command that is attacked, and what it prints."""

    def __init__(self, *command: object, cwd: Path, **environment: str):
        self.process = subprocess.Popen(
            [str(word) for word in command],
            cwd=cwd,
            env=os.environ | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS)),
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self._output: IO[str] = self.process.stdout
        self.lines: list[str] = []

    def find(self, pattern: str) -> re.Match[str]:
        """Return what is printed first that looks so."""
        deadline = time.monotonic() + PATIENCE
        for line in self._output:
            self.lines.append(line)
            if found := re.search(pattern, line):
                return found
            assert time.monotonic() < deadline, self.lines
        raise SystemExit(f"it ended without {pattern}: {''.join(self.lines)}")

    def end(self) -> str:
        """End it as Ctrl-C does, and return all that it printed."""
        os.killpg(self.process.pid, signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            rest, _ = self.process.communicate(timeout=PATIENCE)
            return "".join(self.lines) + rest
        os.killpg(self.process.pid, signal.SIGKILL)
        return "".join(self.lines) + "Traceback: it did not end"


def main() -> None:
    """Attack both, and print a table; exit code 1 where something did not hold."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of tries")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 1 << 14)), hard))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for attack in (attack_page, attack_training):
            for row in attack(Path(folder), asked.scale):
                rows.append(row)
                if not asked.json:
                    print(
                        f"{'ok ' if row.good else 'BAD'} {row.cases:6,} {row.fault}: {row.outcome}",
                        flush=True,
                    )
    if asked.json:
        print(json.dumps([asdict(row) for row in rows]))
    else:
        num, bad = sum(row.cases for row in rows), sum(not row.good for row in rows)
        print(f"{num:,} cases, {bad} kinds did not hold")
    sys.exit(not all(row.good for row in rows))


def attack_page(folder: Path, scale: float) -> Iterator[Row]:
    """Attack the page of a studio that trains."""
    where = ("--host", "0.0.0.0", "--port", "0", "--no-browser", "--train", "--run", "page")
    studio = Program(BIN / "splatstudio", "open", demo_scene(), *where, *TRAIN, cwd=folder)
    found = studio.find(r"localhost:(\d+)/\?token=(\S+)")
    port, token = int(found[1]), found[2]

    def holds() -> str:
        return (
            "" if answered(port, {"Authorization": f"Bearer {token}"}) == 200 else "the page does not answer"
        )

    wrong = [{"Authorization": f"Bearer {secret}"} for secret in guesses(token)]
    wrong += [{"Cookie": f"splatstudio_{port}={secret}"} for secret in guesses(token)]
    names = [
        {"Host": name, "Authorization": f"Bearer {token}"} for name in ("evil.example", "a" * 300, "é", "")
    ]
    names += [
        {"Origin": page, "Authorization": f"Bearer {token}"} for page in ("http://evil.example", "null", "x:")
    ]
    for fault, headers, allowed in (
        ("page: wrong secrets", wrong, {0, 400, 403}),
        ("page: other names and pages, with the secret", names, {0, 400, 403, 421}),
    ):
        num = int(600 * scale)
        told = {answered(port, headers[i % len(headers)]) for i in range(num)}
        yield row_of(
            fault, num, holds, "" if told <= allowed else f"some were answered with {told - allowed}"
        )
    yield row_of("page: garbage", send_garbage(port, int(600 * scale)), holds)
    yield row_of("page: crowds of open lines, 1,024 descriptors", crowd(port, int(2500 * scale)), holds)
    said = studio.end()
    kept = "Saved" in said and "Traceback" not in said
    yield Row("page: Ctrl-C after all this", 1, "saved, no traceback" if kept else said[-2000:], kept)


def attack_training(folder: Path, scale: float) -> Iterator[Row]:
    """Attack the line of those who attach to a training on two ranks, and the ports of the ranks."""
    launcher = (BIN / "torchrun", "--standalone", "--nproc-per-node", "2", "--no-python", "--")
    attach = ("--run", "launched", "--attach", "0.0.0.0:0")
    training = Program(
        *launcher,
        BIN / "splatstudio",
        "train",
        demo_scene(),
        *attach,
        *TRAIN,
        cwd=folder,
        OMP_NUM_THREADS="1",
    )
    found = training.find(r"attach \S+:(\d+) --token (\S+)")
    port, token = int(found[1]), found[2]

    def holds() -> str:
        return goes_on(port, token)

    yield row_of("attach: handshakes with wrong proofs", shake_hands(port, int(1500 * scale), None), holds)
    yield row_of("attach: proofs that were heard before", shake_hands(port, int(500 * scale), token), holds)
    yield row_of("attach: garbage", send_garbage(port, int(1500 * scale)), holds)
    yield row_of("attach: crowds of open lines, 1,024 descriptors", crowd(port, int(10_000 * scale)), holds)
    ports = sorted(ports_of(training.process.pid) - {port})
    num = sum(send_garbage(each, int(60 * scale)) for each in ports)
    yield row_of(f"garbage to the {len(ports)} other ports of launcher and ranks (store, gloo)", num, holds)
    said = training.end()
    # torchrun itself ends by a traceback of its own, of the signal.
    kept = any((folder / "launched" / "ckpts").glob("step_*")) and "forcefully" not in said
    yield Row("attach: Ctrl-C after all this", 1, "saved by both ranks" if kept else said[-3000:], kept)


def row_of(fault: str, cases: int, holds: Callable[[], str], problem: str = "") -> Row:
    """Return what came of an attack: nothing, unless there is a problem or something does not hold."""
    problem = problem or holds()
    return Row(
        fault, cases, problem or "refused; the right secret is let in, the training goes on", not problem
    )


def guesses(token: str) -> list[str]:
    """Return secrets that are nearly right."""
    return ["", token[:-1], token + "x", token.swapcase(), "é" * 20, "x" * 7000, "\x00", f"{token} {token}"]


def answered(port: int, headers: dict[str, str]) -> int:
    """Return the status of the answer to a request, 0: none."""
    lines = [f"{name}: {value}" for name, value in {"Host": f"localhost:{port}", **headers}.items()]
    request = "\r\n".join(["GET / HTTP/1.1", *lines, "", ""]).encode("utf-8", "replace")
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 60) as line:
        line.sendall(request)
        words = line.recv(100).split()
        return int(words[1]) if len(words) > 1 else 0
    return 0


def send_garbage(port: int, num: int) -> int:
    """Send bytes of chance, some behind the beginning of something good; return how often."""
    starts = (
        b"",
        b"GET / HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n",
        b"\x16\x03\x01",
        b"\xff" * 9,
    )
    for number in range(num):
        data = starts[number % len(starts)] + CHANCE.randbytes(CHANCE.randrange(1, 3000))
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 5) as line:
            line.sendall(data)
            if number % 3:
                line.settimeout(0.05)
                line.recv(1 << 16)
    return num


def crowd(port: int, num: int) -> int:
    """Open lines and hold them, a few hundred more than there are descriptors, again and again."""
    opened = 0
    while opened < num:
        with ExitStack() as held:
            for _ in range(min(1300, num - opened)):
                opened += 1
                with suppress(OSError):
                    line = held.enter_context(socket.create_connection(("127.0.0.1", port), 0.05))
                    line.sendall(b"G")
            time.sleep(1.0)
    return opened


def shake_hands(port: int, num: int, token: str | None) -> int:
    """Answer greetings with wrong proofs, or with a token with the proof of another conversation."""
    old: tuple[str, str] | None = None
    for number in range(num):
        with (
            suppress(WebSocketException, OSError),
            connect(f"ws://127.0.0.1:{port}", compression=None, proxy=None, open_timeout=10) as line,
        ):
            nonce = decode(line.recv(timeout=10, decode=False), Greeting).nonce
            if token is not None and old is None:
                old = (nonce, proof(token, "caller", nonce, "0" * 32))
                continue
            shown = f"{number:064x}" if old is None else old[1]
            line.send(encode(Hello(PROTOCOL, "0" * 32, shown, frames=True)))
            said = line.recv(timeout=10, decode=False)
            assert b"the token is not that of this training" in said, said
    return num


def goes_on(port: int, token: str) -> str:
    """Return "" where who has the token is let in and hears of further steps; else what is wrong."""
    deadline, reached = time.monotonic() + PATIENCE, 0
    while time.monotonic() < deadline:
        with suppress(ValueError, OSError), closing(dial(f"127.0.0.1:{port}", token, frames=False)) as line:
            for _ in range(10_000):
                event = line.receive()
                if isinstance(event, Progress):
                    reached = reached or event.step
                    if event.step > reached + 20:
                        return ""
        time.sleep(0.5)
    return f"the training stands at step {reached}"


def ports_of(pid: int) -> set[int]:
    """Return all ports at which a program and what it has started listen."""
    processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    listening = (line for process in processes for line in process.net_connections("tcp"))
    return {line.laddr.port for line in listening if line.status == psutil.CONN_LISTEN}


if __name__ == "__main__":
    main()
