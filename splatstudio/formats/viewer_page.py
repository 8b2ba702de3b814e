"""Gaussians as one HTML file that shows them in any browser: viser's own client with the model inside.

Nothing is fetched: the page works from a disk without a network. The client is viser's, as it is installed,
with a notice of its license; its splats have one color each, whatever the direction one looks from.
"""

from __future__ import annotations

import html
import io
import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image

from splatstudio.cameras.camera import Camera, look_at
from splatstudio.cameras.placement import Z_UP_TO_Y_DOWN
from splatstudio.formats.model_arrays import arrays_to_write, write_file
from splatstudio.gaussians.gaussians import SH_C0, Gaussians, central_bounds, unit_quats
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels.reference import rotation_matrices

if TYPE_CHECKING:
    from viser.infra import Message

# Files of Gaussians are read with y down.
Y_DOWN_TO_Z_UP = Z_UP_TO_Y_DOWN.T
# A scene, about 1 large, is shown 8 large: the page's keys walk 2 a second, and its covariances are 16-bit
# numbers, in which the square of a small size has few digits left.
PAGE_SIZE = 8.0
LARGEST = math.log(255.0)  # of a logarithmic scale in the page: its square is the largest 16-bit float
FOV = 0.9  # radians, vertical, where no camera says another
CHUNK = 65_536
LONGEST_TEXT = 2**29 - 25  # letters that a browser keeps in one text
NOTICE = """<!--
{title}, written by splatstudio.
The viewer in this page is the client of viser {version} (https://github.com/viser-project/viser), Copyright
the viser authors: its LICENSE is the Apache License, Version 2.0 (http://www.apache.org/licenses/LICENSE-2.0),
its package names the MIT License. It contains React, three.js, Mantine and further libraries under the MIT
License; viser's repository lists them.
-->
"""
WORKER_FROM_DISK = f"<script>\n{Path(__file__).with_suffix('.js').read_text('utf-8')}</script>\n"


@dataclass(frozen=True, eq=False)
class PageView:
    """How a page shows Gaussians.

    `upright` [4, 4] is a similarity from the Gaussians' frame to one with z up in which the scene is about 1
    large; without it y is taken to point down, as in most files. `camera`, in the Gaussians' frame, is where
    one stands at first; without it one sees the middle of the model.
    """

    upright: np.ndarray | None = None
    camera: Camera | None = None
    title: str | None = None  # by default the file's name
    background: tuple[float, float, float] = (0.0, 0.0, 0.0)


AS_IT_LIES = PageView()


@dataclass(frozen=True, eq=False)
class Opening:
    """Where one stands in a page at first: z is up."""

    position: np.ndarray  # [3]
    target: np.ndarray  # [3]
    fov: float  # radians, vertical

    def camera(self, width: int, height: int) -> Camera:
        """Return this view, of that many pixels."""
        focal = height / (2.0 * math.tan(self.fov / 2.0))
        K = np.array([[focal, 0.0, width / 2.0], [0.0, focal, height / 2.0], [0.0, 0.0, 1.0]])
        return Camera(look_at(self.position, self.target, np.array([0.0, 0.0, 1.0])), K, width, height)


def write_viewer_page(path: Path | str, gaussians: Gaussians, view: PageView = AS_IT_LIES) -> None:
    """Write a page that shows the Gaussians as `view` says.

    An older file of that name stays until the new one is complete. Raises ValueError, and writes nothing, for
    a model without Gaussians, with a parameter that is not finite, or too large for one page, and for a file
    that cannot be written.
    """
    path = Path(path)
    arrays_to_write(path, gaussians)  # refuses what no file may hold
    placed, opening = page_frame(gaussians, view)
    # A file's name may hold bytes that are no text.
    title = (view.title or path.stem).encode(errors="replace").decode()
    text = _page(placed, opening, view.background, title)
    if len(text) > LONGEST_TEXT:
        raise ValueError(
            f"{path} is not written: {len(gaussians):,} splats are more than a browser takes in one page;"
            " leave out the faint ones, or crop to a box"
        )
    write_file(path, text.encode())


