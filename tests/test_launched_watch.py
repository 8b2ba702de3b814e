"""A rank of a launcher that hangs: the others notice, say which one it is, and end it and themselves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import psutil
import pytest
from torch._C._distributed_c10d import TCPStore

from splatstudio.worker import launched_watch
from splatstudio.worker.group import process_context
from splatstudio.worker.heartbeat import Heartbeats, Limits, Phase, Pulse
from splatstudio.worker.launched_watch import HUNG, Process

TIMEOUT = 100.0
NUM_RANKS = 2
READY = "ready"


def rank_main(rank: int, port: int, ours: Connection, stuck: float) -> None:
    """Be what a rank is to the watch: a heartbeat, whose main thread goes on until it is told to hang."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    launched_watch.LIMITS = Limits(frozen=0.5, stuck={phase: stuck for phase in Phase})
    launched_watch.LOOK_SECONDS, launched_watch.LAST_WORDS_SECONDS = 0.2, 1.0
    heartbeats = Heartbeats(process_context(), NUM_RANKS)
    pulse = Pulse(heartbeats, rank)
    pulse.move(Phase.TRAINING, 1)
    launched_watch.LaunchedWatch(rank, NUM_RANKS, heartbeats, ours.send).start()
    ours.send(READY)
    step = 1
    while not ours.poll(0.05):
        step += 1
        pulse.move(Phase.TRAINING, step)
    time.sleep(TIMEOUT)


@dataclass
class Rank:
    process: BaseProcess
    line: Connection


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[list[Rank]]:
    stuck = 3.0 if request.node.callspec.params["how"] == "stuck" else TIMEOUT
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    context, started = process_context(), []
    for rank in range(NUM_RANKS):
        ours, theirs = context.Pipe()
        process = context.Process(target=rank_main, args=(rank, store.port, theirs, stuck))  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        started.append(Rank(process, ours))
    for rank in started:
        assert rank.line.poll(TIMEOUT) and rank.line.recv() == READY
    store.wait([f"splatstudio/beat/{rank}" for rank in range(NUM_RANKS)], timedelta(seconds=TIMEOUT))
    yield started
    for rank in started:
        rank.process.kill()
        rank.process.join()
    del store


@pytest.mark.parametrize(
    ("which", "how", "says"),
    [
        (1, "stopped", "stood still for"),
        (0, "stopped", "stood still for"),
        (1, "stuck", "did not get on for"),
    ],
)
def test_a_rank_that_hangs_is_named_and_all_end(ranks: list[Rank], which: int, how: str, says: str) -> None:
    hangs, watcher = ranks[which], ranks[1 - which]
    if how == "stopped":
        assert hangs.process.pid is not None
        os.kill(hangs.process.pid, signal.SIGSTOP)
    else:
        hangs.line.send("hang")
    assert watcher.line.poll(TIMEOUT)
    told = watcher.line.recv()
    assert told.startswith(f"Rank {which} on ") and says in told and "to be started again" in told
    watcher.process.join(TIMEOUT)
    assert watcher.process.exitcode == HUNG
    hangs.process.join(TIMEOUT)
    assert hangs.process.exitcode in (-signal.SIGKILL, HUNG), "it does not hold its memory and ports any more"


def test_only_the_very_process_is_ended() -> None:
    own = Process.own()
    assert own.found == psutil.Process() and not own.stopped
    assert Process(own.host, own.pid, own.born - 1.0).found is None, "another one had this number"
    assert Process("elsewhere", own.pid, own.born).found is None
