"""Checkpoints: everything comes back, damage is named, a failed save harms nothing."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from example_checkpoints import example
from safetensors.torch import load_file, save_file

from splatstudio.checkpoints import checkpoint as module
from splatstudio.checkpoints.catalog import delete_entry, entries_of
from splatstudio.checkpoints.checkpoint import (
    begin_checkpoint,
    checkpoint_folders,
    commit_checkpoint,
    load_checkpoint,
    newest_and_passed_over,
    newest_checkpoint,
    newest_known_checkpoint,
    prune_checkpoints,
    remove_checkpoint,
    save_checkpoint,
    verify_checkpoint,
    write_shard,
)
from splatstudio.checkpoints.manifest import step_of, write_sealed
from splatstudio.gaussians.gaussians import Gaussians
from splatstudio.operating_system import hold
from splatstudio.optimization.optim import SplatAdam
from splatstudio.strategy.population import Population

RANK = "rank00000-of-00001.safetensors"


def assert_equal(ours: Gaussians, theirs: Gaussians) -> None:
    for name, tensor in ours.tensors().items():
        assert torch.equal(tensor.detach(), theirs.tensors()[name].detach()), name


def test_everything_comes_back(tmp_path: Path) -> None:
    saved = example()
    folder = save_checkpoint(tmp_path, saved)
    assert folder == tmp_path / "ckpts" / "step_00000120"
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", RANK]
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    loaded = load_checkpoint(folder)
    assert (loaded.step, loaded.config, loaded.scene_path) == (120, saved.config, saved.scene_path)
    assert loaded.upcoming == saved.upcoming
    assert np.array_equal(loaded.scene_transform, saved.scene_transform)
    assert torch.equal(loaded.rng_state, saved.rng_state)
    assert_equal(loaded.gaussians, saved.gaussians)
    assert_equal(loaded.population.optimizer.exp_avg, saved.population.optimizer.exp_avg)
    assert_equal(loaded.population.optimizer.exp_avg_sq, saved.population.optimizer.exp_avg_sq)
    assert loaded.population.optimizer.num_steps == 120
    assert loaded.population.counts.keys() == saved.population.counts.keys()
    for name, count in saved.population.counts.items():
        assert torch.equal(loaded.population.counts[name], count)


def test_rows_are_on_the_disk_before_the_checkpoint_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: set[int] = set()
    wait = os.fsync

    def fsync(descriptor: int) -> None:
        waited.add(os.fstat(descriptor).st_ino)
        wait(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    folder = save_checkpoint(tmp_path, example())
    assert waited >= {path.stat().st_ino for path in (folder / RANK, folder / "manifest.json", folder.parent)}


def test_a_model_spread_over_three_rank_files_is_read_as_one(tmp_path: Path) -> None:
    saved = example()
    whole = saved.population
    staging = begin_checkpoint(tmp_path, saved.step, saved.num_bytes)
    shards = []
    for rank, rows in enumerate([slice(0, 17), slice(17, 17), slice(17, 60)]):
        part = Population(
            whole.gaussians[rows],
            SplatAdam(whole.optimizer.exp_avg[rows], whole.optimizer.exp_avg_sq[rows]),
            {name: count[rows] for name, count in whole.counts.items()},
        )
        shards.append(write_shard(staging, part, rank, 3))
    folder = commit_checkpoint(staging, saved, shards)
    assert [shard.rows for shard in shards] == [17, 0, 43]
    assert newest_checkpoint(tmp_path) == folder
    loaded = load_checkpoint(folder)
    assert_equal(loaded.gaussians, saved.gaussians)
    assert_equal(loaded.population.optimizer.exp_avg, saved.population.optimizer.exp_avg)
    assert torch.equal(loaded.population.counts["grad2d"], saved.population.counts["grad2d"])


def _size(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _change_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text())
    manifest.pop("sha256")
    change(manifest)
    write_sealed(folder, manifest)  # what its values say is checked even so


def _without_seal(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("sha256")
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _replace_rank(folder: Path, data: bytes) -> None:
    """Exchange the rank's file and let the manifest vouch for it."""
    (folder / RANK).write_bytes(data)
    _change_manifest(folder, lambda manifest: manifest["ranks"][0].update(_size(folder / RANK)))


