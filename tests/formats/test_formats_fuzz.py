"""Hypothesis damages whole files of every kind, and writes models of any kind where none is read back.

The examples are few and the same in every run; `pytest --hypothesis-profile=long` with this file
tries thousands of others (see `pytest_configure` in conftest.py).
"""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import torch
from format_models import close, model
from hypothesis import given
from hypothesis import strategies as st
from test_formats_damage import NAMES, valid_files
from test_formats_round_trip import KINDS, Kind
from test_formats_write_only import EXTENSION, check_points, parsed_glb
from test_viewer_page import recorded

from splatstudio.formats import read_splats, write_gaussians
from splatstudio.formats.viewer_page import PAGE_SIZE
from splatstudio.gaussians.gaussians import central_bounds
from splatstudio.gaussians.transform import transformed

EXTREMES = [0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**64 - 1]
PLACE = st.floats(0.0, 1.0, exclude_max=True)  # of the file's length
CHANGES = st.one_of(
    st.tuples(st.just("cut"), PLACE, st.just(0)),
    st.tuples(st.just("byte"), PLACE, st.integers(0, 255)),
    st.tuples(st.just("bit"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("word"), PLACE, st.sampled_from(EXTREMES)),
    st.tuples(st.just("long"), PLACE, st.sampled_from(EXTREMES)),
    st.tuples(st.just("insert"), PLACE, st.integers(0, 255)),
    st.tuples(st.just("leave out"), PLACE, st.integers(1, 64)),
    st.tuples(st.just("twice"), PLACE, st.integers(1, 64)),
    st.tuples(st.just("digit"), PLACE, st.integers(0, 9)),
)
Change = tuple[str, float, int]


def damaged(content: bytes, change: Change) -> bytes:
    """Return a file with one change, most often where a number or a structure is."""
    kind, place, value = change
    # The structure is at the ends: half of all places are in the first and last hundred bytes.
    spots = [*range(min(100, len(content))), *range(max(0, len(content) - 100), len(content))]
    at = spots[int(place * 2 * len(spots))] if place < 0.5 else int((place - 0.5) * 2 * len(content))
    if kind == "cut":
        return content[:at]
    if kind == "insert":
        return content[:at] + bytes([value]) + content[at:]
    if kind == "leave out":
        return content[:at] + content[at + value :]
    if kind == "twice":
        return content[: at + value] + content[at:]
    if kind == "digit":
        digits = [i for i, byte in enumerate(content[:2000]) if chr(byte).isdigit()]
        at = digits[int(place * len(digits))] if digits else at
        return content[:at] + str(value).encode() + content[at + 1 :]
    if kind in ("word", "long"):
        size = 4 if kind == "word" else 8
        number = (value % 2 ** (8 * size)).to_bytes(size, "little")
        return (content[:at] + number + content[at + size :])[: max(len(content), at + size)]
    byte = content[at] ^ (1 << value) if kind == "bit" else value
    return content[:at] + bytes([byte]) + content[at + 1 :]


@pytest.fixture(scope="module")
def whole_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("whole")
    files = valid_files(folder)
    write_gaussians(folder / "many.compressed.ply", model(300, 3))
    return files | {"many.compressed.ply": (folder / "many.compressed.ply").read_bytes()}


@pytest.mark.parametrize("name", [*NAMES, "many.compressed.ply"])
def test_any_damage_gives_a_finite_model_or_a_sentence_in_bounded_memory(
    whole_files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    path = tmp_path_factory.mktemp("damaged") / name
    whole = whole_files[name]

    @given(changes=st.lists(CHANGES, min_size=1, max_size=3))
    def check(changes: list[Change]) -> None:
        content = whole
        for change in changes:
            content = damaged(content, change) or b"\0"
        path.write_bytes(content)
        tracemalloc.start()
        try:
            gaussians = read_splats(path).gaussians
        except ValueError as error:
            assert str(path) in str(error) and "\n" not in str(error) and len(str(error)) < 500
        else:
            assert 0 < len(gaussians) < 10_000
            assert all(tensor.isfinite().all() for tensor in gaussians.tensors().values())
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        assert peak < 50e6

    check()


@given(kind=KINDS)
def test_a_glb_of_any_model(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> None:
    gaussians = kind.model()
    path = tmp_path_factory.mktemp("any") / "a.glb"
    write_gaussians(path, gaussians)
    _, columns = parsed_glb(path)
    expected = transformed(gaussians, np.diag([-1.0, -1.0, 1.0, 1.0]))
    tensors = {name: torch.from_numpy(column.astype(np.float32)) for name, column in columns.items()}
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert torch.equal(tensors["POSITION"], gaussians.means * torch.tensor([-1.0, -1.0, 1.0]))
    close(tensors[f"{EXTENSION}:ROTATION"].norm(dim=1), torch.ones(len(gaussians)), 1e-5)
    sizes, largest = tensors[f"{EXTENSION}:SCALE"], gaussians.scales.clamp(max=88.0).exp()
    torch.testing.assert_close(sizes, largest, rtol=1e-5, atol=0.0)
    close(tensors[f"{EXTENSION}:OPACITY"][:, 0], gaussians.opacities.sigmoid(), 1e-6)
    names = [
        f"{EXTENSION}:SH_DEGREE_{d}_COEF_{n}" for d in range(1, kind.degree + 1) for n in range(2 * d + 1)
    ]
    found = torch.stack([tensors[name] for name in names], dim=1) if names else expected.shN
    torch.testing.assert_close(found, expected.shN, rtol=1e-5, atol=1e-5)


@given(kind=KINDS)
def test_points_of_any_model(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> None:
    check_points(tmp_path_factory.mktemp("any") / "a.points.ply", kind.model())


@given(kind=KINDS)
def test_a_page_of_any_model(tmp_path_factory: pytest.TempPathFactory, kind: Kind) -> None:
    gaussians = kind.model()
    path = tmp_path_factory.mktemp("any") / "a.html"
    write_gaussians(path, gaussians)
    rows = np.frombuffer(recorded(path)["GaussianSplatsMessage"]["buffer"], np.uint8).reshape(-1, 32)
    means = rows[:, :12].copy().view(np.float32)
    assert np.isfinite(means).all() and np.isfinite(rows[:, 16:28].copy().view(np.float16)).all()
    # z is up where y was down, and the scene is as large as a page wants it.
    _, radius = central_bounds(gaussians)
    x, y, z = gaussians.means.double().numpy().T * PAGE_SIZE / radius
    expected = np.stack([x, z, -y], axis=1)
    np.testing.assert_allclose(means, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    assert np.abs(rows[:, 31] - 255 * gaussians.opacities.sigmoid().numpy()).max() < 0.51
