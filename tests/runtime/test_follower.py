"""A rank that follows: what its pulse says while it is at something long."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rank_pool import RankPool
from shortage_tasks import evaluate_breathing

from splatstudio.runtime import follower as follower_module
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.control import Turn
from splatstudio.runtime.follower import Follower
from splatstudio.runtime.heartbeat import Phase
from splatstudio.scene import load_scene


def test_every_photograph_of_an_evaluation_shows_that_the_rank_gets_on(
    pool: RankPool, blob_folder: Path
) -> None:
    num = len(load_scene(blob_folder).test_indices)
    assert pool.run(2, evaluate_breathing, blob_folder) == [0, num // 2] and num >= 2


def test_long_tasks_move_the_pulse_and_the_last_save_has_a_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    phases: list[Phase] = []
    at_close: list[Phase] = []
    turns = [(Turn.EVALUATE, b""), (Turn.LEAVE, b"")]

    def make(job: Any, desk: WorkerContext) -> Any:
        def take_part(turn: Turn, body: bytes) -> None:
            phases.clear()
            desk.breathe()
            assert phases == [Phase.OBEYING]

        return SimpleNamespace(
            step=3, begin=lambda: None, take_part=take_part, close=lambda: at_close.append(phases[-1])
        )

    left: list[str] = []
    control = SimpleNamespace(
        follow=lambda step: turns.pop(0), ranks=None, close=lambda: left.append("the group")
    )
    monkeypatch.setattr(follower_module, "ControlGroup", lambda *_: control)
    pulse: Any = SimpleNamespace(move=lambda phase, step: phases.append(phase))
    place: Any = SimpleNamespace(rank=1, num_ranks=2, meeting=None, log_path=None)
    job: Any = None
    with ThreadPoolExecutor(1) as thread:  # which gives way to all others from then on
        thread.submit(Follower(place, job, pulse, make).run).result()
    assert at_close == [Phase.OBEYING], "a rank that waits has no limit"
    assert left == ["the group"]