def page_frame(gaussians: Gaussians, view: PageView) -> tuple[Gaussians, Opening]:
    """Return the Gaussians in the frame of a page, and where one stands in it at first."""
    flat = Gaussians(**{**gaussians.detach().tensors(), "shN": gaussians.shN[:, :0].detach()}).to("cpu")
    upright = view.upright
    if upright is None:
        _, radius = central_bounds(flat)
        upright = np.diag([1 / radius] * 3 + [1.0]) @ Y_DOWN_TO_Z_UP
    transform = np.diag([PAGE_SIZE] * 3 + [1.0]) @ upright
    placed = transformed(flat, transform)
    if view.camera is None:
        center, radius = central_bounds(placed)
        target = np.array(center)
        # Forward is y where z is up.
        return placed, Opening(target + radius * np.array([0.0, -2.8, 1.0]), target, FOV)
    camera = view.camera.transformed(transform)
    # What the cameras look at is about as far away as the middle of the scene.
    distance = max(float(np.linalg.norm(camera.position)), 0.1 * PAGE_SIZE)
    target = camera.position + distance * camera.viewmat[2, :3]
    return placed, Opening(camera.position, target, camera.fov_y)


def splat_buffer(gaussians: Gaussians) -> np.ndarray:
    """Return what viser's client draws: [N, 8] uint32.

    Of each Gaussian the center (three float32, then 0), the covariance's upper triangle (six float16), and
    red, green, blue and opacity (four uint8). View-dependent color is left out.
    """
    num = len(gaussians)
    buffer = np.zeros((num, 8), np.uint32)
    bytes_of = buffer.view(np.uint8).reshape(num, 32)
    for start in range(0, num, CHUNK):
        part = gaussians[slice(start, start + CHUNK)]
        axes = rotation_matrices(unit_quats(part.quats)) * part.scales.clamp(max=LARGEST).exp()[:, None, :]
        covariances = (axes @ axes.transpose(1, 2)).reshape(-1, 9)[:, [0, 1, 2, 4, 5, 8]]
        rgb = (0.5 + SH_C0 * part.sh0[:, 0]).clamp(0.0, 1.0)
        rgba = torch.cat([rgb, part.opacities.sigmoid()[:, None]], dim=1)
        rows = slice(start, start + len(part))
        buffer[rows, :3] = part.means.float().numpy().view(np.uint32)
        bytes_of[rows, 16:28] = covariances.to(torch.float16).numpy().view(np.uint8)
        bytes_of[rows, 28:] = (rgba * 255.0).round().to(torch.uint8).numpy()
    return buffer


def _page(gaussians: Gaussians, opening: Opening, background: tuple[float, float, float], title: str) -> str:
    # Half a second to import, which only those pay who write a page.
    import viser
    from viser.infra import StateSerializer, WebsockMessageHandler

    # A recording without a server: nothing listens on any port, and the studio's own page is not touched.
    handler = WebsockMessageHandler()
    recording: StateSerializer = handler.get_message_serializer(lambda message: True)
    for message in _messages(gaussians, opening, background):
        recording._insert_message(message)
    page = recording.as_html(dark_mode=True)
    for viser_title in ("<title>Viser</title>", "<!doctype html>\n"):
        assert page.count(viser_title) == 1, "viser's page has changed"
    title = html.escape(title)
    # A comment ends at the first --> or --!>.
    notice = NOTICE.format(title=title.replace("--", "- -"), version=viser.__version__)
    page = page.replace("<title>Viser</title>", f"<title>{title}</title>{WORKER_FROM_DISK}", 1)
    return page.replace("<!doctype html>\n", f"<!doctype html>\n{notice}", 1)


def _messages(
    gaussians: Gaussians, opening: Opening, background: tuple[float, float, float]
) -> list[Message]:
    """Return what a server of viser would have said to a browser that connects."""
    from viser import _messages

    def triple(vector: np.ndarray) -> tuple[float, float, float]:
        x, y, z = (float(value) for value in vector)
        return x, y, z

    image = io.BytesIO()
    red, green, blue = (round(255.0 * min(max(value, 0.0), 1.0)) for value in background)
    Image.new("RGB", (1, 1), (red, green, blue)).save(image, "PNG")
    props = _messages.GaussianSplatsProps(buffer=splat_buffer(gaussians), scale=1.0)
    return [
        _messages.BackgroundImageMessage("png", image.getvalue(), None),
        _messages.SetCameraUpDirectionMessage((0.0, 0.0, 1.0), initial=True),
        _messages.SetCameraPositionMessage(triple(opening.position), initial=True),
        _messages.SetCameraLookAtMessage(triple(opening.target), initial=True),
        _messages.SetCameraFovMessage(opening.fov, initial=True),
        _messages.SetCameraNearMessage(0.01 * PAGE_SIZE, initial=True),
        _messages.SetCameraFarMessage(1000.0 * PAGE_SIZE, initial=True),
        _messages.GaussianSplatsMessage("/model", props),
    ]
