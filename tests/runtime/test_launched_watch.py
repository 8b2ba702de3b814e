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

import msgspec
import psutil
import pytest
from free_ports import free_port
from msgspec.structs import replace
from torch._C._distributed_c10d import TCPStore

from splatstudio.runtime import launched as launched_watch
from splatstudio.runtime.heartbeat import Beat, Heartbeats, Limits, Phase, Pulse, SilenceWatch
from splatstudio.runtime.launched import HUNG, Process, RankWord
from splatstudio.runtime.rank_group import process_context

TIMEOUT = 100.0
NUM_RANKS = 2
SPARED = 5.0  # seconds, more than the limits in here
READY, HANG = "ready", "hang"


def rank_main(rank: int, port: int, ours: Connection, how: str) -> None:
    """Be what a rank is to the watch: a heartbeat, whose main thread goes on until it is told to hang."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    # As where no launcher holds it.
    store = TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if how == "deaf" else None
    stuck = 3.0 if how == "stuck" else TIMEOUT
    launched_watch.LIMITS = Limits(frozen=0.5, stuck={phase: stuck for phase in Phase})
    launched_watch.LOOK_SECONDS, launched_watch.LAST_WORDS_SECONDS = 0.2, 1.0
    launched_watch.STORE_SECONDS, launched_watch.DEAF_SECONDS = 1.0, 2.0
    if how == "deaf":  # as on another machine, where none sees that it was stopped
        own = replace(Process.own(), host="elsewhere")
        Process.own = classmethod(lambda cls: own)  # type: ignore[method-assign]
    heartbeats = Heartbeats(process_context(), NUM_RANKS)
    pulse = Pulse(heartbeats, rank)
    pulse.move(Phase.TRAINING, 1)
    launched_watch.LaunchedWatch(rank, NUM_RANKS, heartbeats, ours.send).start()
    ours.send(READY)
    step = 1
    while not (ours.poll(0.05) and ours.recv() == HANG):
        step += 1
        pulse.move(Phase.TRAINING, step)
    time.sleep(TIMEOUT)
    del store


@dataclass
class Rank:
    process: BaseProcess
    line: Connection


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[list[Rank]]:
    how = request.node.callspec.params["how"]
    if how != "deaf":
        store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        port = store.port
    else:
        port = free_port()
    context, started = process_context(), []
    for rank in range(NUM_RANKS):
        ours, theirs = context.Pipe()
        own = how if rank == 0 or how != "deaf" else "stopped"
        process = context.Process(target=rank_main, args=(rank, port, theirs, own))  # type: ignore[attr-defined]
        process.start()
        theirs.close()
        started.append(Rank(process, ours))
        assert ours.poll(TIMEOUT) and ours.recv() == READY
    if how == "deaf":
        store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
    store.wait([f"splatstudio/beat/{rank}" for rank in range(NUM_RANKS)], timedelta(seconds=TIMEOUT))
    for _ in range(2):  # who tells of itself again has heard of the other
        said = [store.get(f"splatstudio/beat/{rank}") for rank in range(NUM_RANKS)]
        while any(store.get(f"splatstudio/beat/{rank}") == said[rank] for rank in range(NUM_RANKS)):
            time.sleep(0.01)
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
        (0, "deaf", "stood still for"),
        (1, "stuck", "did not get on for"),
    ],
)
def test_a_rank_that_hangs_is_named_and_all_end(ranks: list[Rank], which: int, how: str, says: str) -> None:
    hangs, watcher = ranks[which], ranks[1 - which]
    if how != "stuck":
        assert hangs.process.pid is not None
        os.kill(hangs.process.pid, signal.SIGSTOP)
    else:
        hangs.line.send(HANG)
    if how == "deaf":
        assert not watcher.line.poll(SPARED), "it gets on: to it a store that is silent is no harm"
        watcher.line.send(HANG)  # as who waits for what the other has to give
    assert watcher.line.poll(TIMEOUT)
    told = watcher.line.recv()
    assert told.startswith(f"Rank {which} on ") and says in told and "to be started again" in told
    watcher.process.join(TIMEOUT)
    assert watcher.process.exitcode == HUNG
    if how == "deaf":
        return  # its own machine does that
    hangs.process.join(TIMEOUT)
    assert hangs.process.exitcode in (-signal.SIGKILL, HUNG), "it does not hold its memory and ports any more"


def test_only_the_very_process_is_ended() -> None:
    own = Process.own()
    assert own.found == psutil.Process() and not own.stopped
    assert Process(own.host, own.pid, own.born - 1.0).found is None, "another one had this number"
    assert Process("elsewhere", own.pid, own.born).found is None


@pytest.mark.parametrize("rank", [0, 1])
def test_who_has_not_told_of_itself_and_who_has_left_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    beats = Heartbeats(process_context(), 2)
    watch = launched_watch.LaunchedWatch(rank, 2, beats, print)
    line = launched_watch._store()
    assert line is not None
    other, key = RankWord(Beat(1, 1, Phase.TRAINING, 1), Process.own()), launched_watch._key(1 - rank)

    def blamed() -> set[int]:
        found, silences = set[int](), SilenceWatch(watch._words, len(watch._watched), Limits())
        for second in range(200):
            for word in (0, 1):
                beats.write(rank, word, second)  # this one gets on
            assert watch._exchange(line)
            watch._spare(deaf=False)
            if (silence := silences.check(1.0, order_waits=False)) is not None:
                found.add(watch._watched[silence.rank])
        return found

    beats.write(rank, 2, int(Phase.TRAINING))
    assert blamed() == set(), "it may be that it cannot reach the store"
    store.set(key, msgspec.json.encode(other).decode())
    assert blamed() == {1 - rank}
    store.set(key, msgspec.json.encode(replace(other, left=True)).decode())
    assert blamed() == set()
    store.set(key, '{"beat": 7}')
    assert blamed() == set(), "what another release tells is not understood"
