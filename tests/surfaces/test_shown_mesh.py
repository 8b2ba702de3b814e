"""A mesh on a page: as bright as its colors, few triangles, or what is known of each place."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from glb_reading import column
from traced_shapes import SOLIDS, f_score, field_of, views_of

from splatstudio.surfaces import shown_mesh as room
from splatstudio.surfaces.extract import extract_surface
from splatstudio.surfaces.mesh import Mesh
from splatstudio.surfaces.shown_mesh import shown_mesh

BALL = extract_surface(field_of(views_of(SOLIDS["sphere"], num=5, pixels=64), 0.08))


@pytest.fixture
def colored() -> Mesh:
    """Return a sphere that is white above and black below, of which the lower half was guessed."""
    above = BALL.vertices[:, 2] > 0
    return replace(BALL, colors=above.float()[:, None].expand(-1, 3).contiguous(), num_seen=above.long() * 3)


def read(glb: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Return the vertices and colors, linear 0..1, of a .glb."""
    return column(glb, "POSITION"), column(glb, "COLOR_0")[:, :3] / 65_535


def test_it_lies_in_the_studio_and_has_its_colors(colored: Mesh) -> None:
    shown = shown_mesh(colored)
    assert shown is not None
    vertices, colors = read(shown.glb("photos"))
    assert np.allclose(vertices, colored.vertices.numpy(), atol=1e-6), "not turned to the axes of glTF"
    assert np.array_equal(colors[:, 0] > 0.5, vertices[:, 2] > 0)


def test_what_was_guessed_is_red_and_what_is_reliable_green(colored: Mesh) -> None:
    shown = shown_mesh(colored)
    assert shown is not None
    vertices, colors = read(shown.glb("reliability"))
    red, green = colors[:, 0], colors[:, 1]
    assert np.array_equal(green > red, vertices[:, 2] > 0)
    top = green[vertices[:, 2] > 0.9].mean()
    side = green[(vertices[:, 2] > 0) & (vertices[:, 2] < 0.2)].mean()
    assert top > 1.3 * side, "light from above shows the shape"


def test_large_ones_get_fewer_triangles_and_keep_colors(
    colored: Mesh, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fast_simplification")
    monkeypatch.setattr(room, "MOST_TRIANGLES", 400)
    shown = shown_mesh(colored)
    assert shown is not None and 200 < len(shown.faces) <= 400
    few = Mesh(torch.from_numpy(shown.vertices).double(), torch.from_numpy(shown.faces).long())
    assert f_score(few, SOLIDS["sphere"])[0] > 0.9
    sure = np.abs(shown.vertices[:, 2]) > 0.1
    assert np.array_equal((shown.num_seen == 3)[sure], (shown.vertices[:, 2] > 0)[sure])
    assert np.array_equal((shown.colors[:, 0] > 0.5)[sure], (shown.vertices[:, 2] > 0)[sure])
    monkeypatch.setattr(room, "can_simplify", lambda: False)
    assert shown_mesh(colored) is None, "a browser is not sent millions"