def _flip_a_bit(folder: Path) -> None:
    data = bytearray((folder / RANK).read_bytes())
    data[len(data) // 2] ^= 1
    (folder / RANK).write_bytes(data)


def _huge_header(folder: Path) -> None:
    data = (folder / RANK).read_bytes()
    _replace_rank(folder, struct.pack("<Q", 1 << 60) + data[8:])


def _huge_shape(folder: Path) -> None:
    data = (folder / RANK).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = data[8 : 8 + length].replace(b'"shape":[60,3]', b'"shape":[1099511627776,3]')
    _replace_rank(folder, struct.pack("<Q", len(header)) + header + data[8 + length :])


def _without_means(folder: Path) -> None:
    tensors = load_file(folder / RANK)
    del tensors["means"]
    save_file(tensors, folder / RANK)
    _replace_rank(folder, (folder / RANK).read_bytes())


def _with_an_extra_tensor(folder: Path) -> None:
    tensors = load_file(folder / RANK)
    save_file({**tensors, "payload": torch.zeros(60)}, folder / RANK)
    _replace_rank(folder, (folder / RANK).read_bytes())


def _manifest(**values: Any) -> Callable[[Path], None]:
    return lambda folder: _change_manifest(folder, lambda manifest: manifest.update(values))


def _rank_entry(**values: Any) -> Callable[[Path], None]:
    return lambda folder: _change_manifest(folder, lambda manifest: manifest["ranks"][0].update(values))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no rank file": (lambda f: (f / RANK).unlink(), f"{RANK} (rank 0 of 1) cannot be read: it is missing"),
    "rank cut off": (lambda f: (f / RANK).write_bytes((f / RANK).read_bytes()[:-1]), "bytes instead of"),
    "rank empty": (lambda f: (f / RANK).write_bytes(b""), "it has 0 bytes instead of"),
    "bit flipped": (_flip_a_bit, "SHA-256"),
    "header of 2^60 bytes": (_huge_header, f"{RANK} (rank 0 of 1) is damaged"),
    "shape of 2^40 rows": (_huge_shape, f"{RANK} (rank 0 of 1) is damaged"),
    "means missing": (_without_means, "the tensor means is missing"),
    "extra tensor": (_with_an_extra_tensor, "unexpected tensors"),
    "no manifest": (lambda f: (f / "manifest.json").unlink(), "is no checkpoint"),
    "manifest cut off": (
        lambda f: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes()[:200]),
        "is not JSON",
    ),
    "not ours": (_manifest(format="other"), "is not the manifest of a splatstudio checkpoint"),
    "newer": (_manifest(format_version=2), "has format version 2; this program reads 1"),
    "step missing": (_manifest(step=None), "step is None"),
    "no ranks": (_manifest(ranks=[]), "it names no rank's file"),
    "path outside": (_rank_entry(file="../../secret"), "is not the file of rank 0 of 1"),
    "rows do not add up": (_manifest(num_gaussians=61), "do not add up"),
    "wrong rows": (
        lambda f: (_manifest(num_gaussians=61)(f), _rank_entry(rows=61)(f)),
        "is missing or of a wrong shape",
    ),
    "unknown setting": (_manifest(config={"stepz": 1}), "unknown setting 'stepz'"),
    "transform": (_manifest(scene={"path": "a", "transform": [1]}), "transform"),
    "no optimizer": (_manifest(optimizer={}), "'num_steps' is missing"),
    "random state": (_manifest(rng="%"), "manifest.json is damaged"),
    "no seal": (_without_seal, "has no SHA-256: an earlier version wrote it"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_gives_one_sentence_with_the_file(name: str, tmp_path: Path) -> None:
    damage, reason = DAMAGES[name]
    folder = save_checkpoint(tmp_path, example())
    damage(folder)
    with pytest.raises(ValueError) as caught:
        load_checkpoint(folder)
    assert reason in str(caught.value)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_any_cut_of_the_rank_file_is_noticed(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example())
    data = (folder / RANK).read_bytes()
    for end in range(0, len(data), len(data) // 20):
        (folder / RANK).write_bytes(data[:end])
        with pytest.raises(ValueError, match="bytes instead of"):
            load_checkpoint(folder)


def test_the_newest_good_checkpoint_is_found_and_damaged_ones_are_named(tmp_path: Path) -> None:
    assert newest_checkpoint(tmp_path) is None
    folders = [save_checkpoint(tmp_path, example(step)) for step in (900, 1000, 99_000_000)]
    (tmp_path / "ckpts" / "step_x").mkdir()
    assert newest_checkpoint(tmp_path) == folders[2]
    _flip_a_bit(folders[2])
    (folders[1] / "manifest.json").unlink()
    sentences: list[str] = []
    assert newest_checkpoint(tmp_path, sentences.append) == folders[0]
    assert len(sentences) == 2
    assert str(folders[2]) in sentences[0] and str(folders[1]) in sentences[1]


def test_checkpoints_that_cannot_be_listed_are_not_called_none(tmp_path: Path) -> None:
    (tmp_path / "ckpts").symlink_to("ckpts")  # as without permission, which root has
    with pytest.raises(OSError):
        checkpoint_folders(tmp_path)
    assert newest_and_passed_over(tmp_path) == (
        None,
        (f"the checkpoints in {tmp_path / 'ckpts'} cannot be listed: Too many levels of symbolic links",),
    )
    (tmp_path / "ckpts").unlink()
    assert newest_and_passed_over(tmp_path) == (None, ())


def test_a_page_reads_a_checkpoint_that_was_found_good_again_only_when_it_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Path] = []

    def verify(folder: Path) -> dict[str, Any]:
        read.append(folder)
        return verify_checkpoint(folder)

    monkeypatch.setattr(module, "verify_checkpoint", verify)
    monkeypatch.setattr(module, "SETTLED_NS", 10**18)
    folder = save_checkpoint(tmp_path, example())
    assert newest_known_checkpoint(tmp_path) == newest_known_checkpoint(tmp_path) == folder
    assert len(read) == 2, "what is this new could be written again unseen"
    monkeypatch.setattr(module, "SETTLED_NS", 0)
    for _ in range(3):
        assert newest_known_checkpoint(tmp_path) == folder
    assert len(read) == 3
    assert newest_checkpoint(tmp_path) == folder and load_checkpoint(folder).step == 120
    assert len(read) == 5, "what is used is read in any case"
    times = (folder / RANK).stat()
    _flip_a_bit(folder)
    os.utime(folder / RANK, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert newest_known_checkpoint(tmp_path) is None and len(read) == 6
    folder = save_checkpoint(tmp_path, example())
    assert newest_known_checkpoint(tmp_path) == folder and len(read) == 7


def test_saving_the_same_step_again_replaces_it(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, example(seed=0))
    folder = save_checkpoint(tmp_path, example(seed=1))
    assert_equal(load_checkpoint(folder).gaussians, example(seed=1).gaussians)
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_failed_save_leaves_the_earlier_checkpoint_and_no_litter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path, example(seed=0))

    def half_a_file(file: Path, _: object) -> None:
        file.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module, "write_shard_file", half_a_file)
    for step in (120, 130):
        with pytest.raises(OSError, match="No space left"):
            save_checkpoint(tmp_path, example(step, seed=1))
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert_equal(load_checkpoint(folder).gaussians, example(seed=0).gaussians)


