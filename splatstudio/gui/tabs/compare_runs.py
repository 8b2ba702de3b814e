"""Two runs compared in the Evaluate tab: a table of scores, curves over each other, both models at once."""

from __future__ import annotations

import html
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from splatstudio.checkpoints.catalog import CatalogEntry, entries_of
from splatstudio.evaluation.evaluate import Evaluation
from splatstudio.files.path_words import path_words
from splatstudio.files.run import Run, newest_scores, read_metrics, scene_of, score_files
from splatstudio.gui.panel import Page, Panel, when_user
from splatstudio.gui.state.history import History, history_of, scores_in
from splatstudio.gui.state.status import Notice
from splatstudio.gui.tabs.plots import Plot, PlotLine, axis_ranges, from_zero, joined
from splatstudio.gui.theme import ACCENT, TEST_COLOR, css, note_html
from splatstudio.scene.scene import Scene
from splatstudio.settings.presets import preset_in_words

MAX_RUNS = 12  # in the table
NOBODY = "–"
ELSEWHERE = "Where the scenes' files have other coordinates, the two pictures do not show the same place."
COLUMNS: tuple[tuple[str, Callable[[Evaluation], float | None], str], ...] = (
    ("PSNR", lambda scores: scores.psnr, ".2f"),
    ("SSIM", lambda scores: scores.ssim, ".3f"),
    ("FLIP", lambda scores: scores.flip, ".3f"),
)


@dataclass(frozen=True)
class RunRow:
    """A run in the table: its newest model, and the newest scores that were measured of it."""

    folder: Path
    newest: CatalogEntry | None
    scores: Evaluation | None
    step: int | None  # of the scores, or of the model where there are none
    preset: str = ""  # "" for results of another program


def row_of(folder: Path) -> RunRow:
    """Return what the table says of a run or a folder of results; what cannot be read is left out."""
    newest = next((entry for entry in entries_of(folder) if entry.state == "complete"), None)
    step = None if newest is None else newest.step
    file = newest_scores(folder)
    found = None if file is None else scores_in(file)
    scores, step = (None, step) if found is None else (found[1], found[0])
    return RunRow(folder, newest, scores, step, _scene_and_preset(folder)[1])


def _scene_and_preset(folder: Path) -> tuple[Path | None, str]:
    """Return the scene of a run and its preset in words; None and "" for what is no run, or a damaged one."""
    try:
        file = (folder / "run.json").stat()
        scene, preset = _told_by(folder, file.st_mtime_ns, file.st_size)
        return scene.resolve(), preset
    except (OSError, ValueError):
        return None, ""


@lru_cache(maxsize=4096)  # of all runs of a folder, every three seconds
def _told_by(folder: Path, _changed: int, _size: int) -> tuple[Path, str]:
    run = Run.open(folder)
    return run.scene_path, preset_in_words(run.config)


def runs_html(rows: list[RunRow], own: Path | None, num_more: int = 0) -> str:
    """Return the table of runs as HTML; names are escaped, and the page's own run is marked.

    `num_more` runs are in the folder, too.
    """
    if not rows:
        return note_html("No runs are in this folder.")
    titles = ("Run", "Step", "Splats", *(title for title, _, _ in COLUMNS))
    cells = "".join(f"<b>{title}</b>" for title in titles)
    for row in rows:
        mine = is_same(row.folder, own)
        name = html.escape(row.folder.resolve().name)
        step = "–" if row.step is None else f"{row.step:,}"
        splats = "–" if row.scores is None else f"{row.scores.num_gaussians:,}"
        preset = f" <i>{row.preset}</i>" if row.preset else ""
        cells += f'<span title="{name}"{" class=mine" if mine else ""}>{name}{preset}</span>'
        cells += f"<span>{step}</span><span>{splats}</span>"
        for _, value_of, form in COLUMNS:
            value = None if row.scores is None else value_of(row.scores)
            cells += f"<span>{'–' if value is None or not np.isfinite(value) else format(value, form)}</span>"
    table = f'<div class="ss-runs" data-splatstudio="runs">{cells}</div>'
    if len(rows) == 1:
        return table + note_html(
            "This is the only run here: what it is compared with has to be trained first."
        )
    if num_more:
        first = "the newest, those of this scene first"
        table += note_html(f"{num_more:,} more runs are in this folder: these {len(rows)} are {first}.")
    difference = difference_in(rows)
    return table + (note_html(difference, "warning") if difference else "")


def difference_in(rows: list[RunRow]) -> str:
    """Return in one sentence why the scores of some runs say nothing about the others, "" where all do."""
    known = [row.scores.against for row in rows if row.scores is not None and row.scores.against is not None]
    if len({each.scene for each in known}) > 1:
        return "These runs are of several scenes: only scores on the same photos can be compared."
    sizes = sorted({each.downscale for each in known})
    if len(sizes) > 1:
        named = ", ".join("full size" if size == 1 else f"1/{size}" for size in sizes)
        return f"The photos had several sizes ({named}): only scores on photos of one size can be compared."
    if len(set(known)) > 1:
        return "These runs held out different photos: only scores on the same photos can be compared."
    return ""


def is_same(folder: Path, own: Path | None) -> bool:
    """Return whether a folder is the page's own run."""
    return own is not None and folder.resolve() == own.resolve()


