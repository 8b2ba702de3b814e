"""Merging, evaluating and exporting in a process of its own: results, errors, and ends by force."""

from __future__ import annotations

import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch

from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.files.durable import partial_path
from splatstudio.files.run import Run
from splatstudio.formats.ply import read_ply
from splatstudio.models.scoring import EvaluationTask
from splatstudio.runtime.file_tasks import FileTask, FileWorker, TaskEnd
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.surfaces.mesh_options import MeshOptions, MeshTask
from splatstudio.training.trainer import Trainer

TIMEOUT = 120.0
Do = Callable[[FileTask], TaskEnd]


@pytest.fixture
def ends() -> queue.SimpleQueue[tuple[FileTask, TaskEnd]]:
    return queue.SimpleQueue()


@pytest.fixture
def worker(ends: queue.SimpleQueue[tuple[FileTask, TaskEnd]]) -> Iterator[FileWorker]:
    made = FileWorker(lambda task, end: ends.put((task, end)))
    yield made
    made.close()


@pytest.fixture
def do(worker: FileWorker, ends: queue.SimpleQueue[tuple[FileTask, TaskEnd]]) -> Do:
    def run(task: FileTask) -> TaskEnd:
        assert worker.start(task)
        done, end = ends.get(timeout=TIMEOUT)
        assert done == task and worker.task is None
        return end

    return run


@pytest.fixture
def run(blob_scene: Scene, tmp_path: Path) -> Path:
    """A run with a checkpoint of two shards at step 3."""
    config = TrainConfig(steps=10, sh_degree=1)
    made = Run.create(tmp_path / "run", blob_scene.path, config)
    trainer = Trainer(blob_scene, config)
    for _ in range(3):
        trainer.train_step()
    save_checkpoint(made.path, trainer.checkpoint(), num_shards=2)
    trainer.close()
    return made.path


def test_a_checkpoint_is_evaluated_and_written(do: Do, run: Path, blob_scene: Scene) -> None:
    folder = run / "ckpts" / "step_00000003"
    end = do(FileTask("Evaluating", evaluation=EvaluationTask(folder), lpips=("alex",), color_correct=True))
    assert end.error is None and end.scored is not None and end.scored.step == 3
    evaluation = end.scored.evaluation
    assert evaluation.psnr_corrected is not None and evaluation.psnr_corrected >= evaluation.psnr
    assert (run / "eval" / "step_00000003.json").exists() and (run / "eval" / "step_00000003.csv").exists()
    trainer = Trainer.resume(blob_scene, folder)
    # Evaluating the parts, merged, is evaluating the training.
    assert evaluation.psnr == pytest.approx(evaluate(trainer.gaussians, blob_scene).psnr, abs=1e-4)
    trainer.close()


def test_parts_are_merged_and_evaluated(do: Do, run: Path, blob_scene: Scene, tmp_path: Path) -> None:
    trainer = Trainer.resume(blob_scene, run / "ckpts" / "step_00000003")
    for rank in range(2):
        splats = dict(trainer.gaussians[rank::2].tensors())
        torch.save({"step": 3, "splats": splats}, tmp_path / f"ckpt_3_rank{rank}.pt")
    trainer.close()
    first = tmp_path / "ckpt_3_rank0.pt"
    task = FileTask(
        "Merging",
        paths=(first, tmp_path / "ckpt_3_rank1.pt"),
        output=tmp_path / "out" / "model.ply",
        evaluation=EvaluationTask(first, blob_scene.path, merge=True),
    )
    end = do(task)
    assert end.error is None and end.num_gaussians == 60 == len(read_ply(tmp_path / "out" / "model.ply"))
    assert end.scored is not None and end.scored.evaluation.num_gaussians == 60


def test_a_mesh_is_made_and_a_cancelled_one_leaves_nothing(
    do: Do,
    worker: FileWorker,
    ends: queue.SimpleQueue[tuple[FileTask, TaskEnd]],
    run: Path,
    tmp_path: Path,
) -> None:
    folder = run / "ckpts" / "step_00000003"
    mesh = MeshTask(folder, tmp_path / "meshes" / "model.glb", MeshOptions(resolution=32))
    end = do(FileTask("Making model.glb", mesh=mesh))
    assert end.error is None and end.mesh is not None and end.output == mesh.output
    assert end.mesh.report.triangles > 0 and mesh.report_file.exists()
    end = do(FileTask("Making model.xyz", mesh=replace(mesh, output=tmp_path / "model.xyz")))
    assert end.error is not None and "a mesh ends in" in end.error
    other = replace(mesh, output=tmp_path / "other" / "model.obj", options=MeshOptions(voxel_size=0.004))
    assert worker.start(FileTask("Making model.obj", mesh=other))
    deadline = time.monotonic() + TIMEOUT
    while worker.progress is None or "depth" not in worker.progress.what:
        assert time.monotonic() < deadline and worker.task is not None
        time.sleep(0.01)
    worker.cancel()
    assert ends.get(timeout=TIMEOUT)[1].cancelled
    assert not list(other.output.parent.iterdir())


