"""Merging the ranks' files: bit for bit what was split, and every wrong set of files named."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command_line import CommandLine
from model_parts import STEP_OF_PARTS

from splatstudio.checkpoints.checkpoint import load_checkpoint, save_checkpoint
from splatstudio.checkpoints.rank_parts import files_to_merge, part_of
from splatstudio.evaluation.evaluate import evaluate
from splatstudio.files.run import Run
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.models.merging import merge, merged_parts
from splatstudio.models.model import load_model
from splatstudio.scene.scene import Scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.strategy_config import DensifyConfig
from splatstudio.training.trainer import Trainer

STEP = 14999


@pytest.fixture(scope="module")
def trainer(blob_scene: Scene):
    """A training of the blobs after 600 steps, with clones and splits behind it."""
    densify = DensifyConfig(start_step=30, every=50, grow_grad=1e-4, max_gaussians=400)
    made = Trainer(blob_scene, TrainConfig(steps=700, sh_degree=2, sh_degree_every=100, densify=densify))
    for _ in range(600):
        made.train_step()
    yield made
    made.close()


@pytest.fixture(scope="module")
def trained(trainer: Trainer) -> Gaussians:
    return trainer.gaussians.map(torch.clone)


def owner_of_rows(num: int, num_ranks: int) -> torch.Tensor:
    """Return the rank of each row: as uneven as densification makes the shares."""
    return (torch.rand(num, generator=torch.Generator().manual_seed(num_ranks)) ** 1.5 * num_ranks).long()


def split(folder: Path, gaussians: Gaussians, num_ranks: int, step: int = STEP, **more: Any) -> Gaussians:
    """Write gsplat's files and return the model in the order of their rows."""
    folder.mkdir(parents=True, exist_ok=True)
    owner = owner_of_rows(len(gaussians), num_ranks)
    order = []
    for rank in range(num_ranks):
        part = gaussians[owner == rank]
        order.append(part)
        content = {"step": step, "splats": dict(part.tensors()), **more}
        torch.save(content, folder / f"ckpt_{step}_rank{rank}.pt")
    return Gaussians(**{n: torch.cat([p.tensors()[n] for p in order]) for n in gaussians.tensors()})


def assert_same(ours: Gaussians, theirs: Gaussians) -> None:
    for name, tensor in ours.tensors().items():
        assert torch.equal(tensor, theirs.tensors()[name]), name


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_gsplats_parts_merge_to_the_very_model(
    trained: Gaussians, blob_scene: Scene, tmp_path: Path, num_ranks: int
) -> None:
    ordered = split(tmp_path, trained, num_ranks)
    output = tmp_path / "whole" / "model.pt"
    output.parent.mkdir()
    model = merge(tmp_path, output)
    assert_same(model.gaussians, ordered)
    assert model.step == STEP
    written = torch.load(output, weights_only=True)
    assert written["step"] == STEP and set(written["splats"]) == set(ordered.tensors())
    assert_same(Gaussians(**written["splats"]), ordered)
    as_folder = merge([tmp_path / f"ckpt_{STEP}_rank*.pt"], tmp_path / "whole" / "folder")
    assert_same(as_folder.gaussians, ordered)
    assert_same(load_checkpoint(tmp_path / "whole" / "folder").gaussians, ordered)
    merge(sorted(tmp_path.glob("*.pt"), reverse=True), tmp_path / "whole" / "model.ply")
    ply = load_model(tmp_path / "whole" / "model.ply").gaussians
    torch.testing.assert_close(ply.means, ordered.means, rtol=0, atol=0)
    # One part shows a part of the scene; the whole is as good as what was split.
    photos = blob_scene.train_indices
    alone = load_model(tmp_path / f"ckpt_{STEP}_rank0.pt").gaussians
    before, whole, part = (
        evaluate(gaussians, blob_scene, indices=photos).psnr
        for gaussians in (trained, model.gaussians, alone)
    )
    # Depth ties are broken by row, so the order of the rows may show in the last digits.
    assert whole == pytest.approx(before, abs=1e-3)
    print(f"{num_ranks} ranks: whole {whole:.2f} dB, one part {part:.2f} dB")
    assert whole > 20.0 and part < whole - 3.0


