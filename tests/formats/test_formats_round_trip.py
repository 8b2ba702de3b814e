"""Every format that is written and read: each keeps what it says it keeps, of any model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from format_models import Precision, assert_kept, model, precision_of
from hypothesis import given
from hypothesis import strategies as st

from splatstudio.formats import FORMATS, format_to_write, read_splats, write_gaussians
from splatstudio.gaussians.gaussians import Gaussians

BOTH_WAYS = [form.endings[0] for form in FORMATS if form.read and form.write]
EXACT = [ending for ending in BOTH_WAYS if not format_to_write(f"a{ending}").loses]
COMPACT = [ending for ending in BOTH_WAYS if ending not in EXACT]


@pytest.mark.parametrize("ending", BOTH_WAYS)
@pytest.mark.parametrize("degree", [0, 1, 2, 3])
@pytest.mark.parametrize("num", [1, 2, 255, 256, 257, 1000])
def test_there_and_back(tmp_path: Path, ending: str, degree: int, num: int) -> None:
    gaussians = model(num, degree, seed=num + degree)
    path = tmp_path / f"a{ending}"
    write_gaussians(path, gaussians)
    back = read_splats(path).gaussians
    precision = precision_of(ending, gaussians)
    assert_kept(back, gaussians, precision)
    assert back.sh_degree == (0 if precision.sh is None else degree)
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("ending", COMPACT)
def test_a_second_trip_loses_nothing_more(tmp_path: Path, ending: str) -> None:
    """What was read is written as the same numbers again, so that copies do not fade."""
    write_gaussians(tmp_path / f"a{ending}", model(700))
    first = read_splats(tmp_path / f"a{ending}").gaussians
    write_gaussians(tmp_path / f"b{ending}", first)
    # A rotation in .splat has a length, which is lost; one in .sog may round to another largest component.
    rotation = 0.012 if ending in (".splat", ".sog") else 0.003
    again = Precision(means=1e-5, rotation=rotation, scale=1e-4, opacity=1e-5, color=1e-4, sh=1e-5)
    assert_kept(read_splats(tmp_path / f"b{ending}").gaussians, first, again)


@dataclass(frozen=True)
class Kind:
    """What a model is like."""

    num: int
    degree: int
    seed: int
    extent: float
    offset: float  # of the extent
    opacity: float  # factors of what `model` makes
    scale: float
    sh: float
    length: float  # of the quaternions, about

    def model(self) -> Gaussians:
        extent = 10**self.extent
        gaussians = model(self.num, self.degree, seed=self.seed, extent=extent, offset=self.offset * extent)
        gaussians.opacities.mul_(self.opacity)
        gaussians.scales.mul_(self.scale)
        gaussians.shN.mul_(self.sh)
        gaussians.quats.mul_(self.length)
        return gaussians


KINDS = st.builds(
    Kind,
    num=st.integers(1, 400),
    degree=st.integers(0, 3),
    seed=st.integers(0, 2**32 - 1),
    extent=st.floats(-3, 5),
    offset=st.floats(-3, 3),
    opacity=st.floats(0, 200),
    scale=st.floats(0, 10),
    sh=st.floats(0, 30),
    length=st.sampled_from([0.0, 1e-30, 1e-3, 1.0, 1e3, 1e30]),
)


@given(ending=st.sampled_from(BOTH_WAYS), kind=KINDS)
def test_models_of_any_kind(tmp_path_factory: pytest.TempPathFactory, ending: str, kind: Kind) -> None:
    """Huge and tiny scenes, certain and invisible Gaussians, needles, glaring colours, odd quaternions."""
    gaussians = kind.model()
    path = tmp_path_factory.mktemp("any") / f"a{ending}"
    write_gaussians(path, gaussians)
    back = read_splats(path).gaussians
    if ending in EXACT:
        for name, tensor in back.tensors().items():
            assert torch.equal(tensor, gaussians.tensors()[name]), name
        return
    # Unit quaternions are stored; what has no direction becomes the identity.
    gaussians.quats[:] = torch.nn.functional.normalize(gaussians.quats.double(), dim=1, eps=1e-300)
    gaussians.quats[gaussians.quats.norm(dim=1) == 0, 0] = 1.0
    assert_kept(back, gaussians, precision_of(ending, gaussians))
