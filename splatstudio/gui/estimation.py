"""The page of an estimation: cameras and points appear in it as the mapping finds them.

It takes over the address of the start page, and the studio takes over its own.
"""

from __future__ import annotations

import logging
import threading

import numpy as np

from splatstudio.gui.panel import when_user
from splatstudio.gui.server.access import Listen, PassedOn
from splatstudio.gui.server.gate import open_server
from splatstudio.gui.server.viser_private import dress_page, end_opening
from splatstudio.gui.state.scene_overlay import CAMERA_PIXELS, POINT_SIZE, Frustums
from splatstudio.gui.state.viewpoint import FirstView
from splatstudio.gui.theme import apply_theme, duration, light_evenly, note_html, table_html
from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.estimate import STAGES
from splatstudio.poses.growing import GrowingModel
from splatstudio.poses.words import note_on_unread_poses
from splatstudio.scene.normalize import normalizing_transform

LOOK_SECONDS = 0.5
TRAIN = "Train with the photos so far"
FEWEST_PHOTOS = 5  # that are trained on: the poses of fewer change much yet
RADIUS = 1.5  # of what is shown, around the point that the cameras look at

log = logging.getLogger(__name__)


class EstimationPage(PassedOn):
    """Shows an estimation until `close`, or until its address is handed over."""

    def __init__(self, listen: Listen, estimation: BackgroundEstimation):
        """Serve at `listen`; ValueError where that cannot be."""
        self.listen, self._estimation = listen, estimation
        self.token = listen.new_token()
        self._listener = listen.take_port()
        # viser closes the socket that it serves on: it gets a copy.
        self._gated = open_server(listen.taken_over(self.token, self._listener.dup))
        self.port, self.url = self._gated.port, self._gated.url
        self._read: int | None = None  # when the snapshot was written that was read last
        self._unread = note_on_unread_poses(estimation.source)
        self._closed = threading.Event()
        self._build()
        self._thread = threading.Thread(target=self._follow, name="estimation page", daemon=True)
        self._thread.start()

    def _stop_serving(self) -> None:
        self._closed.set()
        self._thread.join()
        self._gated.stop()

    def _build(self) -> None:
        server = self._gated.server
        apply_theme(server.gui)
        light_evenly(server.scene)
        server.on_client_connect(dress_page)
        server.on_client_connect(end_opening)
        # What is drawn is brought to the frame of a scene, so this holds however the mapping turns it.
        FirstView(server).of_model((0.0, 0.0, 0.0), RADIUS)
        self._told = server.gui.add_html("")
        self._bar = server.gui.add_progress_bar(0.0)
        self._train = server.gui.add_button(
            TRAIN,
            disabled=True,
            hint="Mapping continues meanwhile; photos that get a pose later can join the run.",
        )
        when_user(self._train, lambda *_: self._want_so_far())
        self._end = server.gui.add_button(
            "End", color="gray", hint="Finished work is kept; open the photos again to continue."
        )
        when_user(self._end, lambda *_: self._estimation.end())

    def _want_so_far(self) -> None:
        self._train.disabled, self._train.label = True, "One moment ..."
        self._estimation.want_so_far()

    def _follow(self) -> None:
        while not self._closed.wait(LOOK_SECONDS):
            try:
                self._tell()
                self._draw()
            except Exception:  # the estimation does not depend on what the page shows
                log.exception("the page of the estimation was not refreshed")
                return

    def _tell(self) -> None:
        progress = self._estimation.progress
        if progress is None:
            return
        stage = list(STAGES).index(progress.stage)
        rows = [
            (progress.title, f"stage {stage + 1} of {len(STAGES)}"),
            (progress.what, f"{progress.done} of {progress.total}" if progress.total else "–"),
            ("Time left", duration(progress.seconds_left)),
        ]
        notes = filter(None, (str(self._estimation.source), self._unread))
        self._told.content = table_html(rows, mark="estimation") + "".join(map(note_html, notes))
        self._bar.value = 100.0 * progress.done / progress.total if progress.total else 0.0

    def _draw(self) -> None:
        file = self._estimation.store.growing_file
        written = file.stat().st_mtime_ns if file.exists() else None
        if written is None or written == self._read:
            return
        snapshot = self._estimation.growing()
        if snapshot is None:
            return
        self._read = written
        if not self._estimation.asked:
            self._train.disabled = len(snapshot.viewmats) < FEWEST_PHOTOS
            self._train.label = f"Train with the {len(snapshot.viewmats)} photos so far"
        frustums, points = in_frame_of_scene(snapshot)
        scene = self._gated.server.scene
        with self._gated.server.atomic():
            frustums.draw(scene, "/cameras/edges", "/cameras/bodies", CAMERA_PIXELS, 0.12)
            if len(points):
                scene.add_point_cloud(
                    "/points",
                    points=points,
                    colors=snapshot.colors,
                    point_size=2 * POINT_SIZE,
                    point_shape="circle",
                )


def in_frame_of_scene(snapshot: GrowingModel) -> tuple[Frustums, np.ndarray]:
    """Return the cameras of a snapshot and its points [P, 3] as a scene has them: z up, of radius 1."""
    transform = normalizing_transform(snapshot.viewmats, snapshot.points.astype(np.float64), ())
    scale = float(np.cbrt(np.linalg.det(transform[:3, :3])))
    rotation, shift = transform[:3, :3] / scale, transform[:3, 3]
    viewmats = snapshot.viewmats.copy()
    viewmats[:, :3, :3] = snapshot.viewmats[:, :3, :3] @ rotation.T
    viewmats[:, :3, 3] = scale * snapshot.viewmats[:, :3, 3] - viewmats[:, :3, :3] @ shift
    points = (snapshot.points @ transform[:3, :3].T + shift).astype(np.float32)
    return Frustums.of_poses(viewmats, snapshot.half_sizes, 1.0), points
