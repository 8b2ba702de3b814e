"""Camera poses from photos or a video: the stages, each in a process of its own, one after the other."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from splatstudio.files.durable import write_durably
from splatstudio.files.kinds import kind_of_file
from splatstudio.files.path_words import as_argument
from splatstudio.operating_system import new_group, was_killed
from splatstudio.poses.contact_sheet import write_contact_sheet
from splatstudio.poses.input import changes, find_sources
from splatstudio.poses.install import refuse_without_colmap
from splatstudio.poses.records import NoRoom, PoseReport, Refused, StageEnd, StageStep, write_record
from splatstudio.poses.store import PoseStore, fingerprint
from splatstudio.poses.words import report_text
from splatstudio.scene.layout import estimated_poses, is_video, pose_files, poses_below, scene_of_pictures
from splatstudio.settings.setting import typed_path

STAGES = {
    "photos": "Reading the photos",
    "features": "Finding features",
    "matches": "Matching",
    "poses": "Estimating poses",
}
Line = StageStep | Refused | NoRoom | StageEnd
KEPT = "what was finished is kept, and the same command goes on from there"
FULL_BYTES = 1 << 20  # with less room on a disk nothing can be done, and natively no word is said of it


class StageDied(OSError):
    """A stage that could not be done; its text is a sentence for the user. Finished stages are kept."""


class EstimationEnded(Exception):
    """An estimation that was asked to end."""


class EndRequest:
    """Ends an estimation from another thread."""

    def __init__(self) -> None:
        """Nobody has asked yet."""
        self._process: subprocess.Popen[bytes] | None = None
        self._asked = False
        self._lock = threading.Lock()

    def ask(self) -> None:
        """Let the estimation raise EstimationEnded soon; the stage that works is ended."""
        with self._lock:
            self._asked = True
            if self._process is not None:
                self._process.kill()

    def watch(self, process: subprocess.Popen[bytes] | None) -> None:
        """Take note of the process that works now, None: none does; it is ended where that was asked."""
        with self._lock:
            self._process = process
            if process is not None and self._asked:
                process.kill()

    def check(self) -> None:
        """Raise EstimationEnded where that was asked."""
        if self._asked:
            raise EstimationEnded


@dataclass(frozen=True)
class PoseProgress:
    """How far an estimation is: `done` of `total` things of a stage (0: not known yet), which are `what`."""

    stage: str  # a key of STAGES
    done: int
    total: int
    what: str
    seconds_left: float | None = None  # of this stage

    @property
    def title(self) -> str:
        """Return what the stage does, for people."""
        return STAGES[self.stage]


OnProgress = Callable[[PoseProgress], None]


def estimate_poses(
    path: str | Path, *, frames: int | None = None, on_progress: OnProgress | None = None
) -> PoseReport:
    """Estimate the camera poses of a folder of photos and videos, or of a video; return the report.

    Everything is kept in the folder `.splatstudio` beside the photos, as a COLMAP scene, which
    `load_scene(path)` then reads; the photos are not touched. What an earlier call has finished, also
    one that was ended, is not done again. `frames` is how many frames of each video are used, None: as many
    as its motion needs. Raises ValueError with one sentence where there is too little to go by, StageDied
    (an OSError) where COLMAP ends unexpectedly, or the machine has no room for it.
    """
    return estimate_until(EndRequest(), path, frames, on_progress)


def estimate_until(
    stop: EndRequest, path: str | Path, frames: int | None = None, on_progress: OnProgress | None = None
) -> PoseReport:
    """Do what `estimate_poses` does; raises EstimationEnded, too, where another thread asks `stop` for it."""
    source = typed_path(path).absolute()
    refuse_without_colmap()
    if frames is not None and not frames >= 3:
        raise ValueError(f"frames is {frames}, but must be 3 or more")
    _refuse_no_source(source)
    store = PoseStore(source)
    if (report := _finished(store, frames)) is not None:
        return report
    with store.held():
        store.drop_damaged_database()
        seconds: dict[str, float] = {}
        peak = 0
        for stage in STAGES:
            began = time.monotonic()
            if stage == "poses" and (report := _finished(store, frames)) is not None:
                return report
            stop.check()
            peak = max(peak, _run(stage, store, frames, on_progress, stop))
            seconds[stage] = time.monotonic() - began
        report = store.report()
        assert report is not None, "the last stage has written it"
        report = msgspec.structs.replace(report, seconds=seconds, peak_bytes=peak)
        write_record(store.report_file, report)
        write_durably(store.path / "report.txt", (report_text(report) + "\n").encode())
        write_contact_sheet(store, report)
        return report


def lacks_poses(path: Path) -> bool:
    """Return whether `path` is a video or a folder of photos whose poses are not known yet."""
    if is_video(path):
        return pose_files(estimated_poses(path)) is None
    if not path.is_dir() or pose_files(path) is not None or (path / "run.json").exists():
        return False
    try:
        known = poses_below(path) or scene_of_pictures(path)
        return known is None and len(find_sources(path)) > 0
    except (ValueError, OSError):  # several scenes, or no permission: who opens it says so
        return False


def scene_of(path: Path) -> Path:
    """Return what is opened of a path: of a video the scene that was made of it, else the path itself."""
    return estimated_poses(path) if is_video(path) else path


def note_on_changes(path: Path) -> str | None:
    """Return a sentence where photos came, changed or went since their poses were estimated."""
    store, again = PoseStore(path), f"`splatstudio poses {as_argument(path)}`"
    if not store.has_poses:
        return None
    if (told := changes(store)) is not None:
        return (
            f"Since the poses were estimated, the photos have changed ({told}): {again} estimates them anew"
        )
    if (report := store.report()) is not None and report.so_far:
        num = report.num_photos - len(report.posed)
        return f"{num} photos have no pose yet, as their estimation was ended: {again} goes on with it"
    return None


def _refuse_no_source(source: Path) -> None:
    if not source.exists():
        raise ValueError(f"{source} does not exist; name a folder of photos, or a video")
    if source.is_file() and not is_video(source):
        kind = kind_of_file(source) or "a file of unknown type"
        raise ValueError(f"{source} is {kind}; name a folder of photos, or a video")


def _finished(store: PoseStore, frames: int | None) -> PoseReport | None:
    """Return the report where all is done and nothing has changed since."""
    report, manifest = store.report(), store.manifest()
    if report is None or manifest is None or report.so_far or report.fingerprint != fingerprint(manifest):
        return None
    same = frames is None or manifest.frames == frames
    return report if same and changes(store) is None else None


def _run(
    stage: str, store: PoseStore, frames: int | None, on_progress: OnProgress | None, stop: EndRequest
) -> int:
    """Run one stage and return the most memory that it took, in bytes."""
    call = f"run_stage({stage!r}, {str(store.source)!r}, {frames!r})"
    command = [sys.executable, "-c", f"from splatstudio.poses.worker import run_stage; {call}"]
    # In a session of its own: Ctrl-C is for this process, which ends the stage.
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,
        creationflags=new_group(),
    )
    try:
        stop.watch(process)
        last = _follow(stage, process, on_progress)
        code = process.wait()
    except BaseException:  # Ctrl-C: what is in the database by now stays
        process.kill()
        process.wait()
        raise
    finally:
        stop.watch(None)
        if process.stdout is not None:
            process.stdout.close()
    stop.check()
    if isinstance(last, Refused):
        raise ValueError(last.sentence)
    if isinstance(last, NoRoom):
        raise StageDied(f"{last.sentence}; {KEPT}")
    if not isinstance(last, StageEnd) or code != 0:
        raise _died(stage, code, store)
    return last.peak_bytes


def _follow(
    stage: str, process: subprocess.Popen[bytes], on_progress: OnProgress | None
) -> Refused | NoRoom | StageEnd | None:
    last: Refused | NoRoom | StageEnd | None = None
    first: tuple[float, int] | None = None
    for line in _lines(process):
        if not isinstance(line, StageStep):
            last = line
            continue
        now = time.monotonic()
        if first is None or line.done < first[1]:
            first = (now, line.done)
        since, before = first
        gained = line.done - before
        left = (now - since) / gained * (line.total - line.done) if gained > 0 else None
        if on_progress is not None:
            on_progress(PoseProgress(stage, line.done, line.total, line.what, left))
    return last


def _lines(process: subprocess.Popen[bytes]) -> Iterator[Line]:
    assert process.stdout is not None
    decoder = msgspec.json.Decoder(Line)
    for line in process.stdout:
        yield decoder.decode(line)


def _is_full(folder: Path) -> bool:
    try:
        return shutil.disk_usage(folder).free < FULL_BYTES
    except OSError:  # the folder has gone
        return False


def _died(stage: str, code: int, store: PoseStore) -> StageDied:
    why = f"with the exit code {code}"
    if _is_full(store.path):
        why = f"as the disk of {store.path} is full: make room there"
    elif was_killed(code):
        why = "by the system, most likely for want of memory: close other programs"
    elif code < 0:
        why = f"by the signal {signal.Signals(-code).name}"
    return StageDied(
        f"the stage {STAGES[stage]!r} was ended {why}; {KEPT}; its log is {store.path / 'log.txt'}"
    )
