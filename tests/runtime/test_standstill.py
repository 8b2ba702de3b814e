"""A rank that stands still is woken where it was stopped, and given up only where that would cost less."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from worker_watcher import wait_until

from splatstudio.runtime.heartbeat import Limits, Silence
from splatstudio.runtime.standstill import Patience, Standing, standing_of

LIMITS = Limits(frozen=10.0, told=30.0, busy=180.0)


@dataclass
class Rank:
    """A rank whose process the test makes up, and what its user was told."""

    status: str | None
    cpu_seconds: float = 0.0
    woken: list[int] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    def process(self, rank: int) -> psutil.Process | None:
        if self.status is None:
            return None
        process = SimpleNamespace(
            status=lambda: self.status,
            cpu_times=lambda: SimpleNamespace(user=self.cpu_seconds, system=0.0),
            resume=lambda: self.woken.append(signal.SIGCONT),
        )
        return cast(Any, process)

    def patience(self) -> Patience:
        return Patience(LIMITS, lambda rank, what: self.told.append(what))


def silent(seconds: float) -> Silence:
    return Silence(0, seconds, frozen=True)


def test_one_that_is_gone_is_not_waited_for() -> None:
    for status in (None, psutil.STATUS_ZOMBIE):
        rank = Rank(status)
        assert rank.patience().is_over(rank, silent(11), at_stake=1e6) and not rank.told


def test_one_that_was_stopped_is_woken_and_waited_for_as_long_as_what_is_at_stake() -> None:
    rank = Rank(psutil.STATUS_STOPPED)
    patience = rank.patience()
    assert not patience.is_over(rank, silent(11), at_stake=3600)
    assert not patience.is_over(rank, silent(3500), at_stake=3600)
    assert rank.woken == [signal.SIGCONT] * 2, "whoever stops it again is answered again"
    assert rank.told == ["was stopped from outside (SIGSTOP) and is woken after 11 s"]
    assert patience.is_over(rank, silent(3601), at_stake=3600), "it cannot be woken"
    assert patience.is_over(rank, silent(181), at_stake=5)


def test_one_that_neither_computes_nor_reads_is_given_up_and_told_of_before() -> None:
    rank = Rank(psutil.STATUS_SLEEPING)
    patience = rank.patience()
    assert not patience.is_over(rank, silent(29), at_stake=3600) and not rank.told
    assert not patience.is_over(rank, silent(31), at_stake=3600)
    assert rank.told == ["has not answered for 31 s: it stands still"] and not rank.woken
    assert patience.is_over(rank, silent(181), at_stake=3600)


@pytest.mark.parametrize("status", [psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP])
def test_one_that_gets_on_is_waited_for_as_long_as_the_work_since_the_checkpoint(status: str) -> None:
    rank = Rank(status)
    patience = rank.patience()
    patience.is_over(rank, silent(11), at_stake=3600)
    rank.cpu_seconds = 60.0
    assert not patience.is_over(rank, silent(3500), at_stake=3600) and len(rank.told) == 1
    assert patience.is_over(rank, silent(3601), at_stake=3600)


def test_one_that_a_debugger_holds_is_never_ended() -> None:
    rank = Rank(psutil.STATUS_TRACING_STOP)
    assert not rank.patience().is_over(rank, silent(1e6), at_stake=0) and not rank.woken
    assert "is held by a debugger" in rank.told[0]


def test_a_new_standstill_is_told_anew() -> None:
    rank = Rank(psutil.STATUS_STOPPED)
    patience = rank.patience()
    for _ in range(2):
        patience.is_over(rank, silent(11), at_stake=0)
        patience.is_over(rank, silent(12), at_stake=0)
        patience.forget()
    assert len(rank.told) == 2


def test_the_system_tells_how_a_process_stands() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as started:
        process = psutil.Process(started.pid)
        try:
            started.send_signal(signal.SIGSTOP)
            wait_until(lambda: standing_of(process) is Standing.STOPPED, "it is stopped")
            started.send_signal(signal.SIGCONT)
            wait_until(lambda: standing_of(process) is Standing.IDLE, "it sleeps")
        finally:
            started.kill()
    assert standing_of(process) is Standing.GONE
    assert standing_of(psutil.Process(), share=0.5) is Standing.WORKING


def test_one_that_waits_for_the_disk_is_told_once_and_not_ended() -> None:
    rank = Rank(psutil.STATUS_DISK_SLEEP)
    patience = rank.patience()
    assert not patience.on_disk(rank, 2, 29) and rank.told == []
    assert patience.on_disk(rank, 2, 31) and patience.on_disk(rank, 2, 9000)
    (told,) = rank.told
    assert told.startswith("has waited for the disk for 31 s, as for one of a network that is gone")
    assert not patience.on_disk(rank, 2, 0)  # it goes on
    assert patience.on_disk(rank, 2, 40) and len(rank.told) == 2


@pytest.mark.parametrize("status", [psutil.STATUS_SLEEPING, psutil.STATUS_RUNNING, None])
def test_one_that_hangs_otherwise_does_not_wait_for_the_disk(status: str | None) -> None:
    rank = Rank(status)
    assert not rank.patience().on_disk(rank, 1, 9000) and rank.told == []
