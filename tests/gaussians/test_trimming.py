"""What is left out of an export: by opacity, by a box, on the command line and in a job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs
from command_line import CommandLine

from splatstudio import api
from splatstudio.gaussians.trimming import Trim, trimmed


def test_faint_and_distant_gaussians_are_left_out() -> None:
    gaussians = blobs(num=40)
    opacities = torch.linspace(0.01, 0.99, 40)
    gaussians.opacities.copy_(torch.logit(opacities))
    assert trimmed(gaussians, Trim()) is gaussians
    assert torch.equal(trimmed(gaussians, Trim(0.5)).means, gaussians.means[opacities >= 0.5])
    # The corners may come in any order.
    box = (0.5, -0.4, 0.6, -0.5, 0.4, -0.6)
    inside = (gaussians.means.abs() <= torch.tensor([0.5, 0.4, 0.6])).all(dim=1)
    assert 0 < int(inside.sum()) < 40
    assert torch.equal(trimmed(gaussians, Trim(crop=box)).quats, gaussians.quats[inside])
    both = trimmed(gaussians, Trim(0.5, box))
    assert torch.equal(both.means, gaussians.means[inside & (opacities >= 0.5)])


def test_a_box_may_be_in_the_coordinates_of_a_map() -> None:
    gaussians = blobs(num=40)
    to_map = np.diag([100.0, 100.0, 100.0, 1.0])
    to_map[:3, 3] = [500_000.0, 4_000_000.0, 100.0]
    low, high = np.array([-0.5, -0.4, -0.6]), np.array([0.5, 0.4, 0.6])
    box = (*(100 * low + to_map[:3, 3]), *(100 * high + to_map[:3, 3]))
    inside = (gaussians.means.abs() <= torch.tensor([0.5, 0.4, 0.6])).all(dim=1)
    kept = trimmed(gaussians, Trim(crop=box), to_map)
    assert torch.equal(kept.means, gaussians.means[inside]), "bit for bit, as they were"


def test_what_makes_no_sense_is_said() -> None:
    for value in (-0.1, 1.0, float("nan")):
        with pytest.raises(ValueError, match="between 0 and 1"):
            trimmed(blobs(), Trim(value))
    with pytest.raises(ValueError, match="finite"):
        trimmed(blobs(), Trim(crop=(0, 0, 0, 1, 1, float("inf"))))
    with pytest.raises(ValueError, match="no splat is left"):
        trimmed(blobs(), Trim(crop=(90, 90, 90, 91, 91, 91)))


@pytest.mark.parametrize("name", ["export", "mesh"])
def test_what_makes_no_sense_is_one_line_before_any_work(
    name: str, tmp_path: Path, command: CommandLine
) -> None:
    for given, sentence in (
        (("--min-opacity", 5), "between 0 and 1, not 5"),
        (("--crop", 1, 2, 3, 4, 5, "nan"), "finite numbers"),
    ):
        code, told = command(name, tmp_path / "missing.ply", "-o", tmp_path / "b.ply", *given)
        assert code == 2 and sentence in told and len(told.splitlines()) == 1, told


def test_the_command_line_leaves_out(tmp_path: Path, command: CommandLine) -> None:
    model = api.Model(blobs(num=50))
    model.save(tmp_path / "a.ply")
    crop = ["--crop", "-9", "-9", "-9", "0", "9", "9"]
    arguments = (tmp_path / "a.ply", "-o", tmp_path / "b.ply", "--min-opacity", "0.2", *crop)
    code, output = command("export", *arguments)
    assert code == 0
    kept = api.load_model(tmp_path / "b.ply")
    num = int((model.gaussians.means[:, 0] <= 0).sum())
    assert len(kept) == num < 50 and float(kept.gaussians.means[:, 0].max()) <= 0
    assert f"{50 - num} splats were left out" in output
