"""Merging what does not belong together, what would pass for a part, and what was made to harm."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from blob_models import blobs

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.models.merging import merge

STEP = 9


def content_of(rank: int) -> dict[str, Any]:
    """Return what gsplat's trainer writes of a rank, with optimisers and a module that all ranks share."""
    splats = dict(blobs(num=20 + rank).detach().tensors())
    optimizers = {
        name: {
            "state": {0: {"step": torch.tensor(7.0), "exp_avg": t + 1, "exp_avg_sq": t * t}},
            "param_groups": [{"lr": 0.1}],
        }
        for name, t in splats.items()
    }
    pose = {"embeds.weight": torch.tensor([[1.0, torch.nan]])}
    return {"step": STEP, "splats": splats, "optimizers": optimizers, "pose_adjust": pose}


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    """Return a folder with the files of two ranks."""
    folder = tmp_path / "ckpts"
    folder.mkdir()
    for rank in range(2):
        torch.save(content_of(rank), folder / f"ckpt_{STEP}_rank{rank}.pt")
    return folder


def rewrite(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)


@pytest.mark.parametrize("name", ["ckpt_9_rank0.pt", "ckpt_9_rank2.pt", "ckpt_8_rank0.pt"])
def test_merging_never_replaces_a_part_or_adds_one(parts: Path, name: str) -> None:
    before = {file.name: file.read_bytes() for file in parts.iterdir()}
    with pytest.raises(ValueError, match=r"name another file"):
        merge(parts, parts / name)
    assert {file.name: file.read_bytes() for file in parts.iterdir()} == before
    assert len(merge(parts, parts / "whole.pt")) == len(merge(parts)) == 41


def test_a_link_to_a_part_is_no_output_either(parts: Path, tmp_path: Path) -> None:
    (tmp_path / "whole.pt").symlink_to(parts / "ckpt_9_rank1.pt")
    with pytest.raises(ValueError, match="is one of the parts"):
        merge(parts, tmp_path / "whole.pt")


def test_ranks_of_two_trainings_are_not_one_model(parts: Path, tmp_path: Path) -> None:
    shutil.copytree(parts, tmp_path / "other")
    (parts / "ckpt_9_rank1.pt").unlink()
    with pytest.raises(ValueError, match="parts of different trainings"):
        merge([parts / "ckpt_9_rank0.pt", tmp_path / "other" / "ckpt_9_rank1.pt"])


def test_a_renamed_step_is_refused(parts: Path) -> None:
    for rank in range(2):
        (parts / f"ckpt_9_rank{rank}.pt").rename(parts / f"ckpt_12_rank{rank}.pt")
    with pytest.raises(ValueError, match=r"ckpt_12_rank0\.pt .* holds step 9, not 12"):
        merge(parts)


@pytest.mark.parametrize("output", ["whole.pt", "whole.ply", "whole"])
@pytest.mark.parametrize("wrong", ["nan", "nothing", "copied"])
def test_what_is_no_model_is_not_written(parts: Path, output: str, wrong: str) -> None:
    files = [parts / f"ckpt_{STEP}_rank{rank}.pt" for rank in range(2)]
    if wrong == "nan":
        rewrite(files[1], lambda content: content["splats"]["quats"][3].fill_(torch.inf))
        sentence = rf"{files[1]} is damaged: 'quats' of splat 3 is no finite number"
    elif wrong == "nothing":
        for file in files:
            rewrite(file, emptied)
        sentence = "hold no splats"
    else:
        shutil.copy(files[0], files[1])
        sentence = rf"{files[0]} and {files[1]} hold the same splats"
    with pytest.raises(ValueError, match=sentence):
        merge(parts, parts / output)
    assert sorted(parts.iterdir()) == files


def emptied(content: dict[str, Any]) -> None:
    """Leave a part no rows."""
    content["splats"] = {name: tensor[:0].clone() for name, tensor in content["splats"].items()}
    del content["optimizers"]


def test_what_the_ranks_share_must_be_the_same(parts: Path) -> None:
    assert len(merge(parts)) == 41
    rewrite(parts / "ckpt_9_rank1.pt", lambda c: c["pose_adjust"]["embeds.weight"].add_(1e-3))
    with pytest.raises(ValueError, match="not parts of one training: 'pose_adjust'"):
        merge(parts)


def _moment(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c["optimizers"]["scales"]["state"][0].update(exp_avg_sq=value)


def _state(value: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda c: c["optimizers"].update(quats=value)


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "a list": (lambda c: c.update(optimizers=[1, 2]), "'optimizers' are list"),
    "a number": (lambda c: c.update(optimizers=3), "'optimizers' are 3"),
    "one is a number": (_state(3), "'quats' has no state"),
    "state is a list": (_state({"state": [1]}), "'quats' has no state"),
    "state of nothing": (_state({"state": {}}), "'quats' has no state"),
    "of no splat": (lambda c: c["optimizers"].update(more=3), "'more' has no state"),
    "moments of another shape": (_moment(torch.zeros(21, 4)), "exp_avg_sq of the optimiser 'scales'"),
    "moments of other rows": (_moment(torch.zeros(5, 3)), "exp_avg_sq of the optimiser 'scales'"),
    "moments of whole numbers": (
        _moment(torch.zeros(21, 3, dtype=torch.int64)),
        "exp_avg_sq of the optimiser 'scales'",
    ),
    "moments that lie": (_moment(torch.zeros(1, 3).expand(21, 3)), "exp_avg_sq of the optimiser 'scales'"),
    "moments are text": (_moment("x"), "exp_avg_sq of the optimiser 'scales'"),
    "its step is text": (
        lambda c: c["optimizers"]["means"]["state"][0].update(step="x"),
        "step of the optimiser 'means' is 'x'",
    ),
    "its step is not finite": (
        lambda c: c["optimizers"]["means"]["state"][0].update(step=torch.tensor(torch.nan)),
        "step of the optimiser 'means'",
    ),
    "step is text": (lambda c: c.update(step="x"), "its 'step' is 'x'"),
    "step is below zero": (lambda c: c.update(step=-4), "its 'step' is -4"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("output", ["whole.pt", "folder"])
def test_hostile_content_gives_one_sentence_with_the_file(parts: Path, name: str, output: str) -> None:
    change, reason = HOSTILE[name]
    rewrite(parts / "ckpt_9_rank1.pt", change)
    with pytest.raises(ValueError, match=r"ckpt_9_rank1\.pt") as caught:
        merge(parts, parts.parent / output)
    assert reason in str(caught.value) and "\n" not in str(caught.value)
    assert not (parts.parent / output).exists()


def test_moments_of_opacities_in_a_column_fit_a_checkpoint(parts: Path) -> None:
    for rank in range(2):

        def column(content: dict[str, Any]) -> None:
            state = content["optimizers"]["opacities"]["state"][0]
            content["splats"]["opacities"] = content["splats"]["opacities"][:, None]
            state.update({name: state[name][:, None] for name in ("exp_avg", "exp_avg_sq")})

        rewrite(parts / f"ckpt_9_rank{rank}.pt", column)
    merge(parts, parts.parent / "folder")
    loaded = load_checkpoint(parts.parent / "folder")
    exp_avg = loaded.population.optimizer.exp_avg
    assert torch.equal(exp_avg.opacities, loaded.gaussians.opacities + 1)