def test_mistakes_come_back_as_one_sentence(do: Do, run: Path, tmp_path: Path) -> None:
    end = do(FileTask("Merging", (tmp_path / "nothing",), tmp_path / "out.ply"))
    assert end.error is not None and "does not exist" in end.error and not end.cancelled
    (run / "ckpts" / "step_00000003" / "rank00001-of-00002.safetensors").unlink()
    end = do(FileTask("Evaluating", evaluation=EvaluationTask(run / "ckpts" / "step_00000003")))
    assert end.error is not None and "rank 1 of 2) cannot be read" in end.error
    (tmp_path / "a file").write_text("")
    mesh = MeshTask(tmp_path / "model.ply", tmp_path / "a file" / "model.glb", MeshOptions())
    end = do(FileTask("Making model.glb", mesh=mesh))
    assert end.error == f"{tmp_path / 'a file'} cannot be read or written: File exists"


def test_a_task_can_be_cancelled_and_a_killed_one_is_told(
    worker: FileWorker, ends: queue.SimpleQueue[tuple[FileTask, TaskEnd]], run: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "ckpt_1_rank0.pt"
    torch.save(list(range(5_000_000)), slow)  # read one by one, for seconds
    task = FileTask("Merging", (slow,), tmp_path / "model.ply")
    assert worker.start(task) and not worker.start(task), "one at a time"
    deadline = time.monotonic() + TIMEOUT
    while worker.progress is None or "reading" not in worker.progress.what:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    worker.cancel()
    assert ends.get(timeout=TIMEOUT)[1] == TaskEnd(cancelled=True)
    assert worker.start(task)
    while worker.progress is None or "reading" not in worker.progress.what:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert worker._process is not None and worker._process.pid is not None
    pid = worker._process.pid
    left = [tmp_path / f".model.ply.tmp-{pid}", partial_path(tmp_path / "model.ply", pid)]
    for file in left:
        file.write_bytes(b"half")
    os.kill(worker._process.pid, signal.SIGKILL)
    error = ends.get(timeout=TIMEOUT)[1].error
    assert error is not None and "ended unexpectedly" in error
    assert not any(file.exists() for file in left)


def test_what_was_merged_before_the_evaluation_was_cancelled_stays_and_is_told(
    worker: FileWorker, ends: queue.SimpleQueue[tuple[FileTask, TaskEnd]], run: Path, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.ply"  # a model whose text is read for seconds
    names = [*"xyz", *(f"f_dc_{i}" for i in range(3)), "opacity"]
    names += [*(f"scale_{i}" for i in range(3)), *(f"rot_{i}" for i in range(4))]
    properties = "".join(f"property float {name}\n" for name in names)
    head = f"ply\nformat ascii 1.0\nelement vertex 1000000\n{properties}end_header\n"
    slow.write_text(head + "1 2 3 0.1 0.2 0.3 0.5 -3 -3 -3 1 0 0 0\n" * 1_000_000)
    output = tmp_path / "merged.ply"
    task = FileTask("Merging", (run / "ckpts" / "step_00000003",), output, EvaluationTask(slow, run))
    assert worker.start(task)
    deadline = time.monotonic() + TIMEOUT
    while worker.progress is None or worker.progress.what != "loading the model":
        assert time.monotonic() < deadline
        time.sleep(0.02)
    worker.cancel()
    assert ends.get(timeout=TIMEOUT)[1] == TaskEnd(cancelled=True, output=output, num_gaussians=60)
    assert len(read_ply(output)) == 60


@pytest.mark.parametrize("short_of", ["file", "process", "thread"])
def test_a_task_that_finds_no_process_is_not_in_the_way_of_the_next(
    worker: FileWorker, do: Do, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, short_of: str
) -> None:
    def no_more(*_: object, **__: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    task = FileTask("Evaluating", evaluation=EvaluationTask(tmp_path / "nothing"))
    missing = {"file": (BaseContext, "Pipe"), "process": (BaseProcess, "start")}
    owner, name = missing.get(short_of, (threading.Thread, "start"))
    with monkeypatch.context() as patch, pytest.raises(OSError, match="unavailable"):
        patch.setattr(owner, name, no_more)
        worker.start(task)
    assert worker.task is None and do(task).error is not None
