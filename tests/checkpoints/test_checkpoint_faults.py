"""Saves that are killed or that the disk refuses: what was good stays good, nothing bad is ever loaded."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest
from example_checkpoints import example
from started_programs import run_program, start_program

from splatstudio.checkpoints import checkpoint
from splatstudio.checkpoints.checkpoint import (
    checkpoint_folders,
    load_checkpoint,
    newest_checkpoint,
    save_checkpoint,
)
from splatstudio.operating_system import put_in_place

# Saves steps 10, 20, ... of a model whose every number is the step, with ever so many shards, and keeps 3.
SAVER = """
import os, sys, torch, numpy as np
from pathlib import Path
from splatstudio.checkpoints.checkpoint import Checkpoint, prune_checkpoints, save_checkpoint
from splatstudio.settings.config import TrainConfig
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.optimization.optim import SplatAdam
from splatstudio.strategy import Population

def model(value, num=8000):
    full = lambda *shape: torch.full((num, *shape), float(value))
    return Gaussians(full(3), full(4), full(3), full(), full(1, 3), full(15, 3))

torch.set_num_threads(1)
run = Path(sys.argv[1])
step = int(sys.argv[2])
os.write(1, b"ready\\n")
while True:
    step += 10
    moments = SplatAdam(model(step), model(step), step)
    population = Population(model(step), moments, {"grad2d": torch.full((8000,), float(step))})
    # Every other save replaces a checkpoint of its own step.
    for _ in range(1 + step // 10 % 2):
        rng = torch.zeros(8, dtype=torch.uint8)
        checkpoint = Checkpoint(step, TrainConfig(), population, Path("/a"), np.eye(4), rng, ())
        folder = save_checkpoint(run, checkpoint, num_shards=1 + step // 10 % 3)
    prune_checkpoints(folder, 3)
    os.write(1, f"{step}\\n".encode())
"""


def test_kill_9_at_twenty_moments_leaves_only_good_checkpoints(tmp_path: Path) -> None:
    chance = random.Random(1)
    reached, one_save = 0, 0.1  # seconds, until one was measured
    for _ in range(20):
        saver = start_program("-c", SAVER, tmp_path, reached)
        try:
            assert saver.stdout.readline() == "ready\n"
            # However slow the machine is, some saves are completed, and the kill comes within the next one.
            for _ in range(chance.randrange(3)):
                since = time.monotonic()
                reached = max(reached, int(saver.stdout.readline()))
                one_save = time.monotonic() - since
            time.sleep(chance.uniform(0.0, one_save))
        finally:
            saver.kill()
        output, _ = saver.communicate(120)
        assert saver.returncode == -signal.SIGKILL
        reached = max([reached, *map(int, output.split())])
        _check_what_is_left(tmp_path, reached)
        reached = max([reached, *(load_checkpoint(f).step for f in checkpoint_folders(tmp_path)[-1:])])
    assert reached >= 100, "the saves were killed before any was complete"


def test_a_checkpoint_takes_its_name_when_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill comes too seldom just then to be relied on."""
    taken: list[str] = []

    def put(source: Path, target: Path) -> None:
        put_in_place(source, target)
        if target.name.startswith("step_"):
            assert load_checkpoint(target).step == 120, "readable from its first moment on"
            taken.append(target.name)

    monkeypatch.setattr(checkpoint, "put_in_place", put)
    for seed in range(2):
        save_checkpoint(tmp_path, example(seed=seed))
    assert taken == ["step_00000120"] * 2, "the second in the place of the first"


def _check_what_is_left(run: Path, reached: int) -> None:
    bad: list[str] = []
    newest = newest_checkpoint(run, bad.append)
    assert bad == []
    if reached:
        assert newest is not None and load_checkpoint(newest).step >= reached
    for folder in checkpoint_folders(run):
        checkpoint = load_checkpoint(folder)
        values = [*checkpoint.gaussians.tensors().values(), checkpoint.population.counts["grad2d"]]
        assert all((tensor == checkpoint.step).all() for tensor in values), folder


# Trains with a limit on the size of a file that the second checkpoint breaks, as a full disk would.
FULL_DISK = """
import resource, signal, sys
from contextlib import closing
from pathlib import Path
from splatstudio.settings.config import TrainConfig
from splatstudio.files.run import Run
from splatstudio.scene.load import load_scene
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

scene, folder = load_scene(sys.argv[1]), Path(sys.argv[2])
config = TrainConfig(steps=14, save_steps=(2, 4), eval_steps=(), sh_degree=1)
trainer = Trainer(scene, config)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
with closing(Session(trainer, Run.create(folder, scene.path, config))) as session:
    while not session.finished:
        if trainer.step == 3:
            session.settle()
            resource.setrlimit(resource.RLIMIT_FSIZE, (8192, resource.RLIM_INFINITY))
        if trainer.step == 12:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        advance = session.advance()
        if advance.problem:
            print("problem", advance.stats.step, advance.problem, flush=True)
        if 3 <= trainer.step < 12:
            settled = session.settle()
            if settled.problem:
                print("problem", trainer.step, settled.problem, flush=True)
            print("left", *sorted(path.name for path in (folder / "ckpts").iterdir()), flush=True)
print("end", trainer.step, flush=True)
"""


def test_on_a_full_disk_the_last_checkpoint_stays_and_the_training_goes_on(
    tmp_path: Path, blob_folder: Path
) -> None:
    run = tmp_path / "run"
    done = run_program("-c", FULL_DISK, blob_folder, run, timeout=200)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    problems = [line for line in lines if line.startswith("problem")]
    assert len(problems) == 1 and "Step 4 could not be written" in problems[0], problems
    assert "File too large" in problems[0] and "the training goes on" in problems[0]
    assert {line for line in lines if line.startswith("left")} == {"left step_00000002"}
    assert lines[-1] == "end 14"
    assert [load_checkpoint(folder).step for folder in checkpoint_folders(run)] == [2, 14]
