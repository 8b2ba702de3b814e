"""`splatstudio open` without a path: the start page, and the studio of what is chosen there.

The page is there before torch and viser are loaded, which happens while the user looks at it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatstudio.error_text import for_terminal, in_words
from splatstudio.files.recent import recent_paths, remember
from splatstudio.files.run import Run, figures_of_run
from splatstudio.gui.server.access import Listen, TakenOver, advice, open_browser
from splatstudio.gui.server.start_page import StartPage
from splatstudio.gui.server.start_views import Entry, StartContent
from splatstudio.poses.install import ColmapMissing, has_colmap, install_colmap, refuse_without_colmap
from splatstudio.scene.demo import STEPS as DEMO_STEPS
from splatstudio.scene.demo import demo_scene
from splatstudio.scene.layout import SeveralScenes
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.setting import typed_path
from splatstudio.training.device_options import DeviceOptions

if TYPE_CHECKING:
    from splatstudio.gui.app import Studio
    from splatstudio.gui.estimation import EstimationPage
    from splatstudio.poses.background import BackgroundEstimation
    from splatstudio.poses.estimate import PoseProgress

RUNS = Path("runs")
MOST_RUNS = 8
MOST_RECENT = 8
_LOOK_SECONDS = 0.1


def studio_of_choice(
    listen: Listen,
    *,
    browser: bool,
    train: bool,
    chosen: Path | None = None,
    config: TrainConfig = TrainConfig(),
    given: Collection[str] = frozenset(),
    **asked: Any,
) -> Studio:
    """Serve the start page and return the studio of what is chosen there, at the same address.

    The page shows the camera poses of photos that have none yet, as they are found. `chosen`: what is
    opened first, without being asked for there. `config` are a training's settings, `given` the names of
    those that the user asked for: unless steps are among them, the demo gets its own. `asked` are further
    arguments of `open_studio`. Raises ValueError where the address cannot be used, or `chosen` cannot
    be opened.
    """
    page = StartPage(listen, partial(start_content, () if chosen is None else (chosen,)))
    front = _Front(page)
    if chosen is not None:
        page.choose(chosen)
    try:
        print(f"The studio is open at {page.url}", flush=True)
        for note in advice(listen, page.url, page.port, os.environ):
            print(for_terminal(note), flush=True)
        if browser:
            open_browser(page.url)
        from splatstudio.gui.app import open_studio

        while True:
            request = front.start_page().next_request()
            try:
                path = front.with_poses(typed_path(request.path), install=request.install)
                short = path == demo_scene() and "steps" not in given
                studio = open_studio(
                    path,
                    network=front.page.address,
                    train=train,
                    browser=False,
                    config=replace(config, steps=DEMO_STEPS) if short else config,
                    given={*given, "steps"} if short else given,
                    **asked,
                )
                if request.train and not train:
                    _start(studio)
                if request.beside is not None:
                    studio.compare_with_run(typed_path(request.beside))
                if front.estimation is not None:
                    studio.follow_estimation(front.estimation)
                note_opened(path)
                return studio
            except (ValueError, OSError, MemoryError) as error:
                if not front.offers_other(error, asked_on_page=chosen is None):
                    raise
                chosen = None
                front.tell(error, typed_path(request.path))
    finally:
        front.page.close()


def _start(studio: Studio) -> None:
    try:
        studio.start_proposed_training()
    except BaseException:  # by a signal, too: what was begun by then is saved
        studio.close()
        raise


class _Front:
    """The page before the studio's: the start page, or that of an estimation."""

    def __init__(self, page: StartPage):
        self.page: StartPage | EstimationPage = page
        self.estimation: BackgroundEstimation | None = None  # that goes on when the studio opens

    def start_page(self) -> StartPage:
        """Return the start page, which takes over from the other one where that is there."""
        if not isinstance(self.page, StartPage):
            self.page = StartPage(self.page.address, start_content)
        return self.page

    def offers_other(self, error: Exception, *, asked_on_page: bool) -> bool:
        """Return whether the page tells of an error, and offers to choose anew; else the terminal tells.

        So it is where there is a page on which somebody has asked, or which has what may be meant.
        """
        several, missing = isinstance(error, SeveralScenes), _installable(error)
        if self.page.handed_over or not (asked_on_page or several or missing):
            return False
        if not asked_on_page:
            on_page = ", or press the button on the page" if missing else ", on the page"
            print(f"{for_terminal(in_words(error))}{on_page}", flush=True)
        return True

    def tell(self, error: Exception, path: Path) -> None:
        """Tell on the page why `path` could not be opened."""
        scenes = error.scenes if isinstance(error, SeveralScenes) else ()
        instead = [Entry(place, size) for place, size in scenes]
        self.start_page().tell(in_words(error), instead, path if _installable(error) else None)

    def with_poses(self, path: Path, *, install: bool) -> Path:
        """Return what is opened of `path`; poses that are missing are estimated while the page shows how.

        `install` what that needs, where it is not there. Raises ValueError with one sentence where the
        photos give no poses, ColmapMissing where something has to be installed before.
        """
        from splatstudio.cli.poses import out_of_archive, poses_come_first, with_poses
        from splatstudio.poses.estimate import lacks_poses, scene_of
        from splatstudio.poses.words import note_on_unread_poses

        path = out_of_archive(path)
        if not lacks_poses(path):
            return with_poses(path)
        if install and not has_colmap():
            install_colmap(self._tell_of_pip)
        refuse_without_colmap()
        for sentence in filter(None, (poses_come_first(path), note_on_unread_poses(path))):
            print(for_terminal(sentence), flush=True)
        self._estimate(path)
        return scene_of(path)

    def _tell_of_pip(self, line: str) -> None:
        self.start_page().show_progress(f"pip: {line}")
        print(for_terminal(line), flush=True)

    def _estimate(self, path: Path) -> None:
        from splatstudio.cli.poses import in_words, print_pose_report, say_what_is_kept, stage_progress
        from splatstudio.gui.estimation import EstimationPage
        from splatstudio.poses.background import BackgroundEstimation

        with stage_progress() as show:

            def follow(progress: PoseProgress) -> None:
                show(progress)
                if isinstance(self.page, StartPage):
                    self.page.show_progress(in_words(progress))

            estimation = BackgroundEstimation(path, on_progress=follow)
            if isinstance(self.page, StartPage):
                self.page.offer_cancel(estimation.end)
            try:
                while not (estimation.wait(_LOOK_SECONDS) or estimation.has_so_far):
                    # Before, there is nothing to see.
                    if estimation.maps and isinstance(self.page, StartPage):
                        self.page = EstimationPage(self.page.address, estimation)
            except BaseException:
                estimation.end()
                say_what_is_kept(path)
                raise
        if not estimation.is_over:
            self.estimation = estimation
        if estimation.has_so_far and (so_far := estimation.store.report()) is not None and self.estimation:
            print_pose_report(so_far)
            return
        if estimation.error is not None:
            raise estimation.error
        if estimation.report is None:
            raise ValueError(
                f"the pose estimation of {path} was stopped; finished work is kept: open it again to continue"
            )
        print_pose_report(estimation.report)