@pytest.mark.parametrize("num_ranks", [2, 3, 8])
def test_our_shards_merge_with_moments_and_all(trainer: Trainer, tmp_path: Path, num_ranks: int) -> None:
    checkpoint = trainer.checkpoint()
    folder = save_checkpoint(tmp_path, checkpoint, num_shards=num_ranks)
    merged = merged_parts([folder])
    assert len(merged.rows) == num_ranks and len(merged) == len(checkpoint.gaussians)
    merged.write(tmp_path / "whole")
    assert [path.name for path in sorted((tmp_path / "whole").iterdir())] == [
        "manifest.json",
        "rank00000-of-00001.safetensors",
    ]
    loaded = load_checkpoint(tmp_path / "whole")
    assert_same(loaded.gaussians, checkpoint.gaussians.detach())
    ours, saved = loaded.population, checkpoint.population
    assert_same(ours.optimizer.exp_avg, saved.optimizer.exp_avg)
    assert_same(ours.optimizer.exp_avg_sq, saved.optimizer.exp_avg_sq)
    assert ours.optimizer.num_steps == saved.optimizer.num_steps == 600
    assert ours.counts.keys() == saved.counts.keys()
    # It is a checkpoint like any other: the training goes on from it exactly as from its shards.
    one = Trainer.resume(trainer.scene, tmp_path / "whole")
    other = Trainer.resume(trainer.scene, folder)
    losses = [[made.train_step().loss for _ in range(5)] for made in (one, other)]
    one.close()
    other.close()
    assert losses[0] == losses[1]


def test_what_all_ranks_share_is_kept_once_and_moments_are_joined(trained: Gaussians, tmp_path: Path) -> None:
    owner = owner_of_rows(len(trained), 2)
    for rank in range(2):
        part = trained[owner == rank]
        moments = {
            name: {"step": torch.tensor(7.0), "exp_avg": t + 1, "exp_avg_sq": t * t}
            for name, t in part.tensors().items()
        }
        optimizers = {
            name: {"state": {0: state}, "param_groups": [{"lr": 0.1}]} for name, state in moments.items()
        }
        pose = {"embeds.weight": torch.ones(4, 9)}
        content = {"step": STEP, "splats": part.tensors(), "pose_adjust": pose, "optimizers": optimizers}
        torch.save(content, tmp_path / f"ckpt_{STEP}_rank{rank}.pt")
    merge(tmp_path, tmp_path / "model.pt")
    written = torch.load(tmp_path / "model.pt", weights_only=True)
    assert torch.equal(written["pose_adjust"]["embeds.weight"], torch.ones(4, 9))
    state = written["optimizers"]["means"]["state"][0]
    assert torch.equal(state["exp_avg"], written["splats"]["means"] + 1) and state["step"] == 7
    merge(tmp_path, tmp_path / "folder")
    optimizer = load_checkpoint(tmp_path / "folder").population.optimizer
    assert torch.equal(optimizer.exp_avg_sq.means, written["splats"]["means"] ** 2)
    assert optimizer.num_steps == 7


def test_a_part_is_named_with_what_belongs_to_it(trained: Gaussians, tmp_path: Path) -> None:
    split(tmp_path, trained, 2)
    part = part_of(tmp_path / f"ckpt_{STEP}_rank0.pt")
    assert part is not None and part.complete
    assert str(part) == (
        "ckpt_14999_rank0.pt is rank 0 of 2: about half of the scene; "
        "merge with ckpt_14999_rank1.pt (found beside it)?"
    )
    (tmp_path / f"ckpt_{STEP}_rank0.pt").unlink()
    part = part_of(tmp_path / f"ckpt_{STEP}_rank1.pt")
    assert part is not None and part.missing == (0,)
    assert str(part).endswith("about half of the scene; the file of rank 0 is not beside it")


