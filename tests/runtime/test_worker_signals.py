"""What the process of a rank does at the signals of a terminal, a launcher and an operating system."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from splatstudio.runtime.process_setup import leave_when_told, outlive_the_terminal

pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="there are no terminals to close here")


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)


def told_to_leave(number: signal.Signals, *, launched: bool) -> bool:
    """Let a rank get a signal; say whether it heard that it is to leave."""
    heard: list[bool] = []
    outlive_the_terminal(launched=launched)
    leave_when_told(lambda: heard.append(True), launched=launched)
    os.kill(os.getpid(), number)
    return bool(heard)


@pytest.mark.parametrize("launched", [False, True])
def test_ctrl_c_is_for_whoever_started_it_and_sigterm_is_an_order(launched: bool) -> None:
    assert not told_to_leave(signal.SIGINT, launched=launched)
    assert told_to_leave(signal.SIGTERM, launched=launched)


def test_a_rank_of_a_studio_outlives_the_terminal_and_sees_the_studio_go() -> None:
    assert not told_to_leave(signal.SIGHUP, launched=False)


def test_a_rank_of_a_launcher_saves_and_leaves_when_the_terminal_is_closed() -> None:
    assert told_to_leave(signal.SIGHUP, launched=True)


def test_nohup_lets_a_rank_of_a_launcher_outlive_the_terminal() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert not told_to_leave(signal.SIGHUP, launched=True)
