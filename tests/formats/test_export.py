"""Models leave and come back in every format: by the Python interface and by the command export."""

from __future__ import annotations

import gzip
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from command_line import CommandLine
from format_models import assert_kept, model, precision_of
from scipy.spatial.transform import Rotation

from splatstudio.cameras.placement import Z_UP_TO_Y_DOWN
from splatstudio.cli.export import export_model
from splatstudio.formats import FORMATS, Format, format_of, format_to_write, read_splats
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.gaussians.transform import transformed
from splatstudio.gaussians.trimming import Trim
from splatstudio.models.exporter import ExportRequest, write_model
from splatstudio.models.model import Model, load_model
from splatstudio.optimization.losses import psnr
from splatstudio.rendering.render import RenderOptions, render
from splatstudio.scene.load import load_scene

SHARED = Path(__file__).parents[3] / "shared"
PLY = SHARED / "bench" / "banana_114k.ply"
BANANA = SHARED / "scenes" / "banana"
BOTH_WAYS = [form.endings[0] for form in FORMATS if form.read and form.write]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.ply", "PLY"),
        ("A.PLY", "PLY"),
        ("a.compressed.ply", "Compressed PLY"),
        ("a.points.ply", "Point cloud"),
        ("a.b.spz", "SPZ"),
        ("chkpnt30000.pth", "original trainer's checkpoint"),
        ("ckpt_29999_rank0.pt", "gsplat checkpoint"),
        ("a.plyx", None),
        ("ply", None),
    ],
)
def test_a_name_says_its_format(name: str, expected: str | None) -> None:
    form = format_of(name)
    assert (form.name if form else None) == expected


def test_what_cannot_be_written_is_refused_with_what_can() -> None:
    for name in ("a.obj", "a", "a.pth"):
        with pytest.raises(ValueError, match=r"must end in one of \.ply, \.compressed\.ply, .*\.points\.ply"):
            format_to_write(name)


def test_a_lying_name_does_not_matter_where_the_content_tells(tmp_path: Path) -> None:
    for ending in BOTH_WAYS:
        if ending == ".splat":
            continue  # its content has no mark
        Model(model(30)).save(tmp_path / f"a{ending}")
        (tmp_path / f"a{ending}").rename(tmp_path / "a.download")
        assert len(read_splats(tmp_path / "a.download")) == 30


def test_a_file_without_a_mark_may_begin_as_another_kind(tmp_path: Path) -> None:
    path = Model(model(30)).save(tmp_path / "a.splat")
    content = path.read_bytes()
    path.write_bytes(b"\x1f\x8b\x00\x3f" + content[4:])  # a number, and the first bytes of gzip
    assert len(read_splats(path)) == 30


FAR_AWAY = np.array([[0.5, 0, 0, 100.0], [0, 0.5, 0, -2e6], [0, 0, 0.5, 50.0], [0, 0, 0, 1]])  # of a map


@pytest.mark.parametrize("form", [form for form in FORMATS if form.write], ids=lambda form: form.name)
def test_a_model_on_a_map_stands_upright_in_all_its_detail(tmp_path: Path, form: Format) -> None:
    there = Model(model(60), FAR_AWAY)
    request = ExportRequest(
        trim=Trim(0.001, (-1e9, -1e9, -1e9, 1e9, 1e9, 1e9)), box_in_files=True, upright=True
    )
    exported = write_model(there, tmp_path / f"a{form.endings[0]}", request)
    assert exported.num_left_out == 0 and not any("in steps of" in note for note in exported.notes)
    if form.read is not None:
        means = read_splats(exported.output).gaussians.means
        turned = transformed(there.gaussians, Z_UP_TO_Y_DOWN).means
        away = torch.cdist(turned, means).min(dim=1).values
        assert float(away.max()) < 0.01, "not by the steps of the coordinates on the map, 0.25"


def test_coordinates_that_are_too_large_for_the_details_are_told(tmp_path: Path) -> None:
    there = Model(model(60), FAR_AWAY)
    for ending in (".ply", ".sog", ".pt"):
        (note,) = write_model(there, tmp_path / f"a{ending}").notes
        assert re.fullmatch(
            r"The coordinates are as large as (3,999|4,000),\d+, which files keep in steps of 0\.25, and a"
            r" splat has a size of [\d.]+:"
            r" with --upright \(in the studio: Align upright\) no detail is lost\.",
            note,
        )
    alone = Model(transformed(model(60), np.linalg.inv(FAR_AWAY)))
    assert write_model(alone, tmp_path / "a.ply").notes == (), "it lost that before it was opened"
    # Nobody sees a page's coordinates.
    assert write_model(there, tmp_path / "a.html").notes == ()
    assert write_model(Model(model(60), np.diag([0.5] * 3 + [1.0])), tmp_path / "a.ply").notes == ()


