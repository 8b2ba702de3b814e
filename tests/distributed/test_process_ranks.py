"""Which devices the ranks of a training get."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from compared_trainings import SETTINGS, assert_same
from rank_pool import RankPool
from sharded_tasks import Case
from sharded_training_tasks import Plan, Trained, train
from shortage_tasks import (
    chance_after_shortage,
    copy_twice,
    descend_short,
    look_twice,
    train_short_of_photos,
)
from strategy_settings import COMMON, FAST, MCMC
from worker_watcher import MANY, Launch

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.distributed.rank_devices import RankDevices, choose_devices
from splatstudio.runtime.activity import Activity, WorkerContext
from splatstudio.runtime.messages import Failed, Job, Saved, TrainJob
from splatstudio.runtime.rank import activity_of
from splatstudio.runtime.supervisor import plan_for
from splatstudio.scene.load import load_scene
from splatstudio.scene.photo import Photo
from splatstudio.training.data.photo_queue import PhotoQueue


def test_ranks_on_the_cpu_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    assert RankDevices((None,)).num_threads is None
    assert RankDevices((None,) * 3).num_threads == 2
    assert RankDevices((None,) * 16).num_threads == 1


def test_a_rank_sees_its_share_of_the_machine_alone() -> None:
    script = (
        "from splatstudio.distributed.rank_devices import settle_device; settle_device(None, 1);"
        "import os, torch;"
        "print(torch.get_num_threads(), repr(os.environ['CUDA_VISIBLE_DEVICES']), torch.cuda.device_count(),"
        "os.environ['PYTORCH_CUDA_ALLOC_CONF'], os.environ['TORCH_NCCL_HIGH_PRIORITY'])"
    )
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "3"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["1", "''", "0", "expandable_segments:True", "1"], done.stderr


def half_blind(job: Job, desk: WorkerContext) -> Activity:
    """Return what a rank does, of which rank 1 cannot read its photo in the sixth step."""
    if desk.rank == 1:
        calls, read = [0], PhotoQueue.photo

        def unreadable(self: PhotoQueue, index: int) -> Photo:
            calls[0] += 1
            if calls[0] == 6:
                raise ValueError("images/7.png cannot be read")
            return read(self, index)

        PhotoQueue.photo = unreadable  # type: ignore[method-assign]
    return activity_of(job, desk)


def test_all_ranks_save_what_they_have_when_one_cannot_read_a_photo(
    launch: Launch, blob_folder: Path, tmp_path: Path
) -> None:
    job = TrainJob(blob_folder, tmp_path / "run", replace(MANY, steps=50))
    plan = replace(plan_for(job, choose_devices(ranks=2)), activity=half_blind)
    worker = launch(job, plan).start()
    failed = worker.wait(Failed)
    assert (
        "mages/7.png cannot be read" in failed.sentence and "checkpoint of step 5 is safe" in failed.sentence
    )
    (saved,) = worker.of(Saved)
    whole = load_checkpoint(saved.path)
    assert whole.step == 5 and len(whole.population) == len(load_scene(blob_folder).points)


def test_a_copy_that_there_is_no_memory_for_is_refused_before_anything_is_sent(
    pool: RankPool, blob_folder: Path, tmp_path: Path
) -> None:
    (refused, model), _ = pool.run(2, copy_twice, blob_folder, tmp_path / "run")
    assert refused == "out of memory on rank 0"
    ((_, whole),) = pool.run(1, copy_twice, blob_folder, tmp_path / "alone")
    assert model is not None and whole is not None
    for name, tensor in model.tensors().items():
        assert torch.equal(tensor, whole.tensors()[name]), name


@pytest.mark.parametrize(
    "what",
    [
        ("splatstudio.distributed.exchange", "_buffers"),
        ("splatstudio.distributed.exchange", "return_buffers"),
        ("splatstudio.optimization.sharded_gradients", "_own_views"),
        ("splatstudio.optimization.sharded_gradients", "_add_cameras"),
        ("splatstudio.optimization.sharded_gradients", "_observations"),
    ],
)
def test_all_ranks_leave_a_step_out_wherever_one_has_no_memory_in_it(
    pool: RankPool, what: tuple[str, str]
) -> None:
    case = Case((0, 100, 200), (((0,), (1,), (2,)), ((3,), (4, 5), (6,))), absgrad=True)
    assert pool.run(3, descend_short, case, what, 1) == [((1,), True)] * 3
    assert pool.run(3, descend_short, case, what, -1) == [((), False)] * 3


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_photos_without_memory_are_left_out_by_all(pool: RankPool, blob_folder: Path, num_ranks: int) -> None:
    hit = pool.run(num_ranks, train_short_of_photos, Plan(blob_folder, SETTINGS, 8), num_ranks - 1)
    spared = pool.run(num_ranks, train, Plan(blob_folder, SETTINGS, 8, drop_before=4))
    for ours, theirs in zip(hit, spared, strict=True):
        assert ours.losses == theirs.losses and len(ours.problems) == 1
    assert_same(hit[0].whole, spared[0].whole)


def test_ranks_draw_alike_by_chance_after_a_shortage_of_one(pool: RankPool, blob_folder: Path) -> None:
    plan = Plan(blob_folder, {**SETTINGS, "random_background": True}, 6)
    first, second = pool.run(2, chance_after_shortage, plan, 1)
    assert first == second


@pytest.mark.parametrize("failing", [0, 1])
def test_a_picture_lacks_what_a_rank_has_no_memory_for_and_says_so(
    pool: RankPool, blob_folder: Path, failing: int
) -> None:
    short, good = pool.run(2, look_twice, blob_folder, failing)[0]
    assert short[0] is not None and f"no memory for this picture on rank {failing}," in short[0]
    assert good[0] is None and 0 < short[1] < good[1]


MCMC |= {"shapes.opacity_weight": 0.01, "shapes.scale_weight": 0.01}


def even(parts: list[Trained]) -> bool:
    sizes = zip(*(part.sizes for part in parts), strict=True)
    return all(max(each) - min(each) <= max(1, 0.1 * sum(each) / len(each)) for each in sizes)


def test_mcmc_has_as_many_gaussians_as_are_wanted_over_all_ranks(pool: RankPool, blob_folder: Path) -> None:
    one = pool.run(1, train, Plan(blob_folder, {**COMMON, **MCMC, "batch_size": 3}, 36))[0]
    three = pool.run(3, train, Plan(blob_folder, {**COMMON, **MCMC}, 36))
    assert {part.num_gaussians for part in three} == {one.num_gaussians}
    assert one.num_gaussians > 80 and even(three)
    assert three[0].changes == three[1].changes == three[2].changes


@pytest.mark.parametrize(
    "settings", [{"strategy": "absgrad"}, MCMC, FAST], ids=lambda each: each.get("strategy")
)
def test_a_training_is_the_same_on_any_number_of_ranks(
    pool: RankPool, blob_folder: Path, settings: dict[str, Any]
) -> None:
    one = pool.run(1, train, Plan(blob_folder, {**COMMON, **settings, "batch_size": 6}, 26))[0]
    assert len(one.changes) >= 2 and one.changes[-1].num_changed + one.changes[-1].cloned > 0
    for num_ranks in (2, 3):
        plan = Plan(blob_folder, {**COMMON, **settings, "batch_size": 6 // num_ranks}, 26)
        parts = pool.run(num_ranks, train, plan)
        assert all(part.changes == one.changes for part in parts) and even(parts)
        assert parts[0].losses == one.losses and parts[0].psnr == pytest.approx(one.psnr, abs=1e-9)


def test_what_few_photos_show_goes_on_all_ranks_alike(pool: RankPool, blob_folder: Path) -> None:
    settings = {"sh_degree": 0, "densify.enabled": False, "init_scale": 0.2}
    settings |= {"shapes.min_views": 5, "shapes.min_views_every": 4}
    one = pool.run(1, train, Plan(blob_folder, {**settings, "batch_size": 2}, 6))[0]
    two = pool.run(2, train, Plan(blob_folder, settings, 6))
    assert 30 < one.num_gaussians < 58
    assert {part.num_gaussians for part in two} == {one.num_gaussians}
    assert two[0].psnr == pytest.approx(one.psnr, abs=0.05)


@pytest.mark.parametrize("strategy", [MCMC, FAST], ids=["mcmc", "fast"])
def test_a_strategy_goes_on_bit_for_bit(
    pool: RankPool, blob_folder: Path, tmp_path: Path, strategy: dict[str, Any]
) -> None:
    settings = {**COMMON, **strategy}
    first = pool.run(2, train, Plan(blob_folder, settings, 11, save=tmp_path))
    rest = pool.run(2, train, Plan(blob_folder, {}, 9, resume=first[0].saved))
    whole = pool.run(2, train, Plan(blob_folder, settings, 20))
    assert rest[0].losses == whole[0].losses[11:] and rest[1].sizes == whole[1].sizes[11:]
