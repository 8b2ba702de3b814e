"""Where up is in a file of splats: what its comments say is taken, kept and written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from blob_models import blobs
from command_line import CommandLine

from splatstudio.cameras.placement import Placement
from splatstudio.cli.export import export_model
from splatstudio.formats import read_splats
from splatstudio.gui.state.viewpoint import likely_up
from splatstudio.models.model import Model, load_model, own_orbit
from splatstudio.scene.ply_header import UNSAID
from splatstudio.scene.scene import Scene

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
        (["Vertical axis: nan 0 0", "Vertical axis: z"], (0, 0, 1), "+z"),
        ([], None, "-y"),
    ],
)
def test_what_programs_say(
    tmp_path: Path, comments: list[str], up: tuple[float, float, float] | None, axis: str
) -> None:
    path = with_comments(tmp_path / "a.ply", *comments)
    told = read_splats(path).orientation.up
    assert told is None if up is None else told == pytest.approx(up, abs=1e-5)
    assert likely_up(path) == (axis, told) and likely_up(tmp_path) == ("+z", None)
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
    up = read_splats(tmp_path / f"a{ending}").orientation.up
    assert up == pytest.approx((0, 0.75**0.5, 0.5), abs=1e-4)
    export_model(tmp_path / f"a{ending}", tmp_path / "b.ply")
    assert read_splats(tmp_path / "b.ply").orientation.up == pytest.approx(up)
    assert likely_up(tmp_path / "b.ply")[0] == "+y"
    silent = replace(load_model(tmp_path / "b.ply"), orientation=UNSAID)
    silent.save(tmp_path / f"c{ending}")
    assert read_splats(tmp_path / f"c{ending}").orientation.up is None


@pytest.mark.parametrize("ending", TELLING)
def test_what_was_turned_upright_is_turned_back_for_its_scene(
    tmp_path: Path, blob_scene: Scene, ending: str
) -> None:
    Model(blobs()).save(tmp_path / "a.ply")
    place = Placement(upright=True, scene=blob_scene.path)
    export_model(tmp_path / "a.ply", tmp_path / f"b{ending}", placement=place)
    file = read_splats(tmp_path / f"b{ending}")
    assert file.orientation.up == pytest.approx((0, -1, 0), abs=1e-4) and file.orientation.upright
    upright, own = load_model(tmp_path / f"b{ending}"), load_model(tmp_path / "a.ply")
    assert upright.in_frame_of(blob_scene).options == own.in_frame_of(blob_scene).options
    there, here = (model.in_frame(blob_scene.transform).gaussians.means for model in (upright, own))
    order = [means.norm(dim=1).argsort() for means in (there, here)]
    torch.testing.assert_close(there[order[0]], here[order[1]], atol=2e-3, rtol=0)
    upright.save(tmp_path / "c.ply")
    assert read_splats(tmp_path / "c.ply").orientation.upright, "as it lies"
    upright.in_frame_of(blob_scene).save(tmp_path / "d.ply")
    assert not read_splats(tmp_path / "d.ply").orientation.upright
