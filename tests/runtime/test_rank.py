"""The loop of a rank: what its pulse says while it is at something long, and how it leaves."""

from __future__ import annotations

import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rank_pool import RankPool
from shortage_tasks import evaluate_breathing
from worker_watcher import MANY, Launch

from splatstudio.gui.state.status import Status
from splatstudio.gui.tabs.devices import rank_rows
from splatstudio.runtime import messages
from splatstudio.runtime import rank as rank_module
from splatstudio.runtime.activity import WorkerContext
from splatstudio.runtime.fork_server import process_context
from splatstudio.runtime.heartbeat import Heartbeats, Phase
from splatstudio.runtime.messages import Command, EvaluateShare, Leave, Wait
from splatstudio.runtime.rank import Rank, activity_of, rank_main
from splatstudio.runtime.rank_group import RankSpec
from splatstudio.runtime.supervisor import Plan
from splatstudio.scene.load import load_scene


def test_every_photo_of_an_evaluation_shows_that_the_rank_gets_on(
    pool: RankPool, blob_folder: Path, tmp_path: Path
) -> None:
    num = len(load_scene(blob_folder).test_indices)
    assert pool.run(2, evaluate_breathing, blob_folder, tmp_path / "run") == [0, num // 2] and num >= 2


def test_a_rank_beside_0_does_what_it_is_told_until_it_is_to_leave(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    said: list[Command] = [Wait(), EvaluateShare(), Leave(signal.SIGTERM)]
    left: list[str] = []
    line = SimpleNamespace(
        receive=lambda step: said.pop(0), ranks=None, close=lambda: left.append("the group")
    )
    monkeypatch.setattr(rank_module, "Broadcast", lambda *_: line)
    heartbeats = Heartbeats(process_context(), 2)
    phases: list[tuple[str, Phase]] = []

    def make(job: Any, context: WorkerContext) -> Any:
        def note(what: str) -> None:
            context.breathe()
            phases.append((what, heartbeats.read(1).phase))

        return SimpleNamespace(
            step=3,
            running=False,
            begin=lambda: None,
            execute=lambda command: note(type(command).__name__),
            close=lambda: note("close"),
        )

    spec = RankSpec(1, 2, tmp_path, heartbeats, None)
    job: Any = None
    with ThreadPoolExecutor(1) as thread:  # which gives way to all others from then on
        thread.submit(Rank(spec, job, None, make).run).result()
    assert phases == [("EvaluateShare", Phase.OBEYING), ("close", Phase.OBEYING)], "waiting has no limit"
    assert left == ["the group"]
    assert heartbeats.read(1).signal == signal.SIGTERM, "it exits as rank 0 does"


def test_each_rank_counts_its_share_of_the_model() -> None:
    figures = rank_rows(Status(num_gaussians=100, steps_per_second=2.0), 2)
    assert [row.num_gaussians for row in figures] == [50, 50]
    assert [row.step_seconds for row in figures] == [0.5, 0.5]


def rank_that_notes(spec: RankSpec, job: messages.Job, pipe: Any, make_activity: Any) -> None:
    """Be a rank, and note in the end which modules it has loaded by itself."""
    assert isinstance(job, messages.TrainJob)
    before = set(sys.modules)
    try:
        rank_main(spec, job, pipe, make_activity)
    finally:
        name = f"loaded_by_{spec.rank}"
        job.run_dir.with_name(name).write_text("\n".join(set(sys.modules) - before))


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_rank_need_not_load_what_takes_long(
    launch: Launch, blob_folder: Path, tmp_path: Path, num_ranks: int
) -> None:
    plan = Plan(rank_that_notes, activity_of, num_ranks)
    worker = launch(messages.TrainJob(blob_folder, tmp_path / "run", MANY), plan).start()
    worker.wait(messages.Progress)
    worker.client.close()
    for rank in range(num_ranks):
        loaded = (tmp_path / f"loaded_by_{rank}").read_text().splitlines()
        assert "sympy" not in loaded, "torch loads it for a gradient that it is given, a third of a second"
        assert "scipy.spatial" not in loaded, "the fork server has it"
