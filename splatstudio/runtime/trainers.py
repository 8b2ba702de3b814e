"""The Trainer of a TrainJob, on one rank or on each of several."""

from __future__ import annotations

from splatstudio.distributed import Ranks
from splatstudio.runtime.messages import TrainJob
from splatstudio.scene import load_training_scene
from splatstudio.settings.config import FREE_ON_RESUME
from splatstudio.train.trainer import Trainer


def trainer_of(job: TrainJob, ranks: Ranks) -> Trainer:
    """Return the Trainer of this rank, with the job's live settings; all ranks call it.

    Raises what loading the scene, the checkpoint and the start of a training raise.
    """
    scene = load_training_scene(job.scene_path, job.config)
    if job.checkpoint is not None:
        overrides = {name: getattr(job.config, name) for name in FREE_ON_RESUME}
        trainer = Trainer.resume(scene, job.checkpoint, ranks=ranks, **overrides)
    else:
        trainer = Trainer(scene, job.config, ranks=ranks)
    for path, value in job.settings:
        trainer.update_setting(path, value)
    return trainer
