"""A photograph that one rank of several cannot read ends the training, and nothing trained is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from worker_watcher import MANY, Launch

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.distributed.rank_devices import choose_devices
from splatstudio.runtime.activity import Activity, WorkerContext
from splatstudio.runtime.messages import Failed, Job, Saved, Start, TrainJob
from splatstudio.runtime.rank import activity_of
from splatstudio.runtime.supervisor import plan_for
from splatstudio.scene.load import load_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.training.data.photo_queue import Batch, PhotoQueue


def half_blind(job: Job, desk: WorkerContext) -> Activity:
    """Return what a rank does, of which rank 1 cannot read its photograph in the sixth step."""
    if desk.rank == 1:
        calls, following = [0], PhotoQueue.next

        def unreadable(self: PhotoQueue, config: TrainConfig) -> Batch:
            calls[0] += 1
            batch = following(self, config)
            if calls[0] == 6:
                raise ValueError("images/7.png cannot be read")
            return batch

        PhotoQueue.next = unreadable  # type: ignore[method-assign]
    return activity_of(job, desk)


def test_all_ranks_save_what_they_have_when_one_cannot_read_a_photograph(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    job = TrainJob(blob_folder, tmp_path / "run", replace(MANY, steps=50))
    plan = replace(plan_for(job, choose_devices(ranks=2)), activity=half_blind)
    worker = launch(job, plan)
    worker.client.send(Start())
    failed = worker.wait(Failed)
    assert (
        "mages/7.png cannot be read" in failed.sentence and "checkpoint of step 5 is safe" in failed.sentence
    )
    (saved,) = worker.of(Saved)
    whole = load_checkpoint(saved.path)
    assert whole.step == 5 and len(whole.population) == len(load_scene(blob_folder).points)