def test_a_model_of_one_rank_is_no_part(trained: Gaussians, tmp_path: Path) -> None:
    split(tmp_path, trained, 1)
    assert part_of(tmp_path / f"ckpt_{STEP}_rank0.pt") is None
    assert part_of(tmp_path / "model.ply") is None
    assert_same(merge(tmp_path / f"ckpt_{STEP}_rank0.pt").gaussians, trained)


def test_one_of_our_shards_alone_is_a_part_too(trainer: Trainer, tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, trainer.checkpoint(), num_shards=3)
    file = folder / "rank00001-of-00003.safetensors"
    part = part_of(file)
    assert part is not None and (part.rank, part.num_ranks, len(part.others)) == (1, 3, 2)
    assert "about a third of the scene" in str(part)
    num = len(trainer.gaussians)
    assert len(load_model(file)) == num * 2 // 3 - num // 3
    assert len(merge([file])) == num
    (folder / "rank00002-of-00003.safetensors").unlink()
    assert len(load_model(file)) == num * 2 // 3 - num // 3
    with pytest.raises(ValueError, match=r"rank 2 of 3\) cannot be read: it is missing"):
        merge([file])


def test_traces_of_other_ranks_tell_that_one_is_missing(trained: Gaussians, tmp_path: Path) -> None:
    ckpts = tmp_path / "ckpts"
    split(ckpts, trained, 3, step=6999)
    split(ckpts, trained, 3)
    (ckpts / f"ckpt_{STEP}_rank2.pt").unlink()
    with pytest.raises(ValueError, match="missing rank 2"):
        merge(tmp_path)
    for file in ckpts.glob("ckpt_6999*"):
        file.unlink()
    assert part_of(ckpts / f"ckpt_{STEP}_rank0.pt").num_ranks == 2  # type: ignore[union-attr]
    (tmp_path / "stats").mkdir()
    (tmp_path / "stats" / "train_step14999_rank2.json").write_text("{}")
    assert part_of(ckpts / f"ckpt_{STEP}_rank0.pt").missing == (2,)  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"ckpt_14999_rank2\.pt"):
        merge(tmp_path)


def rewrite(file: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, file)


def _lower_degree(content: dict[str, Any]) -> None:
    content["splats"]["shN"] = content["splats"]["shN"][:, :3].clone()


def _short_row(content: dict[str, Any]) -> None:
    content["splats"]["quats"] = content["splats"]["quats"][:-1].clone()


def _pretend(content: dict[str, Any]) -> None:
    content["splats"]["means"] = torch.zeros(1, 3).expand(1 << 40, 3)