def run_with_start_page(studio: Studio, asked: Mapping[str, Any]) -> None:
    """Serve a studio, and whenever its user goes back to the start page that, and what is chosen there.

    `asked` are the further arguments of `open_studio`: what the first studio was opened with, but its folder.
    """
    others = {**asked, "run_dir": None}  # which was named for the first one alone
    studio.offer_home()
    while (address := run_until_closed(studio, asked["devices"])) is not None:
        studio = studio_of_choice(address, browser=False, train=False, **others)
        studio.offer_home()


def run_until_closed(studio: Studio, devices: DeviceOptions) -> TakenOver | None:
    """Serve a studio until it is ended; where photos join, another one with them takes its place.

    Returns the address at which the start page is wanted next, None where the user has ended all.
    """
    from splatstudio.checkpoints.checkpoint import newest_known_checkpoint
    from splatstudio.gui.app import open_studio

    while studio.run_forever():
        project = studio.controller.project
        assert project.scene is not None and project.run_dir is not None, "it has photos"
        begun = newest_known_checkpoint(project.run_dir) is not None
        has_home = studio.has_home
        studio = open_studio(
            project.run_dir if begun else project.scene.path,
            network=studio.address,
            train=studio.goes_on,
            browser=False,
            config=project.config,
            given=() if begun else project.given,
            devices=devices,
        )
        if has_home:
            studio.offer_home()
    return studio.address if studio.goes_home else None


def _installable(error: Exception) -> bool:
    return isinstance(error, ColmapMissing) and error.can_install


def note_opened(path: Path) -> None:
    """Put what was opened on the list of the start page; where that is not possible the terminal tells."""
    if problem := remember(path):
        print(for_terminal(problem), flush=True)


def start_content(named: Iterable[Path] = ()) -> StartContent:
    """Return what the start page offers: runs below the current folder, what was opened last, the demo.

    The folders of the second list may be browsed wherever they lie, and so may those in `named`.
    """
    runs = list(_runs())
    known = {entry.path.resolve() for entry in runs} | {demo_scene().resolve()}
    others = [path for path in recent_paths() if path.resolve() not in known][:MOST_RECENT]
    recent = [_opened_before(path) for path in others]
    lists = [("Runs in this folder", runs), ("Opened before", recent)]
    return StartContent(lists, demo_scene(), Path.cwd(), (*named, *recent_paths()))


def _opened_before(path: Path) -> Entry:
    is_run = os.path.exists(path / "run.json")
    return Entry(path, figures_of_run(path) if is_run else "", is_run and not path.is_symlink())


def _runs() -> Iterator[Entry]:
    files = sorted(filter(Path.exists, RUNS.glob("*/run.json")), key=os.path.getmtime, reverse=True)
    for folder in [file.parent for file in files][:MOST_RUNS]:
        try:
            run = Run.open(folder)
            begun = datetime.fromtimestamp((folder / "run.json").stat().st_mtime)
            detail = f"{figures_of_run(folder)} · {run.scene_path}, begun {begun:%Y-%m-%d %H:%M}"
            # A link is neither renamed nor deleted.
            yield Entry(folder, detail, is_run=not folder.is_symlink())
        except (ValueError, OSError) as error:  # it is told here, and the others are offered
            yield Entry(folder, in_words(error), is_run=not folder.is_symlink())
