"""Estimations of poses in the midst of their work."""

from __future__ import annotations

import time
from pathlib import Path

from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.records import PoseReport
from splatstudio.scene.load import load_scene
from splatstudio.scene.scene import Scene

SECONDS = 240.0


def wait_until_it_maps(estimation: BackgroundEstimation) -> None:
    """Return when the matches are found and kept, and the mapping has begun."""
    end = time.monotonic() + SECONDS
    while not estimation.maps:
        assert time.monotonic() < end and not estimation.is_over, estimation.error
        time.sleep(0.01)


def kept_so_far(folder: Path) -> tuple[BackgroundEstimation, PoseReport, Scene]:
    """Return an estimation that goes on, and what it has kept before its end."""
    estimation = BackgroundEstimation(folder)
    wait_until_it_maps(estimation)
    end = time.monotonic() + SECONDS
    while estimation.progress is None or estimation.progress.done < 5:
        assert time.monotonic() < end and not estimation.is_over
        time.sleep(0.005)
    estimation.want_so_far()
    while not estimation.has_so_far:
        assert time.monotonic() < end and not estimation.is_over, estimation.error
        time.sleep(0.005)
    report = estimation.store.report()
    assert report is not None
    return estimation, report, load_scene(folder)
