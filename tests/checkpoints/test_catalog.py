"""The list of models on the disk: steps, sizes and states, of our runs and of gsplat's results."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from blob_models import blobs
from example_checkpoints import example

from splatstudio.checkpoints.catalog import delete_entry, entries_of, folders_with_models
from splatstudio.checkpoints.checkpoint import save_checkpoint
from splatstudio.files.run import Run
from splatstudio.gui.tabs.evaluate import facts_html
from splatstudio.settings.config import TrainConfig


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return Run.create(tmp_path / "runs" / "garden", tmp_path, TrainConfig()).path


def gsplat_results(folder: Path, steps: dict[int, int]) -> Path:
    """Write gsplat's files: ranks by step."""
    (folder / "ckpts").mkdir(parents=True)
    for step, ranks in steps.items():
        for rank in range(ranks):
            content = {"step": step, "splats": dict(blobs(rank).tensors())}
            torch.save(content, folder / "ckpts" / f"ckpt_{step}_rank{rank}.pt")
    return folder


def test_runs_and_results_are_found(run: Path, tmp_path: Path) -> None:
    root = run.parent
    assert folders_with_models(root) == (run,)
    results = gsplat_results(root / "results", {10: 1})
    (root / "other").mkdir()
    assert set(folders_with_models(root)) == {run, results}
    assert folders_with_models(results) == (results,)
    assert folders_with_models(tmp_path / "nowhere") == ()


def test_states_of_our_checkpoints(run: Path) -> None:
    folders = {step: save_checkpoint(run, example(step), num_shards=2) for step in (10, 20, 30, 40, 50)}
    (folders[20] / "rank00001-of-00002.safetensors").unlink()
    file = folders[30] / "rank00000-of-00002.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    (folders[40] / "manifest.json").write_text("{")
    folders[50].rename(folders[50].with_name(".step_00000050.old-9"))
    (run / "eval").mkdir()
    (run / "eval" / "step_00000010.json").write_text(json.dumps({"psnr": 21.5}))
    entries = entries_of(run)
    assert [(entry.step, entry.state) for entry in entries] == [
        (50, "complete"),
        (40, "damaged"),
        (30, "damaged"),
        (20, "part"),
        (10, "complete"),
    ]
    assert "is not JSON" in entries[1].reason and "rank 0 of 2) is damaged" in entries[2].reason
    assert entries[3].reason == "rank00001-of-00002.safetensors is missing"
    last = entries[4]
    assert (last.num_ranks, last.num_gaussians, last.psnr, last.is_gsplat) == (2, 60, 21.5, False)
    assert last.num_bytes == sum(file.stat().st_size for file in folders[10].glob("rank*"))
    assert [file.name for file in last.files] == [f"rank0000{rank}-of-00002.safetensors" for rank in range(2)]


def test_states_of_gsplats_files(tmp_path: Path) -> None:
    results = gsplat_results(tmp_path / "results", {6999: 3, 14999: 3, 29999: 3})
    (results / "ckpts" / "ckpt_14999_rank1.pt").unlink()
    cut = results / "ckpts" / "ckpt_29999_rank2.pt"
    cut.write_bytes(cut.read_bytes()[:-100])
    entries = entries_of(results)
    assert [(entry.step, entry.state, entry.num_ranks) for entry in entries] == [
        (29999, "damaged", 3),
        (14999, "part", 3),
        (6999, "complete", 3),
    ]
    assert entries[0].reason == "ckpt_29999_rank2.pt is cut off"
    assert entries[1].reason == "missing rank 1"
    assert entries[2].is_gsplat and len(entries[2].files) == 3


def test_only_what_was_meant_is_deleted(run: Path, tmp_path: Path) -> None:
    for step in (10, 20):
        save_checkpoint(run, example(step))
    delete_entry(entries_of(run)[0])
    assert [path.name for path in (run / "ckpts").iterdir()] == ["step_00000010"]
    results = gsplat_results(tmp_path / "results", {5: 2, 7: 2})
    delete_entry(entries_of(results)[1])
    left = sorted(path.name for path in (results / "ckpts").iterdir())
    assert left == ["ckpt_7_rank0.pt", "ckpt_7_rank1.pt"]


def test_a_folder_that_is_not_ours_to_read_hides_no_other(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(run, example(10))
    (run.parent / "private").mkdir()
    stat = os.stat

    def refuse(path: object, *args: object, **options: object) -> os.stat_result:
        if "private" in str(path) or str(path).endswith(".safetensors"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, *args, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "stat", refuse)
    assert folders_with_models(run.parent) == (run,)
    (entry,) = entries_of(run)
    assert (entry.step, entry.num_bytes, entry.state) == (10, 0, "damaged")
    assert "cannot be read: Permission denied" in entry.reason
    assert "rank00000-of-00001.safetensors" in facts_html(entry)
