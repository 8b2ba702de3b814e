"""What export, merge and eval do with files: nothing is written over unasked, parts may lie anywhere."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from blob_models import blobs
from test_cli import command
from test_merge_wrong_parts import STEP, parts  # noqa: F401  (a fixture)

from splatstudio.checkpoints.rank_parts import part_of
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.models.merging import merge


def test_an_export_writes_over_nothing_unasked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "b.ply").write_text("mine")
    code, printed = command(capsys, "export", tmp_path / "a.ply", "-o", tmp_path / "b.ply")
    assert code == 2 and "b.ply is there already" in printed and "--overwrite" in printed
    assert (tmp_path / "b.ply").read_text() == "mine"
    code, _ = command(capsys, "export", tmp_path / "a.ply", "-o", tmp_path / "b.ply", "--overwrite")
    assert code == 0 and len(read_ply(tmp_path / "b.ply")) == 30


def test_cameras_beside_an_export_write_over_nothing_unasked(
    tmp_path: Path, blob_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "cameras.json").write_text("mine")
    arguments = ("export", tmp_path / "a.ply", "-o", tmp_path / "b.ply", "--scene", blob_folder)
    cameras = ("--cameras", tmp_path / "cameras.json")
    code, printed = command(capsys, *arguments, *cameras)
    assert code == 2 and "cameras.json is there already" in printed
    assert (tmp_path / "cameras.json").read_text() == "mine" and not (tmp_path / "b.ply").exists()
    assert command(capsys, *arguments, *cameras, "--overwrite")[0] == 0
    assert (tmp_path / "cameras.json").read_text().startswith("[")


def test_a_link_to_nowhere_is_not_written_through(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=30))
    (tmp_path / "b.ply").symlink_to(tmp_path / "elsewhere.ply")
    assert command(capsys, "export", tmp_path / "a.ply", "-o", tmp_path / "b.ply")[0] == 2
    assert (tmp_path / "b.ply").is_symlink()


def test_a_merge_writes_over_nothing_unasked(
    parts: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "whole.ply").write_text("mine")
    code, printed = command(capsys, "merge", parts, "-o", tmp_path / "whole.ply")
    assert code == 2 and "whole.ply is there already" in printed and "--overwrite" in printed
    assert (tmp_path / "whole.ply").read_text() == "mine"
    assert command(capsys, "merge", parts, "-o", tmp_path / "whole.ply", "--overwrite")[0] == 0
    assert len(read_ply(tmp_path / "whole.ply")) == 41
    # Not even then one of the parts.
    before = (parts / f"ckpt_{STEP}_rank0.pt").read_bytes()
    code, printed = command(capsys, "merge", parts, "-o", parts / f"ckpt_{STEP}_rank0.pt", "--overwrite")
    assert code == 2 and "is one of the parts" in printed
    assert (parts / f"ckpt_{STEP}_rank0.pt").read_bytes() == before


def test_parts_merge_from_the_folders_where_the_machines_left_them(
    parts: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = merge(parts)
    for rank in range(2):
        (tmp_path / f"node{rank}" / "ckpts").mkdir(parents=True)
        shutil.move(parts / f"ckpt_{STEP}_rank{rank}.pt", tmp_path / f"node{rank}" / "ckpts")
    files = [tmp_path / f"node{rank}" / "ckpts" / f"ckpt_{STEP}_rank{rank}.pt" for rank in (1, 0)]
    folders = [tmp_path / "node1", tmp_path / "node0" / "ckpts"]
    for given in (files, folders, [tmp_path / "node*" / "ckpts" / "*.pt"]):
        merged = merge(given)
        for name, tensor in whole.gaussians.tensors().items():
            assert torch.equal(merged.gaussians.tensors()[name], tensor)
    code, printed = command(capsys, "merge", *files, "-o", tmp_path / "whole.ply")
    assert code == 0 and "20 + 21 = 41 splats of 2 ranks" in printed
    with pytest.raises(ValueError, match=rf"of the ranks 0 to 1, 0 is missing \(ckpt_{STEP}_rank0"):
        merge(files[:1])


def test_the_same_rank_in_two_folders_is_not_guessed_at(parts: Path, tmp_path: Path) -> None:  # noqa: F811
    shutil.copytree(parts, tmp_path / "other")
    with pytest.raises(ValueError, match="rank 0 is there twice"):
        merge([parts, tmp_path / "other"])
    (parts / f"ckpt_{STEP}_rank1.pt").unlink()
    given = [parts / f"ckpt_{STEP}_rank0.pt", tmp_path / "other" / f"ckpt_{STEP}_rank1.pt"]
    with pytest.raises(ValueError, match=r"different trainings: .*other has a ckpt_9_rank0\.pt of its own"):
        merge(given)


def test_an_evaluation_names_a_part_once(
    parts: Path,  # noqa: F811
    blob_folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    part = parts / f"ckpt_{STEP}_rank0.pt"
    code, printed = command(
        capsys,
        "eval",
        part,
        "--alone",
        "--scene",
        blob_folder,
        "--test-every",
        4,
        "--lpips",
        "--csv",
        parts / "a.csv",
    )
    assert code == 0 and " ".join(printed.split()).count(str(part_of(part))) == 1
    # The file of the scores says it as well, where nobody sees the terminal.
    assert str(part_of(part)) in (parts / "a.csv").read_text()
