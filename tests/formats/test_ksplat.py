""".ksplat: the three levels, buckets, spherical harmonics, and files that lie."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from format_models import close, converted, model
from models_of_programs import LIMIT, write_ksplat
from other_programs import splat_transform  # noqa: F401  (a fixture)

from splatstudio.formats import read_splats
from splatstudio.formats.ply import read_ply
from splatstudio.gaussians.gaussians import SH_C0, Gaussians
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import rotation_matrices


def splats(num: int, degree: int, seed: int = 0) -> Gaussians:
    made = model(num, degree, seed=seed, extent=1.0)
    made.sh0.clamp_(-1.7, 1.7)
    return made


def check(read: Gaussians, expected: Gaussians, level: int) -> None:
    close(read.means, expected.means, 1e-6 if level == 0 else 1e-4)
    close(read.scales, expected.scales, 1e-5 if level == 0 else 1e-3)
    close(rotation_matrices(read.quats), rotation_matrices(expected.quats), 1e-5 if level == 0 else 2e-3)
    close(read.opacities.sigmoid(), expected.opacities.sigmoid(), 0.003)
    close(SH_C0 * read.sh0, SH_C0 * expected.sh0, 0.003)
    close(
        read.shN,
        expected.shN.clamp(-LIMIT, LIMIT) if level == 2 else expected.shN,
        (1e-6, 1e-3, 0.004)[level],
    )


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
def test_every_level_and_degree_is_read(tmp_path: Path, level: int, degree: int) -> None:
    expected = splats(40, degree)
    read = read_splats(write_ksplat(tmp_path / "a.ksplat", [expected], level))
    assert read.sh_degree == degree
    check(read.gaussians, expected, level)


def test_sections_of_several_degrees_are_joined(tmp_path: Path) -> None:
    first, second = splats(21, 0), splats(5, 2, seed=1)
    read = read_splats(write_ksplat(tmp_path / "a.ksplat", [first, second], 1)).gaussians
    assert len(read) == 26 and not read.shN[:21].any()
    check(read[torch.arange(21, 26)], second, 1)
    close(read.means[:21], first.means, 1e-4)


def test_another_program_reads_the_same(tmp_path: Path, splat_transform: str) -> None:  # noqa: F811
    path = write_ksplat(tmp_path / "a.ksplat", [splats(40, 2)], 2)
    theirs = read_ply(converted(splat_transform, path, tmp_path / "theirs.ply")).gaussians
    ours = read_splats(path).gaussians
    turns = [np.eye(4), np.diag([-1.0, -1.0, 1.0, 1.0])]
    theirs = min(
        (transformed(theirs, turn) for turn in turns), key=lambda t: (t.means - ours.means).abs().max()
    )
    check(theirs, ours, 0)


def cut(content: bytearray) -> None:
    del content[-1]


def put(at: int, layout: str, value: float) -> Callable[[bytearray], object]:
    def change(content: bytearray) -> None:
        struct.pack_into(layout, content, at, value)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (cut, "is cut off: it has"),
        (
            lambda content: content.__delitem__(slice(5000, None)),
            "is no .ksplat file of version 0.1, or is cut off",
        ),
        (put(1, "<B", 0), "is no .ksplat file of version 0.1"),
        (put(4, "<I", 2**31), "ends before its 2147483648 sections"),
        (put(16, "<I", 41), "sections do not hold the 41 splats"),
        (put(20, "<H", 3), "of level 3; 0, 1 and 2 can be read"),
        (put(4096 + 8, "<I", 6), "buckets do not hold its 40 splats"),
        (put(4096 + 12, "<I", 5), "buckets do not hold its 40 splats"),
        (put(4096 + 32, "<I", 2**31), "buckets do not hold its 40 splats"),
        (put(4096 + 40, "<H", 4), "harmonics of degree 4"),
    ],
)
def test_files_that_lie(tmp_path: Path, change: Callable[[bytearray], object], message: str) -> None:
    path = write_ksplat(tmp_path / "a.ksplat", [splats(40, 1)], 1)
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as told:
        read_splats(path)
    assert str(path) in str(told.value)
