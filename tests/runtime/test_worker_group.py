"""Several ranks: they start, step, stop and are restarted together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from worker_faults import counting
from worker_watcher import MANY, Launch, Watcher, alive, wait_until

from splatstudio.runtime import messages
from splatstudio.runtime.heartbeat import Limits, Phase
from splatstudio.runtime.rank import rank_main
from splatstudio.runtime.stop_signals import leave_when_told, outlive_the_terminal
from splatstudio.runtime.supervisor import Plan

NUM_RANKS = 3
PLAN = Plan(rank_main, counting, NUM_RANKS, Limits(frozen=1.0, stuck={Phase.TRAINING: 60.0}))


@pytest.fixture
def ranks(launch: Launch, tmp_path: Path) -> Watcher:
    """Three ranks that count steps together."""
    worker = launch(messages.TrainJob(tmp_path, tmp_path / "run", MANY), PLAN).start()
    worker.wait(messages.Progress, lambda event: event.step > 10)
    return worker


def notes(tmp_path: Path) -> list[list[str]]:
    """Return what each rank was told, and at which step."""
    return [(tmp_path / f"rank{rank}.txt").read_text().splitlines() for rank in range(NUM_RANKS)]


def test_all_ranks_do_the_same_at_the_same_step(ranks: Watcher, tmp_path: Path) -> None:
    client = ranks.client
    assert len(set(client.pids)) == NUM_RANKS and all(alive(pid) for pid in client.pids)
    client.send(messages.UpdateSettings((("optim.means_lr", 1e-5), ("background", (0.5, 0.5, 1.0)))))
    client.send(messages.SetCap(1234))
    client.send(messages.Pause())
    ranks.reach("paused")
    client.send(messages.Step(7))
    ranks.reach("paused")
    client.send(messages.Resume())
    ranks.wait(messages.Progress)
    pids = client.pids
    client.close()
    assert client.state == "ended" and not any(alive(pid) for pid in pids)
    told = notes(tmp_path)
    # What changes what they compute all carry out; rank 0 alone says when there is a next step.
    alone = ("Pause", "paused", "Step", "Resume")
    assert [line for line in told[0] if not line.split(" ", 1)[1].startswith(alone)] == told[1] == told[2]
    words = [line.split(" ", 1) for line in told[0]]
    assert [word.partition("(")[0] for _, word in words] == [
        *("Start", "UpdateSettings", "SetCap", "Pause", "paused", "Step", "paused", "Resume", "closed")
    ]
    steps = [int(step) for step, _ in words]
    assert steps[6] == steps[5] + 7 and steps[-1] > steps[-2]


def test_a_rank_that_dies_is_named_and_all_start_again(ranks: Watcher) -> None:
    before = ranks.client.pids
    os.kill(before[2], signal.SIGKILL)
    warned = ranks.wait(messages.Warned)
    assert warned.sentence.startswith("Rank 2 was killed (SIGKILL")
    assert "goes on by itself from its beginning" in warned.sentence
    ranks.wait(messages.Started)
    ranks.wait(messages.Progress)
    assert not set(before) & set(ranks.client.pids)
    wait_until(lambda: not any(alive(pid) for pid in before), "the old ranks are gone")
    assert "restarting" in [event.state for event in ranks.of(messages.StateChanged)]


def test_a_rank_that_is_stopped_is_named_and_woken(ranks: Watcher) -> None:
    before, step = ranks.client.pids, ranks.of(messages.Progress)[-1].step
    os.kill(before[2], signal.SIGSTOP)
    assert ranks.wait(messages.Warned).sentence.startswith("Rank 2 was stopped from outside (SIGSTOP)")
    ranks.wait(messages.Progress, lambda event: event.step > step + 20)
    assert ranks.client.pids == before


def test_the_rank_whose_step_raised_is_blamed_not_those_that_lost_it(ranks: Watcher) -> None:
    ranks.send(messages.UpdateSettings((("raise", 1),)))
    sentence = ranks.wait(messages.Warned).sentence
    assert sentence.startswith("Rank 1: ") and "the injected fault" in sentence
    ranks.wait(messages.Progress)


def test_ranks_end_together_when_told_to_and_when_they_cannot(ranks: Watcher) -> None:
    before = ranks.client.pids
    os.kill(before[0], signal.SIGTERM)
    ranks.wait(messages.Failed)
    wait_until(lambda: not any(alive(pid) for pid in before), "all ranks are gone")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def told_to_leave(number: signal.Signals, *, launched: bool) -> bool:
    """Let a rank get a signal; say whether it heard that it is to leave."""
    heard: list[int] = []
    outlive_the_terminal(launched=launched)
    leave_when_told(heard.append, launched=launched)
    os.kill(os.getpid(), number)
    assert heard in ([], [number])
    return bool(heard)


def test_ctrl_c_is_for_the_studio_that_started_it_and_sigterm_is_an_order() -> None:
    assert not told_to_leave(signal.SIGINT, launched=False)
    assert told_to_leave(signal.SIGTERM, launched=False)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_rank_of_a_launcher_hears_itself_what_its_launcher_sends_on(number: signal.Signals) -> None:
    assert told_to_leave(number, launched=True)


def test_a_rank_of_a_studio_outlives_the_terminal_and_sees_the_studio_go() -> None:
    assert not told_to_leave(signal.SIGHUP, launched=False)


def test_a_rank_of_a_launcher_saves_and_leaves_when_the_terminal_is_closed() -> None:
    assert told_to_leave(signal.SIGHUP, launched=True)


def test_nohup_lets_a_rank_of_a_launcher_outlive_the_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert not told_to_leave(signal.SIGHUP, launched=True)
