"""Lists of many chunks, splats of many tiles, and pictures from which nobody goes back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from emulated_kernels import native
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from splatstudio.kernels import ops, reference
from splatstudio.kernels.ops_training import rasterize_for
from splatstudio.kernels.stages import Projected, Raster, RasterSettings

NUM, SIDE = 700, 24
LARGE = 2048  # px, a side from which on chunks are of 256 instead of 128
PLACES = ("means2d", "conics", "depths", "opacities", "colors")


def small_splats() -> Projected:
    """Return splats on a few tiles, so faint that most pixels see hundreds, and a few that end pixels."""
    random = torch.Generator().manual_seed(2)
    opacities = 0.004 + 0.03 * torch.rand(NUM, generator=random)
    opacities[::50] = 0.9
    return Projected(
        means2d=SIDE * torch.rand(NUM, 2, generator=random),
        conics=torch.tensor([[0.02, 0.003, 0.03]]) * (0.5 + torch.rand(NUM, 1, generator=random)),
        depths=1.0 + torch.rand(NUM, generator=random),
        opacities=opacities,
        colors=torch.rand(NUM, 3, generator=random),
        radii=torch.full((NUM, 2), 40, dtype=torch.int32),
    )


def wide_splats() -> Projected:
    """Return splats that cover many more tiles than a thread adds up alone, beside some that do not."""
    splats = small_splats()
    conics = splats.conics.clone()
    conics[::7] *= 0.01
    radii = splats.radii.clone()
    radii[::7] = 400
    return replace(splats, means2d=4.0 * splats.means2d, conics=conics, radii=radii)


def gradients(
    raster: Any,
    splats: Projected,
    side: int,
    *,
    depth: bool,
    dtype: torch.dtype = torch.float32,
    room: int | None = None,
    part: int | None = None,
) -> list[Tensor]:
    """Return picture and gradients of a loss of all that is drawn, or of `part` px in the corner."""
    leaves = {name: getattr(splats, name).to(dtype).requires_grad_() for name in PLACES}
    background = torch.full((3,), 0.3, dtype=dtype)
    drawn: Raster = raster(replace(splats, **leaves), RasterSettings(side, side, background, room=room))
    random = torch.Generator().manual_seed(9)
    pictures = [picture[:part, :part] for picture in (drawn.rgb, drawn.alpha, drawn.depth_sum)]
    weights = [torch.rand(picture.shape, generator=random).to(dtype) - 0.5 for picture in pictures]
    loss = (pictures[0] * weights[0]).sum() + (pictures[1] * weights[1]).sum()
    if depth:
        loss = loss + (pictures[2] * weights[2]).sum()
    return [pictures[0].detach(), *torch.autograd.grad(loss, list(leaves.values()))]


@pytest.mark.parametrize("depth", [False, True])
@pytest.mark.parametrize("seed", [-1, 3])
def test_gradients_go_through_all_chunks_of_a_list(depth: bool, seed: int) -> None:
    splats = small_splats()
    lists = native.bin(*(getattr(splats, name) for name in (*PLACES, "radii")), SIDE, SIDE, 1)
    assert int(lists[3].diff().max()) > 3 * 128
    native.set_order_seed(seed)
    ours = gradients(ops.rasterize, splats, SIDE, depth=depth)
    native.set_order_seed(-1)
    theirs = gradients(reference.rasterize, splats, SIDE, depth=depth, dtype=torch.float64)
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine - other).norm()) <= 1e-3 * float(other.norm())


@pytest.mark.parametrize("depth", [False, True])
def test_chunks_of_a_large_picture_are_longer_and_say_the_same(depth: bool) -> None:
    splats, background = small_splats(), torch.zeros(3)
    expected = gradients(ops.rasterize, splats, SIDE, depth=depth)
    ours = gradients(ops.rasterize, splats, LARGE, depth=depth, part=SIDE)
    assert torch.equal(ours[0], expected[0])
    for mine, other in zip(ours[1:], expected[1:], strict=True):
        assert float((mine - other).norm()) <= 1e-4 * float(other.norm())
    # To the bit, whatever the room.
    roomy = gradients(ops.rasterize, splats, LARGE, depth=depth, part=SIDE, room=2**20)
    for mine, other in zip(roomy, ours, strict=True):
        assert torch.equal(mine, other)
    for side, bytes_each in [(LARGE - 16, 40), (LARGE, 20)]:
        lists = native.bin(*(getattr(splats, name) for name in (*PLACES, "radii")), side, side, 1)
        states = native.raster_fwd(*lists, background, side, side, 0.999, 1)[3]
        assert 0 < 4 * states.numel() - bytes_each * len(lists[4]) <= 5 * 256 * 4


def test_a_splat_of_many_tiles_gets_the_gradient_of_all() -> None:
    splats, side = wide_splats(), 4 * SIDE
    lists = native.bin(*(getattr(splats, name) for name in (*PLACES, "radii")), side, side, 1)
    tiles = lists[2].diff()
    assert int((tiles > 32).sum()) > 20 and int(((tiles > 0) & (tiles <= 32)).sum()) > 20
    ours = gradients(ops.rasterize, splats, side, depth=True)
    theirs = gradients(reference.rasterize, splats, side, depth=True, dtype=torch.float64)
    for mine, other in zip(ours, theirs, strict=True):
        assert float((mine - other).norm()) <= 1e-3 * float(other.norm())


@pytest.mark.parametrize("absgrad", [False, True])
def test_a_step_has_the_same_gradients_where_its_checkpoints_were(
    absgrad: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    splats, settings = small_splats(), RasterSettings(SIDE, SIDE, torch.full((3,), 0.3))
    passing: list[StorageWeakRef] = []  # lists by tile, checkpoints and ends

    class Watched:
        def __getattr__(self, name: str) -> Any:
            def call(*given: Any) -> Any:
                if name == "raster_slab":
                    passing.extend(StorageWeakRef(one.untyped_storage()) for one in given[3:8])
                assert name != "gather_slab" or all(one.expired() for one in passing)
                return getattr(native, name)(*given)

            return call

    monkeypatch.setattr(ops, "_native", Watched)
    found = []
    for once in (False, True):
        leaves = {name: getattr(splats, name).clone().requires_grad_() for name in PLACES}
        leaf, probe = replace(splats, **leaves), torch.zeros(NUM, 2, requires_grad=True)
        if once:
            drawn = rasterize_for(leaf, splats, settings, probe, absgrad=absgrad)
        else:
            drawn = (ops.rasterize_absgrad if absgrad else ops.rasterize)(leaf, settings, probe)
        loss = drawn.rgb.square().sum() + drawn.alpha.sum()
        found.append([drawn.rgb, *torch.autograd.grad(loss, [*leaves.values(), probe])])
    assert len(passing) == 5
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_rows_that_light_does_not_reach_are_neither_written_nor_read(monkeypatch: pytest.MonkeyPatch) -> None:
    splats = small_splats()
    wall = torch.arange(NUM) < 8  # opaque, before all others, over the whole picture
    splats = replace(
        splats,
        depths=torch.where(wall, 0.5, splats.depths),
        opacities=torch.where(wall, 0.99, splats.opacities),
        conics=torch.where(wall[:, None], torch.tensor([[1e-6, 0.0, 1e-6]]), splats.conics),
        radii=torch.where(wall[:, None], 4000, splats.radii).int(),
    )
    marks: list[int] = []

    class Spoiled:
        def __getattr__(self, name: str) -> Any:
            def call(*given: Any) -> Any:
                if name == "gather_slab":
                    slab = given[3]
                    rows, ninth = slab.view(-1)[: 8 * len(slab)].view(-1, 8), slab.view(-1)[8 * len(slab) :]
                    marked = ninth.view(torch.int32) == 0xFFFFDEAD - 2**32
                    rows[marked] = torch.nan
                    marks.extend([int(marked.sum()), len(slab)])
                return getattr(native, name)(*given)

            return call

    monkeypatch.setattr(ops, "_native", Spoiled)
    leaves = {name: getattr(splats, name).clone().requires_grad_() for name in PLACES}
    settings = RasterSettings(SIDE, SIDE, torch.full((3,), 0.3))
    drawn = rasterize_for(replace(splats, **leaves), splats, settings, torch.zeros(NUM, 2))
    found = torch.autograd.grad(
        drawn.rgb.square().sum(), [leaves[name] for name in PLACES if name != "depths"]
    )
    hidden, num_rows = marks
    assert 0.9 * num_rows < hidden < num_rows
    assert all(torch.isfinite(one).all() and (one[~wall] == 0).all() for one in found)
    assert all(one[wall].any() for one in found)


def test_a_picture_without_gradients_is_the_same_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    splats, settings = small_splats(), RasterSettings(SIDE, SIDE, torch.full((3,), 0.3))
    leaf = replace(splats, colors=splats.colors.clone().requires_grad_())
    expected = ops.rasterize(leaf, settings)
    assert expected.rgb.requires_grad

    class WithoutWayBack:
        def __getattr__(self, name: str) -> Any:
            assert name != "raster_fwd", "a picture from which nobody goes back has no use for checkpoints"
            return getattr(native, name)

    monkeypatch.setattr(ops, "_native", WithoutWayBack)
    with torch.no_grad():
        pictures = [ops.rasterize(leaf, settings)]
    pictures.append(ops.rasterize(splats, replace(settings, room=20_000)))
    for picture in pictures:
        assert picture.num_instances is not None and expected.num_instances is not None
        assert int(picture.num_instances) == int(expected.num_instances)
        assert not picture.rgb.requires_grad
        for name in ("rgb", "alpha", "depth_sum"):
            assert torch.equal(getattr(picture, name), getattr(expected, name))
