"""Where up is in a file of splats: what its comments say is taken, kept and written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from blob_models import blobs
from command_line import CommandLine

from splatstudio.cameras.placement import Placement
from splatstudio.cli.export import export_model
from splatstudio.formats import read_splats
from splatstudio.gui.state.viewpoint import likely_up
from splatstudio.models.model import Model, load_model, own_orbit

# A frame that leans: y of the files is 30 degrees from up.
LEANING = np.array([[1.0, 0, 0, 5], [0, 0.5, -(0.75**0.5), 6], [0, 0.75**0.5, 0.5, 7], [0, 0, 0, 1]])
TELLING = ".ply", ".compressed.ply"


def with_comments(path: Path, *comments: str) -> Path:
    """Write a PLY that says no more of itself than `comments`."""
    Model(blobs()).save(path)
    start, middle, rest = path.read_bytes().partition(b"element vertex")
    path.write_bytes(start + "".join(f"comment {each}\n" for each in comments).encode() + middle + rest)
    return path


@pytest.mark.parametrize(
    ("comments", "up", "axis"),
    [
        (["Vertical Axis: z"], (0, 0, 1), "+z"),  # nerfstudio
        (["Exported from Brush", "Vertical axis: 0 -0.6 -0.8"], (0, -0.6, -0.8), "-z"),
        (["vertical axis:  3 0.1 0"], (0.999445, 0.0333148, 0), "+x"),
        (["Vertical axis: y"], None, "-y"),  # Brush, which says it of every file
        (["Vertical axis: 0 0 0"], None, "-y"),
        (["Vertical axis: nan 0 1", "vertical", "Vertical axis:"], None, "-y"),
        (["Vertical axis: inf 0 1"], None, "-y"),
        ([], None, "-y"),
    ],
)
def test_what_programs_say(
    tmp_path: Path, comments: list[str], up: tuple[float, float, float] | None, axis: str
) -> None:
    path = with_comments(tmp_path / "a.ply", *comments)
    told = read_splats(path).up
    assert told is None if up is None else told == pytest.approx(up, abs=1e-5)
    assert likely_up(path) == axis and likely_up(tmp_path) == "+z"
    model = load_model(path)
    expected = (0, -1, 0) if up is None else up
    assert model.up == pytest.approx(expected, abs=1e-5)
    heights = np.stack([camera.position for camera in own_orbit(model).cameras()]) @ model.up
    assert heights == pytest.approx(heights[0], abs=1e-3), "it circles the model level"
    assert heights[0] > blobs().means.numpy().mean(0) @ model.up


@pytest.mark.parametrize("ending", TELLING)
def test_a_model_of_a_scene_says_it_and_a_file_of_its_file_says_it_too(
    tmp_path: Path, command: CommandLine, ending: str
) -> None:
    model = Model(blobs()).in_frame(LEANING)
    assert model.known_up == pytest.approx((0, 0, 1))
    model.save(tmp_path / f"a{ending}")
    up = read_splats(tmp_path / f"a{ending}").up
    assert up == pytest.approx((0, 0.75**0.5, 0.5), abs=1e-4)
    export_model(tmp_path / f"a{ending}", tmp_path / "b.ply")
    assert read_splats(tmp_path / "b.ply").up == pytest.approx(up)
    assert likely_up(tmp_path / "b.ply") == "+y"
    silent = replace(load_model(tmp_path / "b.ply"), told_up=None)
    silent.save(tmp_path / f"c{ending}")
    assert read_splats(tmp_path / f"c{ending}").up is None


def test_upright_is_as_other_viewers_have_it(tmp_path: Path, blob_folder: Path) -> None:
    Model(blobs()).save(tmp_path / "a.ply")
    export_model(tmp_path / "a.ply", tmp_path / "b.ply", placement=Placement(upright=True, scene=blob_folder))
    assert read_splats(tmp_path / "b.ply").up == pytest.approx((0, -1, 0), abs=1e-4)