def test_a_full_disk_is_noticed_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(tmp_path)._replace(free=1000)
    save_checkpoint(tmp_path / "other", example())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: full)
    with pytest.raises(OSError, match=r"MB free$"):
        save_checkpoint(tmp_path, example())
    assert list((tmp_path / "ckpts").iterdir()) == []
    with pytest.raises(OSError, match="MB free; the earlier checkpoints are still good"):
        save_checkpoint(tmp_path / "other", example(step=130))


def test_what_a_killed_save_left_is_cleared_or_put_back(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example(120))
    folder.rename(folder.with_name(".step_00000120.old-1"))  # killed between the two renames
    half = folder.with_name(".step_00000140.tmp-1")
    half.mkdir()
    (half / RANK).write_bytes(b"half")
    save_checkpoint(tmp_path, example(150))
    assert sorted(path.name for path in folder.parent.iterdir()) == ["step_00000120", "step_00000150"]
    assert load_checkpoint(folder).step == 120


def test_what_cannot_be_cleared_away_does_not_fail_the_next_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parent = tmp_path / "ckpts"
    being_deleted = parent / f".step_00000010.del-{os.getppid()}"
    (being_deleted / "inside").mkdir(parents=True)
    ours = parent / f".step_00000150.tmp-{os.getpid()}"
    ours.mkdir()
    (parent / ".step_00000020.tmp-1").write_text("a plain file")

    def keep(folder: Path, ignore_errors: bool = False) -> None:
        if not ignore_errors:
            raise OSError(errno.EBUSY, "a file of it is still open elsewhere")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", keep)
        folder = save_checkpoint(tmp_path, example(150))
    assert load_checkpoint(folder).step == 150
    assert {path.name for path in parent.iterdir()} == {being_deleted.name, ours.name, folder.name}
    remove_checkpoint(folder)
    remove_checkpoint(folder)  # gone already: nothing to say
    save_checkpoint(tmp_path, example(160))
    assert {path.name for path in parent.iterdir()} == {being_deleted.name, "step_00000160"}
    assert (being_deleted / "inside").is_dir(), "its own process empties it"