class RunComparison(Panel):
    """The runs of a folder by their scores, and one of them beside that of this page."""

    refresh_seconds = 0.75  # the curves are sent whole
    look_seconds = 3.0

    def __init__(self, page: Page, folders: Callable[[], tuple[Path, ...]]):
        """Compare the runs among `folders()`, the newest first."""
        super().__init__(page)
        self._folders = folders
        self._runs: dict[str, Path] = {}  # by the names that can be chosen
        self._named: tuple[Path, ...] = ()  # wherever it lies
        self._history: tuple[Path, object, History] | None = None  # of the other run, and its file's mark
        own, other = css(ACCENT), css(TEST_COLOR)
        with self.gui.add_folder("Compare runs", expand_by_default=False) as folder:
            self._table = self.gui.add_html("")
            self._other = self.gui.add_dropdown(
                "With", list[str]([NOBODY]), hint="The run that is orange below."
            )
            shows = "The newest model of that run at the left of what is in the view, for all browsers."
            both = self.button("Show both", lambda _: self._show_both(), hint=shows)
            self.keep(both, visible=lambda: bool(self._runs), disabled=lambda: self._chosen() is None)
            self.keep(self._other, visible=lambda: bool(self._runs))
        when_user(self._other, lambda *_: self._read_history())
        lines = [PlotLine("this", own), PlotLine("this, test", own, width=0.0, dots=6.0)]
        lines += [PlotLine("other", other), PlotLine("other, test", other, width=0.0, dots=6.0)]
        self._psnr_lines, self._splat_lines = lines, [lines[0], lines[2]]
        server = page.server
        self._psnr = Plot(server, folder, "PSNR, dB (orange: the other; dots: test)", order=1e6)
        self._splats = Plot(server, folder, "Splats, thousands (orange: the other)", order=1e6 + 1)

    def look(self) -> None:
        """Look at the disk for runs and their scores."""
        own = self.controller.project.run_dir
        scene = None if own is None else scene_of(own)
        found = {folder.resolve(): folder for folder in (*self._named, *self._folders())}
        named = {folder.resolve() for folder in self._named}

        def rank(place: Path) -> tuple[bool, bool, bool]:
            # Runs of the same scene can be compared by their scores.
            other = scene is None or _scene_and_preset(place)[0] != scene
            return not is_same(place, own), place not in named, other

        places = sorted(found, key=rank)
        rows = [row_of(found[place]) for place in places[:MAX_RUNS]]
        self._table.content = runs_html(rows, own, len(places) - len(rows))
        self._runs = {}
        for place in places[:MAX_RUNS]:
            if is_same(place, own):
                continue
            self._runs[str(place) if place.name in self._runs else place.name] = place
        options = (NOBODY, *self._runs)
        if options != self._other.options:
            self._other.options = options
        self._read_history()

    def compare_with(self, run_dir: Path) -> None:
        """Choose a run, which may lie elsewhere, and show both models.

        Raises ValueError where it has none.
        """
        if is_same(run_dir, self.controller.project.run_dir):
            told = path_words(run_dir)
            raise ValueError(f"{told} is the run of this page: choose another one to compare it with.")
        self._named = (run_dir,)
        self.look()
        self._other.value = next(name for name, path in self._runs.items() if is_same(path, run_dir))
        self._read_history()
        self._show_both()

    def refresh(self) -> None:
        """Show both runs' curves."""
        super().refresh()
        chosen = self._history
        if chosen is None:
            self._psnr.remove()
            self._splats.remove()
            return
        own, other = self.controller.history, chosen[2]
        steps, *values = joined([own.train_psnr, own.test_psnr, other.train_psnr, other.test_psnr])
        if len(steps) > 1:
            data = (steps, *values)
            self._psnr.show(data, self._psnr_lines, axis_ranges(data, 5.0), "step")
        steps, *values = joined([own.num_gaussians, other.num_gaussians])
        if len(steps) > 1:
            data = (steps, *(1e-3 * row for row in values))
            self._splats.show(data, self._splat_lines, from_zero(data), "step")

    def _chosen(self) -> Path | None:
        return self._runs.get(self._other.value)

    def _read_history(self) -> None:
        """Read the curves of the chosen run again where they have grown."""
        folder = self._chosen()
        if folder is None:
            self._history = None
            return
        try:
            stat = (folder / "metrics.jsonl").stat()
        except OSError:  # results of another program have no curves
            self._history = (folder, None, History())
            return
        mark = (stat.st_size, stat.st_mtime_ns, len(score_files(folder)))
        if self._history is None or self._history[:2] != (folder, mark):
            self._history = (folder, mark, history_of(folder, read_metrics(folder).rows))

    def _show_both(self) -> None:
        folder = self._chosen()
        if folder is None:
            return
        entry = row_of(folder).newest
        if entry is None:
            told = path_words(folder)
            raise ValueError(f"{told} has no whole model to show: save one there, or choose another run.")
        if entry.is_gsplat and entry.num_ranks > 1:
            told = path_words(entry.path)
            raise ValueError(f"{told} is one rank's part: merge the parts above, and open the result.")
        self.controller.compare_with(entry.path)
        if (told := of_another_scene(self.controller.project.scene, folder)) is not None:
            self.page.notify(told)


def of_another_scene(own: Scene | None, folder: Path) -> Notice | None:
    """Return what to tell where a run shows another scene than the page's own, else None."""
    other = scene_of(folder)
    if own is None or other is None or other == own.path.resolve():
        return None
    return Notice("A model of another scene", f"{path_words(folder)} shows {other.name}. {ELSEWHERE}")