class Payload:
    def __reduce__(self):
        return (print, ("executed",))


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "middle rank": (lambda d: (d / "ckpt_14999_rank1.pt").unlink(), "missing rank 1: ckpt_14999_rank1.pt"),
    "other degree": (
        lambda d: rewrite(d / "ckpt_14999_rank1.pt", _lower_degree),
        "spherical harmonics differ",
    ),
    "rows": (lambda d: rewrite(d / "ckpt_14999_rank1.pt", _short_row), "'quats' has .* rows, the means"),
    "other step inside": (
        lambda d: rewrite(d / "ckpt_14999_rank2.pt", lambda c: c.update(step=5)),
        "the steps do not agree: .* holds step 14999, .* step 5",
    ),
    "a tensor less": (
        lambda d: rewrite(d / "ckpt_14999_rank2.pt", lambda c: c["splats"].pop("quats")),
        "do not hold the same: quats",
    ),
    "no means": (
        lambda d: rewrite(d / "ckpt_14999_rank2.pt", lambda c: c["splats"].clear()),
        "has no 'means'",
    ),
    "not a tensor": (
        lambda d: rewrite(d / "ckpt_14999_rank2.pt", lambda c: c["splats"].update(quats=[1.0])),
        "'quats' is not a dense tensor",
    ),
    "numbers that lie": (lambda d: rewrite(d / "ckpt_14999_rank0.pt", _pretend), "claims more numbers"),
    "a program": (lambda d: torch.save(Payload(), d / "ckpt_14999_rank1.pt"), "is refused"),
    "another file": (lambda d: torch.save({"a": 1}, d / "ckpt_14999_rank1.pt"), "no checkpoint of gsplat"),
    "cut off": (
        lambda d: (d / "ckpt_14999_rank1.pt").write_bytes((d / "ckpt_14999_rank1.pt").read_bytes()[:500]),
        "rank1.pt is cut off",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_parts_that_do_not_fit_are_named(
    trained: Gaussians, tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage, reason = WRONG[name]
    split(tmp_path, trained, 3)
    damage(tmp_path)
    with pytest.raises(ValueError, match=reason) as caught:
        merge(tmp_path, tmp_path / "out.pt")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.pt").exists()
    assert "executed" not in capsys.readouterr().out


def test_a_run_with_damaged_checkpoints_says_what_is_wrong_with_them(
    trainer: Trainer, blob_scene: Scene, tmp_path: Path
) -> None:
    run = Run.create(tmp_path / "run", blob_scene.path, trainer.config)
    with pytest.raises(ValueError, match="holds neither a checkpoint"):
        merge(run.path)
    saved = trainer.save(run.path)
    next(saved.glob("rank*")).unlink()
    with pytest.raises(ValueError, match=r"no model in .*run can be read: .* is missing"):
        merge(run.path)


def test_wrong_lists_are_named(trained: Gaussians, trainer: Trainer, tmp_path: Path) -> None:
    split(tmp_path / "a", trained, 2)
    split(tmp_path / "b", trained, 2, step=6999)
    first = tmp_path / "a" / "ckpt_14999_rank0.pt"
    with pytest.raises(ValueError, match=r"steps do not agree: .* of step 6999, .* of step 14999"):
        merge([first, tmp_path / "b" / "ckpt_6999_rank1.pt"])
    with pytest.raises(ValueError, match="rank 0 is there twice"):
        merge([first, first])
    with pytest.raises(ValueError, match="no file matches"):
        merge(tmp_path / "a" / "*.ckpt")
    with pytest.raises(ValueError, match="does not exist"):
        merge(tmp_path / "c")
    with pytest.raises(ValueError, match="holds neither a checkpoint"):
        merge(tmp_path)
    shutil.copy(first, tmp_path / "a" / "mine.pt")
    with pytest.raises(ValueError, match="does not tell its rank"):
        merge(tmp_path / "a" / "mine.pt")
    ours = save_checkpoint(tmp_path / "run", trainer.checkpoint())
    with pytest.raises(ValueError, match="do not belong together"):
        merge([ours, first])
    with pytest.raises(ValueError, match="is there already"):
        merge(ours, tmp_path / "a")
    (tmp_path / "run" / "run.json").write_text("{}")
    assert len(merge(tmp_path / "run")) == len(trainer.gaussians), "of a run the newest checkpoint"
    with pytest.raises(ValueError, match=r"must end in one of .*\.ply"):
        merge(ours, tmp_path / "model.obj")


def test_of_several_steps_in_a_folder_the_last_is_taken(trained: Gaussians, tmp_path: Path) -> None:
    split(tmp_path / "ckpts", trained, 2, step=6999)
    split(tmp_path / "ckpts", trained, 2)
    names = [file.name for file in files_to_merge([tmp_path])]
    assert names == ["ckpt_14999_rank0.pt", "ckpt_14999_rank1.pt"]


def test_the_command_says_what_it_did(trained: Gaussians, tmp_path: Path, command: CommandLine) -> None:
    split(tmp_path, trained, 2)
    code, output = command("merge", tmp_path, "-o", tmp_path / "m.ply")
    assert code == 0 and f"= {len(trained):,} splats of 2 ranks" in output
    assert len(load_model(tmp_path / "m.ply")) == len(trained)
    assert json.dumps(STEP) in output


def test_it_is_part_of_the_python_interface(trained: Gaussians, tmp_path: Path) -> None:
    import splatstudio as ss

    split(tmp_path, trained, 2)
    assert len(ss.merge(tmp_path)) == len(ss.merge(tmp_path, tmp_path / "m.ply")) == len(trained)


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
def test_splats_that_are_not_finite_are_left_out_of_the_whole_as_of_a_part(parts: Path, output: str) -> None:
    files = [parts / f"ckpt_{STEP_OF_PARTS}_rank{rank}.pt" for rank in range(2)]
    whole = merge(parts)
    first, second = (len(load_model(file)) for file in files)
    rewrite(files[1], lambda content: content["splats"]["quats"][3].fill_(torch.nan))
    rewrite(files[1], lambda content: content["splats"]["opacities"][1].fill_(torch.inf))
    exported = merged_parts([parts]).write(parts.parent / output)
    assert exported.notes == (
        f"1 of the {second} splats in {files[1]} has a value that is not finite and is left out",
    )
    again = load_model(exported.output)
    others = [row for row in range(len(whole)) if row != first + 3]
    assert torch.equal(again.gaussians.means, whole.gaussians.means[others])
    assert float(again.gaussians.opacities[first + 1]) > 10, "what is opaque has a number again"
    if output == "whole":
        moments = load_checkpoint(exported.output).population.optimizer
        assert len(moments.exp_avg) == len(others)


@pytest.mark.parametrize("output", ["whole.pt", "whole.ply", "whole"])
@pytest.mark.parametrize("wrong", ["nan", "nothing", "copied"])
def test_what_is_no_model_is_not_written(parts: Path, output: str, wrong: str) -> None:
    files = [parts / f"ckpt_{STEP_OF_PARTS}_rank{rank}.pt" for rank in range(2)]
    if wrong == "nan":
        rewrite(files[1], lambda content: content["splats"]["quats"][3:].fill_(torch.inf))
        sentence = rf"{files[1]} is damaged: \d+ of its \d+ splats have values that are not finite"
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
    "a list": (lambda c: c.update(optimizers=[1, 2]), "'optimizers' are [1, 2]"),
    "a number": (lambda c: c.update(optimizers=3), "'optimizers' are 3"),
    "one is a number": (_state(3), "'quats' has no state"),
    "state is a list": (_state({"state": [1]}), "'quats' has no state"),
    "state of nothing": (_state({"state": {}}), "'quats' has no state"),
    "of no splat": (lambda c: c["optimizers"].update(more=3), "'more' has no state"),
    "moments of another shape": (_moment(torch.zeros(21, 4)), "exp_avg_sq of the optimizer 'scales'"),
    "moments of other rows": (_moment(torch.zeros(5, 3)), "exp_avg_sq of the optimizer 'scales'"),
    "moments of whole numbers": (
        _moment(torch.zeros(21, 3, dtype=torch.int64)),
        "exp_avg_sq of the optimizer 'scales'",
    ),
    "moments that lie": (_moment(torch.zeros(1, 3).expand(21, 3)), "exp_avg_sq of the optimizer 'scales'"),
    "moments are text": (_moment("x"), "exp_avg_sq of the optimizer 'scales'"),
    "its step is text": (
        lambda c: c["optimizers"]["means"]["state"][0].update(step="x"),
        "step of the optimizer 'means' is 'x'",
    ),
    "its step is not finite": (
        lambda c: c["optimizers"]["means"]["state"][0].update(step=torch.tensor(torch.nan)),
        "step of the optimizer 'means'",
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
