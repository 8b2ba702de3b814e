"""Ranks of a launcher as they watch each other: who hangs, who was stopped, who was told to end."""

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
from torch._C._distributed_c10d import TCPStore

from splatstudio.runtime import launched
from splatstudio.runtime.fork_server import process_context
from splatstudio.runtime.heartbeat import Beat, Heartbeats, Limits, Phase, Pulse, SilenceWatch
from splatstudio.runtime.launched import (
    HUNG,
    Process,
    RankWord,
)

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
    launched.LIMITS = Limits(frozen=0.5, stuck={phase: stuck for phase in Phase})
    launched.LOOK_SECONDS, launched.SPREAD_SECONDS = 0.2, 1.0
    launched.STORE_SECONDS, launched.DEAF_SECONDS = 1.0, 2.0
    if how == "deaf":  # as on another machine, where none sees that it was stopped
        own = msgspec.structs.replace(Process.own(), host="elsewhere")
        Process.own = classmethod(lambda cls: own)  # type: ignore[method-assign]
    heartbeats = Heartbeats(process_context(), NUM_RANKS)
    pulse = Pulse(heartbeats, rank)
    pulse.move(Phase.TRAINING, 1)
    launched.LaunchedWatch(rank, NUM_RANKS, heartbeats, ours.send).start()
    ours.send(READY)
    step = 1
    while not (ours.poll(0.05) and ours.recv() == HANG):
        step += 1
        pulse.move(Phase.TRAINING, step)
    time.sleep(TIMEOUT)
    del store


def lonely_rank_main(ours: Connection) -> None:
    """Be a rank that waits for another one, which does not come."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"], os.environ["TORCHELASTIC_MAX_RESTARTS"] = "True", "3"
    launched.LOOK_SECONDS, launched.LAST_WORDS_SECONDS, launched.MEETING_SECONDS = 0.05, 0.1, 0.5
    launched.LaunchedWatch(0, NUM_RANKS, Heartbeats(process_context(), NUM_RANKS), ours.send).start()
    time.sleep(TIMEOUT)


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


def test_ranks_that_never_meet_end() -> None:
    context = process_context()
    ours, theirs = context.Pipe()
    process = context.Process(target=lonely_rank_main, args=(theirs,))  # type: ignore[attr-defined]
    process.start()
    assert ours.poll(TIMEOUT)
    told = ours.recv()
    assert told.startswith("The ranks have not met for") and "set TORCH_DISABLE_SHARE_RDZV" in told
    process.join(TIMEOUT)
    assert process.exitcode == HUNG


@pytest.mark.parametrize(
    ("which", "how", "says"),
    [
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
    assert told.startswith(f"Rank {which} on ") and says in told and "All ranks end" in told
    watcher.process.join(TIMEOUT)
    assert watcher.process.exitcode == HUNG
    if how == "deaf":
        return  # its own machine does that
    hangs.process.join(TIMEOUT)
    assert hangs.process.exitcode in (-signal.SIGKILL, HUNG), "it does not hold its memory and ports any more"


@pytest.mark.parametrize(("which", "how"), [(0, "stopped")])
def test_a_rank_that_was_stopped_is_woken_and_all_go_on(ranks: list[Rank], which: int, how: str) -> None:
    stopped, watcher = ranks[which], ranks[1 - which]
    assert how == "stopped" and stopped.process.pid is not None
    os.kill(stopped.process.pid, signal.SIGSTOP)
    assert watcher.line.poll(TIMEOUT)
    told = watcher.line.recv()
    assert told.startswith(f"Rank {which} was stopped from outside") and told.endswith("Nothing is lost.")
    assert not watcher.line.poll(SPARED), "it is told once, and nobody ends"
    assert stopped.process.is_alive() and watcher.process.is_alive()
    assert psutil.Process(stopped.process.pid).status() != psutil.STATUS_STOPPED


def test_only_the_very_process_is_ended() -> None:
    own = Process.own()
    assert own.found == psutil.Process()
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
    watch = launched.LaunchedWatch(rank, 2, beats, print)
    line = launched._store()
    assert line is not None
    other, key = RankWord(Beat(1, 1, Phase.TRAINING, 1), Process.own()), launched._key(1 - rank)

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
    store.set(key, msgspec.json.encode(msgspec.structs.replace(other, left=True)).decode())
    assert blamed() == set()
    store.set(key, '{"beat": 7}')
    assert blamed() == set(), "what another release tells is not understood"


def test_a_signal_that_one_rank_got_ends_all_as_one_that_rank_0_got(monkeypatch: pytest.MonkeyPatch) -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(store.port))
    beats, told, came = Heartbeats(process_context(), 2), list[str](), list[int]()
    # nohup has switched this one off for rank 0, and it hears what comes in its place late.
    before = signal.signal(signal.SIGTERM, lambda number, _: came.append(number))
    ignored = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    watch = launched.LaunchedWatch(0, 2, beats, told.append)
    line = launched._store()
    assert line is not None

    try:
        for number in (0, signal.SIGHUP, signal.SIGHUP):
            word = RankWord(Beat(1, 1, Phase.TRAINING, 1, number), Process.own())
            store.set(launched._key(1), msgspec.json.encode(word).decode())
            assert watch._exchange(line)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGHUP, ignored)
    assert came == [signal.SIGTERM] and told == ["SIGHUP came to rank 1. All ranks save and end."]
