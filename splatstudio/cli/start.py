"""`splatstudio open` without a path: the start page, and the studio of what is chosen there.

The page is there before torch and viser are loaded, which happens while the user looks at it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from splatstudio.error_text import for_terminal, in_words
from splatstudio.files.recent import recent_paths, remember
from splatstudio.files.run import Run
from splatstudio.gui.server.access import Listen, advice, open_browser
from splatstudio.gui.server.start_page import Entry, StartContent, StartPage, address_of
from splatstudio.scene.demo import STEPS as DEMO_STEPS
from splatstudio.scene.demo import demo_scene
from splatstudio.settings.config import TrainConfig
from splatstudio.settings.setting import typed_path

if TYPE_CHECKING:
    from splatstudio.gui.app import Studio

RUNS = Path("runs")
MOST_RUNS = 8
MOST_RECENT = 8


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

    The page shows how far the camera poses of photographs are that have none yet. `chosen`: what is opened
    first, without being asked for there. `config` are a training's settings, `given` the names of those that
    the user asked for: unless steps are among them, the demo gets its own. `asked` are further arguments of
    `open_studio`. Raises ValueError where the address cannot be used, or `chosen` cannot be opened.
    """
    page = StartPage(listen, start_content())
    if chosen is not None:
        page.choose(chosen)
    try:
        print(f"The studio is open at {page.url}", flush=True)
        for note in advice(listen.host, page.url, page.port, os.environ):
            print(for_terminal(note), flush=True)
        if browser:
            open_browser(page.url)
        from splatstudio.cli.poses import with_poses
        from splatstudio.gui.app import open_studio

        while True:
            request = page.next_request()
            try:
                path = with_poses(typed_path(request.path), page.show_progress)
                short = path == demo_scene() and "steps" not in given
                studio = open_studio(
                    path,
                    network=address_of(page),
                    train=train or request.train,
                    browser=False,
                    config=replace(config, steps=DEMO_STEPS) if short else config,
                    given={*given, "steps"} if short else given,
                    **asked,
                )
                note_opened(path)
                return studio
            except (ValueError, OSError, MemoryError) as error:
                # Without a start page, or where nobody has asked on it, the terminal tells.
                if page.handed_over or chosen is not None:
                    raise
                page.tell(in_words(error))
    finally:
        page.close()


def note_opened(path: Path) -> None:
    """Put what was opened on the list of the start page; where that is not possible the terminal tells."""
    if problem := remember(path):
        print(for_terminal(problem), flush=True)


def start_content() -> StartContent:
    """Return what the start page offers: runs below the current folder, what was opened last, the demo."""
    runs = list(_runs())
    known = {entry.path.resolve() for entry in runs} | {demo_scene().resolve()}
    recent = [Entry(path) for path in recent_paths() if path.resolve() not in known][:MOST_RECENT]
    lists = [("Runs in this folder", runs), ("Opened before", recent)]
    return StartContent(lists, demo_scene(), Path.cwd())


def _runs() -> Iterator[Entry]:
    files = sorted(RUNS.glob("*/run.json"), key=lambda file: file.stat().st_mtime, reverse=True)
    for folder in [file.parent for file in files][:MOST_RUNS]:
        try:
            run = Run.open(folder)
            begun = datetime.fromtimestamp((folder / "run.json").stat().st_mtime)
            yield Entry(folder, f"{run.scene_path}, begun {begun:%Y-%m-%d %H:%M}")
        except (ValueError, OSError) as error:  # it is told here, and the others are offered
            yield Entry(folder, in_words(error))
