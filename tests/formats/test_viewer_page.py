"""A model as one HTML file: what is in it, and that it looks as our own render in a browser, from a disk.

SPLATSTUDIO_SCREENSHOTS=FOLDER also writes a picture of a page beside our render.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from command_line import CommandLine
from format_models import model, recorded
from scipy.spatial.transform import Rotation
from studio_page import CANVAS, PAGE_TEST, TIMEOUT

from splatstudio.cameras.placement import Placement
from splatstudio.cli.export import export_model
from splatstudio.formats import FileExtras, write_gaussians
from splatstudio.formats.ply import read_ply, write_ply
from splatstudio.formats.viewer_page import PAGE_SIZE, PageView, page_frame, write_viewer_page
from splatstudio.gaussians.gaussians import Gaussians, rgb_to_sh0
from splatstudio.gaussians.transform import transformed
from splatstudio.models.model import Model
from splatstudio.optimization.losses import psnr
from splatstudio.rendering.render import RenderOptions, render_image
from splatstudio.runtime.messages import Event, Export, JobDone, JobFailed
from splatstudio.runtime.tasks import Tasks
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene

SHARED = Path(__file__).parents[3] / "shared"
PLY, BANANA = SHARED / "bench" / "banana_114k.ply", SHARED / "scenes" / "banana"
WIDTH, HEIGHT = 480, 320


def test_the_page_holds_the_model_as_other_formats_do(tmp_path: Path) -> None:
    gaussians = model(300)
    upright = np.eye(4)
    upright[:3, 3] = 0.5, 0.0, -2.0
    write_gaussians(tmp_path / "a.html", gaussians, FileExtras(page=PageView(upright)))
    rows = np.frombuffer(recorded(tmp_path / "a.html")["GaussianSplatsMessage"]["buffer"], np.uint8)
    rows = rows.reshape(300, 32)
    means = (gaussians.means.double().numpy() + upright[:3, 3]) * PAGE_SIZE
    assert np.allclose(rows[:, :12].copy().view(np.float32), means, atol=1e-5)
    covariance = np.zeros((300, 3, 3))
    covariance[:, [0, 0, 0, 1, 1, 2], [0, 1, 2, 1, 2, 2]] = rows[:, 16:28].copy().view(np.float16)
    full = covariance + np.stack([np.triu(one, 1).T for one in covariance])
    # Along its axes, which scipy turns, a Gaussian varies by the squares of its sizes, and nothing across.
    xyzw = gaussians.quats.numpy()[:, [1, 2, 3, 0]]
    axes = Rotation.from_quat(xyzw).as_matrix()
    sizes = (PAGE_SIZE * gaussians.scales.exp().numpy()) ** 2
    along = axes.transpose(0, 2, 1) @ full @ axes / sizes.max(axis=1)[:, None, None]
    expected = np.stack([np.diag(row) for row in sizes / sizes.max(axis=1, keepdims=True)])
    assert np.allclose(along, expected, atol=2e-3)
    rgb = (0.5 + 0.28209479 * gaussians.sh0[:, 0]).clamp(0, 1) * 255
    assert np.abs(rows[:, 28:31] - rgb.numpy()).max() < 0.51
    assert np.abs(rows[:, 31] - 255 * gaussians.opacities.sigmoid().numpy()).max() < 0.51


def test_the_page_begins_at_the_camera_that_is_given() -> None:
    gaussians = model(100)
    upright = np.diag([0.5, 0.5, 0.5, 1.0])
    camera = page_frame(gaussians, PageView())[1].camera(320, 200)
    seen = page_frame(gaussians, PageView(upright, camera))[1].camera(320, 200)
    assert np.allclose(seen.position, 0.5 * PAGE_SIZE * camera.position)
    assert np.allclose(seen.viewmat[:3, :3], camera.viewmat[:3, :3]) and np.allclose(seen.K, camera.K)


def test_a_file_of_gaussians_stands_with_y_down_and_all_of_it_in_view() -> None:
    gaussians = transformed(model(3000), np.diag([70.0, 70.0, 70.0, 1.0]))
    placed, opening = page_frame(gaussians, PageView())
    assert torch.allclose(placed.means[:, 2].argsort(), (-gaussians.means[:, 1]).argsort())
    points = placed.means.double().numpy() @ opening.camera(320, 320).viewmat[:3, :3].T
    points += opening.camera(320, 320).viewmat[:3, 3]
    assert (points[:, 2] > 0).mean() > 0.95
    assert (np.abs(points[:, :2] / points[:, 2:]) < np.tan(opening.fov / 2)).all(axis=1).mean() > 0.5


def test_the_page_is_named_and_says_whose_viewer_it_is(tmp_path: Path) -> None:
    write_viewer_page(tmp_path / "a.html", model(10), PageView(title="<b>--> bowl & spoon"))
    text = (tmp_path / "a.html").read_text()
    assert "<title>&lt;b&gt;--&gt; bowl &amp; spoon</title>" in text
    notice = text[text.index("<!--") : text.index("-->")]
    assert "bowl" in notice and "viser" in notice and "Apache License, Version 2.0" in notice
    assert "MIT License" in notice
    write_viewer_page(tmp_path / "spoon.html", model(10))
    assert "<title>spoon</title>" in (tmp_path / "spoon.html").read_text()


def test_a_name_that_is_no_text_makes_a_page_all_the_same(tmp_path: Path) -> None:
    page = tmp_path / os.fsdecode(b"sp\xffon.html")
    write_viewer_page(page, model(10))
    assert "<title>sp?on</title>" in page.read_text()


def test_no_server_is_started_for_a_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("a port was opened")

    monkeypatch.setattr(socket.socket, "bind", refuse)
    write_viewer_page(tmp_path / "a.html", model(10))


def test_what_cannot_be_a_page_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    broken = model(10)
    broken.scales[3, 1] = float("nan")
    with pytest.raises(ValueError, match="'scales' of splat 3 is nan"):
        write_viewer_page(tmp_path / "a.html", broken)
    with pytest.raises(ValueError, match="the model has no splats"):
        write_viewer_page(tmp_path / "a.html", model(10)[:0])
    with pytest.raises(ValueError, match=r"missing/a\.html cannot be written"):
        write_viewer_page(tmp_path / "missing" / "a.html", model(10))
    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(ValueError, match="10 splats are more than a browser"),
    ):
        patch.setattr("splatstudio.formats.viewer_page.LONGEST_TEXT", 1000)
        write_viewer_page(tmp_path / "a.html", model(10))
    assert list(tmp_path.iterdir()) == []


def test_the_command_writes_a_page(tmp_path: Path, command: CommandLine) -> None:
    write_ply(tmp_path / "a.ply", model(50))
    code, printed = command("export", tmp_path / "a.ply", "-o", tmp_path / "a.html")
    assert code == 0 and "50 splats written to" in printed and "as Web page" in printed
    assert "drops view-dependent color" in printed
    assert "GaussianSplatsMessage" in recorded(tmp_path / "a.html")


def test_a_page_begins_where_the_first_photo_was_taken(tmp_path: Path) -> None:
    if not BANANA.exists():
        pytest.skip("the shared scene is not at hand")
    write_ply(tmp_path / "a.ply", model(50))
    exported = export_model(
        tmp_path / "a.ply", tmp_path / "a.html", placement=Placement(upright=True, scene=BANANA)
    )
    assert exported.note is None
    camera = load_scene(BANANA).cameras[0]
    messages = recorded(tmp_path / "a.html")
    position = messages["SetCameraPositionMessage"]["position"]
    assert np.allclose(position, PAGE_SIZE * camera.position, atol=1e-4)
    assert messages["SetCameraFovMessage"]["fov"] == pytest.approx(camera.fov_y)
    forward = np.array(messages["SetCameraLookAtMessage"]["look_at"]) - position
    assert np.allclose(forward / np.linalg.norm(forward), camera.viewmat[2, :3], atol=1e-6)


def test_the_tab_s_job_writes_the_same_page(tmp_path: Path, blob_scene: Scene) -> None:
    """In the scene's own coordinates or upright: a page shows the model as it stands."""
    gaussians = model(80)
    trained = Model(gaussians, blob_scene.transform)
    pages: list[str] = []
    for upright in (False, True):
        path, ended = tmp_path / f"{upright}" / "bowl.html", threading.Event()
        events: list[Event] = []

        def take(event: Event, events: list[Event] = events, ended: threading.Event = ended) -> None:
            events.append(event)
            if isinstance(event, (JobDone, JobFailed)):
                ended.set()

        jobs = Tasks(take, lambda: False)
        jobs.start(Export(path, upright=upright, first=blob_scene.cameras[0]), lambda: trained)
        assert ended.wait(120.0) and isinstance(events[-1], JobDone), events
        pages.append(path.read_text())
        messages = recorded(path)
        position = messages["SetCameraPositionMessage"]["position"]
        assert np.allclose(position, PAGE_SIZE * blob_scene.cameras[0].position, atol=1e-3)
        rows = np.frombuffer(messages["GaussianSplatsMessage"]["buffer"], np.float32).reshape(80, 8)
        assert np.allclose(rows[:, :3], PAGE_SIZE * gaussians.means.numpy(), atol=1e-3)
        assert [file.name for file in path.parent.iterdir()] == ["bowl.html"]
    assert all("<title>bowl</title>" in page for page in pages)