@pytest.mark.parametrize("num_shards", [1, 2, 3, 8])
def test_any_number_of_shards_gives_the_same_model(tmp_path: Path, num_shards: int) -> None:
    saved = example()
    folder = save_checkpoint(tmp_path, saved, num_shards=num_shards)
    assert len(list(folder.glob("rank*"))) == num_shards
    loaded = load_checkpoint(folder)
    assert_equal(loaded.gaussians, saved.gaussians)
    assert_equal(loaded.population.optimizer.exp_avg_sq, saved.population.optimizer.exp_avg_sq)
    assert torch.equal(loaded.population.counts["visible"], saved.population.counts["visible"])


def test_a_damaged_shard_is_named_with_its_rank(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example(), num_shards=3)
    file = folder / "rank00001-of-00003.safetensors"
    data = file.read_bytes()
    file.unlink()
    with pytest.raises(ValueError, match=r"rank 1 of 3\) cannot be read: it is missing"):
        load_checkpoint(folder)
    file.write_bytes(data[:-8])
    with pytest.raises(ValueError, match=r"rank 1 of 3\) is damaged: it has \d+ bytes instead"):
        load_checkpoint(folder)
    file.write_bytes(data[:-1] + bytes([data[-1] ^ 4]))
    with pytest.raises(ValueError, match=r"rank 1 of 3\) is damaged: its SHA-256"):
        load_checkpoint(folder)
    _change_manifest(folder, lambda manifest: manifest["ranks"].pop(1))
    with pytest.raises(ValueError, match="is not the file of rank 0 of 2"):
        load_checkpoint(folder)


def test_what_was_put_aside_by_a_killed_save_is_still_found(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example(120))
    aside = folder.with_name(".step_00000120.old-77")
    folder.rename(aside)
    assert newest_checkpoint(tmp_path) == aside and step_of(aside) == 120
    assert load_checkpoint(aside).step == 120
    save_checkpoint(tmp_path, example(120, seed=1))
    assert newest_checkpoint(tmp_path) == folder


def test_the_one_used_instead_of_a_damaged_one_is_said(tmp_path: Path) -> None:
    for step in (100, 200):
        save_checkpoint(tmp_path, example(step))
    _flip_a_bit(tmp_path / "ckpts" / "step_00000200")
    sentences: list[str] = []
    newest_checkpoint(tmp_path, sentences.append)
    assert "step_00000200" in sentences[0] and sentences[0].endswith("step 100 is used instead")
    _flip_a_bit(tmp_path / "ckpts" / "step_00000100")
    assert newest_checkpoint(tmp_path, sentences.append) is None
    assert "is used instead" not in sentences[-1]