@pytest.mark.parametrize("factor", [1e-5, 1e5])
def test_spz_tells_of_sizes_for_which_it_has_no_number(tmp_path: Path, factor: float) -> None:
    units = transformed(model(60), np.diag([factor] * 3 + [1.0]))
    (note,) = write_model(Model(units), tmp_path / "a.spz").notes
    assert "splats are thinner than 5e-05" in note or "splats are larger than 379" in note
    assert write_model(Model(units), tmp_path / "a.ply").notes == ()


def test_a_few_splats_far_away_do_not_make_spz_coarse(tmp_path: Path) -> None:
    near = model(400)
    means = near.means.clone()
    means[:4] = torch.tensor([[9e4, 0, 0], [0, -5e4, 1e3], [7e4, 7e4, 7e4], [-3e3, 4e4, 0]])
    write_model(Model(replace(near, means=means)), tmp_path / "a.spz")
    read = read_splats(tmp_path / "a.spz").gaussians
    step = 2.0 ** -read_bits(tmp_path / "a.spz")
    assert step < 1e-3 and float((read.means - means)[4:].abs().max()) <= 0.51 * step
    # From the middle of the others these look the same: in the same direction, and as large.
    middle = means.median(dim=0).values
    before, after = means[:4] - middle, read.means[:4] - middle
    torch.testing.assert_close(
        after / after.norm(dim=1, keepdim=True), before / before.norm(dim=1, keepdim=True), atol=3e-4, rtol=0
    )
    nearer = (after.norm(dim=1) / before.norm(dim=1)).log()
    assert bool((nearer < -1.0).all())
    expected = near.scales[:4] + nearer[:, None]
    assert float((read.scales[:4] - expected).abs().max()) <= 0.51 / 16.0


@pytest.mark.parametrize("place", [-1.99999964, 2.0 - 2.0**-23, 511.9999, 8_000_000.0])
def test_spz_places_what_lies_at_the_edge_of_its_numbers(tmp_path: Path, place: float) -> None:
    one = model(1)
    one = replace(one, means=torch.full((1, 3), place))
    write_model(Model(one), tmp_path / "a.spz")
    read = read_splats(tmp_path / "a.spz").gaussians
    assert float((read.means - place).abs().max()) <= 2.0 ** -read_bits(tmp_path / "a.spz")


def test_spz_tells_where_many_lie_too_far_out(tmp_path: Path) -> None:
    means = 0.001 * model(1000).means
    means[:50] *= 5e3
    (note,) = (
        n
        for n in write_model(Model(replace(model(1000), means=means)), tmp_path / "a.spz").notes
        if "far" in n
    )
    assert "lie too far out for SPZ: they are written nearer, and smaller" in note


def read_bits(path: Path) -> int:
    """Return how many bits of a coordinate lie behind the point."""
    return gzip.decompress(path.read_bytes())[13]


def test_a_background_that_no_file_holds_is_told(tmp_path: Path) -> None:
    white = Model(model(60), options=RenderOptions(background=(1.0, 1.0, 0.5)))
    (note,) = write_model(white, tmp_path / "a.ply").notes
    assert "a background of the color (1, 1, 0.5), which no file of splats holds" in note
    assert write_model(white, tmp_path / "a.html").notes == (), "a page has it"


def test_a_few_splats_far_away_are_not_where_the_model_lies(tmp_path: Path) -> None:
    means = model(400).means.clone()
    means[:4] = 3e5
    assert write_model(Model(replace(model(400), means=means)), tmp_path / "a.ply").notes == ()


