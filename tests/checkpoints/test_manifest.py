"""The manifest of a checkpoint: nothing in it changes unnoticed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from example_checkpoints import example

from splatstudio.checkpoints.checkpoint import load_checkpoint, newest_checkpoint, save_checkpoint


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


def test_a_checkpoint_from_before_the_seal_is_read(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, example())
    file = folder / "manifest.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps({n: v for n, v in values.items() if n not in ("sha256", "autosave")}))
    assert torch.equal(load_checkpoint(folder).gaussians.means, example().gaussians.means)


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