def test_old_checkpoints_go_but_never_the_newest_the_later_or_the_damaged(tmp_path: Path) -> None:
    folders = {step: save_checkpoint(tmp_path, example(step)) for step in (10, 20, 30, 40, 50, 90)}
    (folders[40] / "manifest.json").unlink()
    assert prune_checkpoints(folders[50], 0) == []
    assert prune_checkpoints(folders[50], 2) == [folders[10], folders[20]]
    left = sorted(path.name for path in (tmp_path / "ckpts").iterdir())
    assert left == [f"step_{step:08d}" for step in (30, 40, 50, 90)]
    assert prune_checkpoints(folders[50], 1) == [folders[30]]
    assert newest_checkpoint(tmp_path) == folders[90] and load_checkpoint(folders[50]).step == 50


def test_a_checkpoint_that_somebody_reads_is_not_deleted(tmp_path: Path) -> None:
    folders = [save_checkpoint(tmp_path, example(step)) for step in (10, 20, 30)]
    held = hold(folders[0])
    try:
        assert prune_checkpoints(folders[2], 1) == [folders[1]] and verify_checkpoint(folders[0])
        with pytest.raises(ValueError, match="cannot be deleted: it is being read; try again later"):
            delete_entry(entries_of(tmp_path)[-1])
    finally:
        os.close(held)
    assert prune_checkpoints(folders[2], 1) == [folders[0]]


def test_who_reads_a_checkpoint_keeps_it_until_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newest = (save_checkpoint(tmp_path, example(step)) for step in (10, 20))
    found: list[list[Path]] = []
    verify = module.verify_checkpoint

    def meanwhile(folder: Path, **options: Any) -> Any:
        if folder == older and not found:
            found.append([])
            found[0] += prune_checkpoints(newest, 1)
        return verify(folder, **options)

    monkeypatch.setattr(module, "verify_checkpoint", meanwhile)
    assert load_checkpoint(older).step == 10 and found == [[]]
    assert prune_checkpoints(newest, 1) == [older]


def test_any_other_value_in_the_manifest_is_noticed(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example())
    file = folder / "manifest.json"
    whole = json.loads(file.read_text())
    changes: dict[str, Any] = {
        "step": whole["step"] ^ 1,
        "rng": whole["rng"].swapcase(),
        "config": {**whole["config"], "seed": whole["config"]["seed"] ^ 1},
        "scene": {**whole["scene"], "path": "elsewhere"},
        "optimizer": {"num_steps": whole["optimizer"]["num_steps"] ^ 1},
        "upcoming": [],
        "autosave": True,
        "sha256": whole["sha256"][::-1],
    }
    for name, value in changes.items():
        assert whole[name] != value
        file.write_text(json.dumps({**whole, name: value}))
        with pytest.raises(ValueError, match=r"manifest\.json is damaged: .* SHA-256"):
            load_checkpoint(folder)
        assert newest_checkpoint(tmp_path, lambda _: None) is None
    # White space and the order of the names mean nothing.
    file.write_text(json.dumps(dict(reversed(whole.items())), indent=3))
    assert load_checkpoint(folder).step == whole["step"]
    # Not even the name of the seal can change.
    file.write_text(json.dumps({("sha257" if n == "sha256" else n): v for n, v in whole.items()}))
    with pytest.raises(ValueError, match="SHA-256"):
        load_checkpoint(folder)


def test_a_folder_of_another_step_is_named(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example())
    folder.rename(folder.with_name("step_00000121"))
    with pytest.raises(ValueError, match="is of step 120, but its folder's name tells another"):
        load_checkpoint(folder.with_name("step_00000121"))


def test_no_depth_of_nesting_ends_in_anything_but_a_sentence(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example())
    file = folder / "manifest.json"
    whole = file.read_text()
    for depth in range(900, 1010):  # about the recursion limit, 1000
        file.write_text(whole.replace('"upcoming": [', f'"upcoming": [{"[" * depth}{"]" * depth}, ', 1))
        assert file.read_text() != whole
        with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
            load_checkpoint(folder)
