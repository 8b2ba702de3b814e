"""Estimations of poses in the midst of their work, and reports of some."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from splatstudio.poses.background import BackgroundEstimation
from splatstudio.poses.records import PoseReport
from splatstudio.poses.store import PoseStore
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


def report_of(source: Path, **values: Any) -> PoseReport:
    """Return the report of an estimation of the photos in a folder that came to nothing but `values`."""
    nothing: dict[str, Any] = {"posed": (), "left_out": (), "groups": (), "doubtful": (), "cameras": ()}
    nothing |= {"num_points": 0, "error": 0.0, "up": "", "meters": None, "seconds": {}, "peak_bytes": 0}
    places = {"store": str(PoseStore(source).path), "source": str(source)}
    return PoseReport(fingerprint="", num_photos=9, **{**places, **nothing, **values})
