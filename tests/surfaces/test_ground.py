"""The ground below things: the lowest large level plane, as a rectangle that others find by its name."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from splatstudio.surfaces.ground import find_ground, ground_rectangle
from splatstudio.surfaces.mesh import Mesh, face_normals

UP = np.array([0.0, 0.0, 1.0])


def square(side: float, center: tuple[float, float, float], tilt: float = 0.0, cells: int = 12) -> Mesh:
    """Return a level square that leans by `tilt` degrees, a little rough."""
    step = torch.linspace(-0.5, 0.5, cells + 1, dtype=torch.float64) * side
    points = torch.cartesian_prod(step, step)
    generator = torch.Generator().manual_seed(1)
    rough = 0.003 * side * torch.randn(len(points), generator=generator, dtype=torch.float64)
    lean = np.tan(np.radians(tilt))
    heights = points[:, :1] * lean + rough[:, None]
    vertices = torch.cat([points, heights], dim=1) + torch.tensor(center, dtype=torch.float64)
    corner = torch.tensor([[(cells + 1) * i + j] for i in range(cells) for j in range(cells)])
    one = corner + torch.tensor([0, cells + 1, 1])
    return Mesh(vertices, torch.cat([one, corner + torch.tensor([1, cells + 1, cells + 2])]))


def joined(*meshes: Mesh) -> Mesh:
    starts = np.cumsum([0, *(len(mesh.vertices) for mesh in meshes)])
    faces = [mesh.faces + int(start) for mesh, start in zip(meshes, starts, strict=False)]
    return Mesh(torch.cat([mesh.vertices for mesh in meshes]), torch.cat(faces))


def test_the_floor_is_the_ground_and_not_the_table_on_it() -> None:
    table, wall = square(2.4, (0.0, 0.0, 1.0)), square(4.0, (2.0, 0.0, 2.0), tilt=88.0)
    ground = find_ground(joined(table, square(3.0, (0.0, 0.0, -0.5), tilt=4.0), wall), UP)
    assert ground.height == pytest.approx(-0.5, abs=0.03) and ground.tilt == pytest.approx(4.0, abs=0.7)
    assert ground.share == pytest.approx(9.0 / (9.0 + 2.4**2), abs=0.05)


def test_a_stain_below_the_floor_is_not_the_ground() -> None:
    ground = find_ground(joined(square(3.0, (0.0, 0.0, 0.0)), square(0.5, (0.0, 0.0, -2.0))), UP)
    assert ground.height == pytest.approx(0.0, abs=0.03)


def test_the_rectangle_lies_below_everything_and_is_seen_from_above() -> None:
    mesh = joined(square(3.0, (1.0, 2.0, -0.5)), square(1.0, (1.0, 2.0, 0.7)))
    rectangle = ground_rectangle(mesh, find_ground(mesh, UP))
    assert rectangle.num_triangles == 2 and rectangle.name == "shadow_catcher"
    assert (face_normals(rectangle)[:, 2] > 0.99).all()
    low, high = rectangle.vertices.amin(dim=0), rectangle.vertices.amax(dim=0)
    assert torch.allclose((low + high)[:2] / 2, torch.tensor([1.0, 2.0], dtype=torch.float64), atol=0.1)
    assert ((high - low)[:2] > 2.9).all() and ((high - low)[:2] < 3.6).all()


def test_up_may_be_anywhere() -> None:
    mesh = square(3.0, (0.0, 0.0, -0.5))
    turned = Mesh(mesh.vertices[:, [0, 2, 1]] * torch.tensor([1.0, -1.0, 1.0]), mesh.faces)
    ground = find_ground(turned, np.array([0.0, -1.0, 0.0]))
    assert float(ground.normal[1]) == pytest.approx(-1.0, abs=0.01)
    assert ground.height == pytest.approx(-0.5, abs=0.03)


@pytest.mark.parametrize("mesh", [square(3.0, (0.0, 0.0, 0.0), tilt=60.0), square(0.0, (0.0, 0.0, 0.0))])
def test_without_anything_level_it_is_a_sentence(mesh: Mesh) -> None:
    with pytest.raises(ValueError, match="no ground was found: nothing level is large enough"):
        find_ground(mesh, UP)