@pytest.mark.parametrize("ending", BOTH_WAYS)
def test_a_model_is_saved_in_the_scene_s_own_coordinates(tmp_path: Path, ending: str) -> None:
    """Not those of the training, which are moved, turned and scaled."""
    gaussians = model(400)
    transform = np.eye(4)
    transform[:3, :3] = 0.25 * Rotation.from_rotvec([0.3, -0.8, 0.5]).as_matrix()
    transform[:3, 3] = 0.1, 0.2, -0.3
    path = Model(gaussians, transform, step=1234).save(tmp_path / f"a{ending}")
    expected = transformed(gaussians, np.linalg.inv(transform))
    assert_kept(load_model(path).gaussians, expected, precision_of(ending, expected))
    if ending == ".pt":
        assert torch.load(path, weights_only=True)["step"] == 1234


@pytest.mark.parametrize("form", [form for form in FORMATS if form.write], ids=lambda form: form.name)
@pytest.mark.parametrize("degree", [0, 3])
def test_the_estimated_size_is_about_right(tmp_path: Path, form, degree: int) -> None:
    path = tmp_path / f"a{form.endings[0]}"
    Model(model(20_000, degree)).save(path)
    actual, estimated = path.stat().st_size, form.estimated_bytes(20_000, degree)
    # Random models shrink less than trained ones; a palette of SH pays only for many more Gaussians.
    most = {"SPZ": 1.3, "Web page": 1.4, "SOG": 1.9 if degree == 0 else 5.0}.get(form.name, 1.05)
    assert 0.95 < actual / estimated < most


def test_the_command_export(tmp_path: Path, command: CommandLine) -> None:
    write_ply(tmp_path / "a.ply", model(123, 1))
    for form in FORMATS:
        if form.write is None:
            continue
        output = tmp_path / f"b{form.endings[0]}"
        code, printed = command("export", tmp_path / "a.ply", "-o", output)
        assert code == 0 and f"123 splats written to {output} as {form.name} (" in printed
        assert ("Not everything is kept" in printed) == bool(form.loses)
        if form.read:
            back = tmp_path / f"back{form.endings[0]}.ply"
            assert command("export", output, "-o", back)[0] == 0
            assert_kept(read_ply(back).gaussians, model(123, 1), precision_of(form.endings[0], model(123, 1)))
    code, printed = command("export", tmp_path / "a.ply", "-o", tmp_path / "a.fbx")
    assert code == 2 and re.search(r"cannot write a\.fbx: its name must end in one of", printed)
    code, printed = command("export", tmp_path / "missing.spz", "-o", tmp_path / "c.ply")
    assert code == 2 and "missing.spz cannot be read" in printed


@pytest.mark.parametrize("degree", [0, 2])
def test_the_size_is_told_before_a_file_is_written(tmp_path: Path, command: CommandLine, degree: int) -> None:
    gaussians = model(4000, degree)
    gaussians.opacities[:3000] = -9.0
    write_ply(tmp_path / "a.ply", gaussians)
    output, said = tmp_path / "b.ply", []

    def announce(sentence: str) -> None:
        assert not output.exists()
        said.append(sentence)

    export_model(tmp_path / "a.ply", output, Trim(min_opacity=0.001), announce=announce)
    megabytes = f"{format_to_write(output).estimated_bytes(1000, degree) / 1e6:.1f} MB"
    assert said == [f"1,000 splats are written as PLY: about {megabytes}"]
    assert f"{output.stat().st_size / 1e6:.1f} MB" == megabytes
    # The command tells it even of a file that then cannot be written.
    output = tmp_path / f"{'b' * 260}.ply"
    code, printed = command("export", tmp_path / "a.ply", "-o", output, "--min-opacity", "0.001")
    assert code == 2 and said[0] in printed and "cannot be written" in printed


def test_a_photo_of_each_format_looks_the_same(tmp_path: Path) -> None:
    """A real model, from one of its scene's cameras: axes, sizes, colors and their order, all at once."""
    if not (PLY.exists() and BANANA.exists()):
        pytest.skip("the shared model and its scene are not at hand")
    original = Model(read_ply(PLY).gaussians)
    scene = load_scene(BANANA, downscale=8)
    camera = scene.cameras[0]
    expected = render(original.in_frame_of(scene).gaussians, camera).rgb
    least = {".compressed.ply": 36.0, ".spz": 44.0, ".splat": 38.0, ".sog": 47.0}
    for ending in BOTH_WAYS:
        again = load_model(original.save(tmp_path / f"a{ending}"))
        assert len(again) == len(original)
        score = psnr(render(again.in_frame_of(scene).gaussians, camera).rgb, expected)
        assert score > least.get(ending, 90.0), ending
