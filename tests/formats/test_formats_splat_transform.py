"""An independent program reads every file we write and writes files that we read, with the same values."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from format_models import Precision, assert_kept, converted, model, precision_of
from other_programs import splat_transform  # noqa: F401  (a fixture)

from splatstudio.formats import read_splats, write_gaussians
from splatstudio.formats.ply import read_ply, write_ply

# Between two readers of one file only rounding differs; .splat's bytes of rotation are centred differently.
SAME = Precision(means=1e-5, rotation=1e-5, scale=1e-4, opacity=1e-5, color=1e-5, sh=1e-5)
SAME_SPLAT = Precision(means=1e-5, rotation=0.03, scale=1e-4, opacity=0.001, color=1e-5, sh=1e-5)


@pytest.mark.parametrize(
    ("ending", "degree"),
    [(".compressed.ply", 3), (".compressed.ply", 0), (".spz", 3), (".spz", 1), (".splat", 0)],
)
def test_it_reads_what_we_write(
    tmp_path: Path,
    splat_transform: str,  # noqa: F811
    ending: str,
    degree: int,
) -> None:
    gaussians = model(600, degree)
    path = tmp_path / f"a{ending}"
    write_gaussians(path, gaussians)
    theirs = read_ply(converted(splat_transform, path, tmp_path / "theirs.ply")).gaussians
    assert theirs.sh_degree == degree
    assert_kept(theirs, gaussians, precision_of(ending, gaussians))
    assert_kept(theirs, read_splats(path).gaussians, SAME_SPLAT if ending == ".splat" else SAME)


@pytest.mark.parametrize(
    ("ending", "options"),
    [(".compressed.ply", []), (".spz", ["--spz-version", "3"]), (".spz", ["--spz-version", "4"])],
    ids=["compressed", "spz3", "spz4"],
)
def test_we_read_what_it_writes(
    tmp_path: Path,
    splat_transform: str,  # noqa: F811
    ending: str,
    options: list[str],
) -> None:
    gaussians = model(600)
    write_ply(tmp_path / "a.ply", gaussians)
    path = converted(splat_transform, tmp_path / "a.ply", tmp_path / f"theirs{ending}", *options)
    back = read_splats(path).gaussians
    assert back.sh_degree == 3
    assert_kept(back, gaussians, precision_of(ending, gaussians))
    # Theirs and ours hold the same numbers, not only numbers as close to the model.
    write_gaussians(tmp_path / f"ours{ending}", gaussians)
    ours = read_splats(tmp_path / f"ours{ending}").gaussians
    assert_kept(
        back, ours, Precision(means=0.001, rotation=1e-5, scale=1e-5, opacity=0.003, color=1e-5, sh=0.0626)
    )
    assert torch.equal(ours.scales, back.scales)
