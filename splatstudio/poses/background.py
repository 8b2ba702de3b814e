"""An estimation in a thread of its own: how far it is can be asked, and it can be ended, at any time."""

from __future__ import annotations

import threading
from pathlib import Path

from splatstudio.files.durable import write_durably
from splatstudio.poses.estimate import EndRequest, EstimationEnded, OnProgress, PoseProgress, estimate_until
from splatstudio.poses.growing import GrowingModel, read_growing
from splatstudio.poses.records import PoseReport
from splatstudio.poses.store import PoseStore


class BackgroundEstimation:
    """The estimation of the poses of a folder of photos, or of a video, beside other work.

    `on_progress` is called from its thread. Its end is that of `wait`, or of the process.
    """

    def __init__(self, source: Path, *, on_progress: OnProgress | None = None):
        """Begin."""
        self.source = source
        self.store = PoseStore(source.absolute())
        self.progress: PoseProgress | None = None  # the newest
        self.report: PoseReport | None = None  # at the end
        self.error: ValueError | OSError | MemoryError | None = None
        self.asked = False  # for the poses so far
        self._tell = on_progress
        self._stop = EndRequest()
        self._over = threading.Event()
        # A thread of the background: the stages end with it, and what they have finished is kept.
        self._thread = threading.Thread(target=self._run, name="poses", daemon=True)
        self._thread.start()

    @property
    def is_over(self) -> bool:
        """Return whether it has ended, well or not."""
        return self._over.is_set()

    @property
    def maps(self) -> bool:
        """Return whether the last stage works, of which there is something to see."""
        return self.progress is not None and self.progress.stage == "poses" and not self.is_over

    def wait(self, seconds: float) -> bool:
        """Wait for its end, `seconds` at most; return whether it has ended."""
        return self._over.wait(seconds)

    def growing(self) -> GrowingModel | None:
        """Return the cameras and points that have been found so far, None where there are none yet."""
        return read_growing(self.store.growing_file)

    def want_so_far(self) -> None:
        """Ask for poses to train on of the photos that have one by now; the mapping goes on."""
        write_durably(self.store.wanted_file, b"")
        self.asked = True

    @property
    def has_so_far(self) -> bool:
        """Return whether what was asked for is there."""
        return self.asked and not self.store.wanted_file.exists() and self.store.has_poses

    def end(self) -> None:
        """End it now and wait for that; finished stages are kept."""
        self._stop.ask()
        self._thread.join()

    def _run(self) -> None:
        try:
            self.report = estimate_until(self._stop, self.source, None, self._follow)
        except EstimationEnded:
            pass
        except (ValueError, OSError, MemoryError) as error:
            self.error = error
        finally:
            self._over.set()

    def _follow(self, progress: PoseProgress) -> None:
        self.progress = progress
        if self._tell is not None:
            self._tell(progress)