class TestInABrowser:
    """The page opened from a disk, beside our own render of the same view."""

    pytestmark = PAGE_TEST

    def shot(self, browser: Any, path: Path, ours: np.ndarray, enough: float) -> tuple[float, np.ndarray]:
        """Return the PSNR against `ours` and the picture of a page, as soon as that is `enough`."""
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.set_default_timeout(1000 * TIMEOUT)
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(f"{path.as_uri()}?fixedDpr=1")  # every pixel: other tests draw fewer
        page.wait_for_selector(CANVAS)
        # What lies over the picture: a warning that there is no GPU, and the list of what is in the scene.
        page.add_style_tag(
            content=".mantine-Notifications-root, .mantine-ActionIcon-root {display: none !important}"
        )
        score, deadline = 0.0, time.monotonic() + TIMEOUT
        while True:  # splats fade in, and are sorted
            png = np.frombuffer(page.screenshot(), np.uint8)
            decoded = cv2.imdecode(png, cv2.IMREAD_COLOR)
            assert decoded is not None
            picture = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB)
            score = psnr(torch.from_numpy(picture) / 255.0, torch.from_numpy(ours) / 255.0)
            if score > enough or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        page.close()
        assert errors == []
        assert not [url for url in asked if url.startswith("http")]  # nothing is fetched
        return score, picture

    def compare(
        self,
        browser: Any,
        path: Path,
        gaussians: Gaussians,
        view: PageView,
        enough: float,
    ) -> tuple[float, np.ndarray]:
        """Return the PSNR of a page of `gaussians` against our render, and both side by side."""
        write_viewer_page(path, gaussians, view)
        placed, opening = page_frame(gaussians, view)
        options = RenderOptions(background=view.background)
        ours = render_image(placed, opening.camera(WIDTH, HEIGHT), options)
        score, theirs = self.shot(browser, path, ours, enough)
        return score, np.hstack([theirs, ours])

    def test_the_nearer_splat_covers_the_farther_one(self, browser: Any, tmp_path: Path) -> None:
        """Also from a disk, where a browser starts no worker for the sorting the usual way."""
        colors = torch.eye(3)
        for order in ([0, 1, 2], [2, 1, 0]):
            means = torch.tensor([[0.0, -0.5, 0.0], [0.0, 0.0, 0.0], [0.0, 0.5, 0.0]])[order]
            gaussians = Gaussians(
                means=means,
                quats=torch.tensor([[1.0, 0.0, 0.0, 0.0]]).repeat(3, 1),
                scales=torch.full((3, 3), -1.5),
                opacities=torch.full((3,), 6.0),
                sh0=rgb_to_sh0(colors[order])[:, None],
                shN=torch.zeros(3, 0, 3),
            )
            upright = PageView(np.eye(4))
            score, both = self.compare(browser, tmp_path / "a.html", gaussians, upright, 30.0)
            middle = both[HEIGHT // 2, WIDTH // 2].tolist()
            assert middle[0] > 150 and middle[0] > 2 * max(middle[1:]), (order, middle)
            assert score > 30.0

    def test_the_background_is_the_model_s(self, browser: Any, tmp_path: Path) -> None:
        view = PageView(np.eye(4), background=(0.2, 0.6, 1.0))
        score, both = self.compare(browser, tmp_path / "a.html", model(200, 0, extent=1.0), view, 27.0)
        assert np.abs(both[5, 5].astype(int) - (51, 153, 255)).max() <= 2
        assert score > 27.0

    def test_a_real_model_looks_as_our_own_render(self, browser: Any, tmp_path: Path) -> None:
        if not (PLY.exists() and BANANA.exists()):
            pytest.skip("the shared model and its scene are not at hand")
        scene = load_scene(BANANA, downscale=8)
        gaussians = read_ply(PLY).gaussians[::4]  # fewer are drawn sooner by a browser without a GPU
        camera = scene.cameras[0].transformed(np.linalg.inv(scene.transform))
        view = PageView(scene.transform, camera)
        score, both = self.compare(browser, tmp_path / "a.html", gaussians, view, 27.0)
        pictures = os.environ.get("SPLATSTUDIO_SCREENSHOTS")
        if pictures:
            cv2.imwrite(str(Path(pictures) / "web_page.png"), cv2.cvtColor(both, cv2.COLOR_RGB2BGR))
        assert score > 27.0  # 35 where the page has time to draw every pixel
