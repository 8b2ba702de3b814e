"""The Log tab: the last lines that the background process printed."""

from __future__ import annotations

import html
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path

import viser

from splatstudio.gui.panel_context import Page, Panel
from splatstudio.gui.state.news import News, NewsItem
from splatstudio.gui.theme import BAD, MUTED

NUM_LINES = 200
NUM_NEWS = 50
NEWS_HEIGHT = "38vh"  # milestones and notices: the log below is short where all goes well
TAIL_BYTES = 64 * 1024
LOOK_SECONDS = 1.0
MAX_DOWNLOAD_BYTES = 50_000_000
_BAD = re.compile(r"(?i:\b(traceback|fatal|killed|failed)\b|(\b|\w)(error|exception)\b)|\bSIG[A-Z]{3,}\b")
_DOUBTFUL = re.compile(r"\b(warn|warning|not saved|refused)\b", re.I)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class LogPanel(Panel):
    """What the studio has told, and the worker's log, followed to its end; errors are red."""

    def __init__(self, page: Page, news: News):
        gui = page.server.gui
        self._controller, self._news, self._num_told = page.controller, news, 0
        self._told = gui.add_html("")
        self._lines = gui.add_html("")
        self._follow = gui.add_checkbox(
            "Follow", True, hint="Off: the text stands still, to be read or copied."
        )
        self._download = gui.add_button("Download the log", color="gray")
        self._download.on_click(self._send)
        self._place = gui.add_html("")
        self._shown: tuple[Path, int, int, bool] | None = None
        self._look_due = 0.0

    def refresh(self) -> None:
        """Show what was told, and read the end of the log again when it has grown."""
        if self._num_told != self._news.num_told:
            self._num_told = self._news.num_told
            self._told.content = news_html(self._news.items[-NUM_NEWS:])
        if time.monotonic() < self._look_due or not self._follow.value:
            return
        self._look_due = time.monotonic() + LOOK_SECONDS
        path = self._controller.log_path
        try:
            found = os.stat(path)
        except OSError:
            self._lines.content = log_html(
                ["The background process has not written anything yet."], with_news=self._num_told > 0
            )
            self._shown = None
            return
        shown = (path, found.st_size, found.st_mtime_ns, self._num_told > 0)
        if shown == self._shown:
            return
        self._shown = shown
        self._lines.content = log_html(tail(path), with_news=self._num_told > 0)
        self._place.content = (
            f'<div style="padding:0 10px;font-size:11px;color:{MUTED};overflow-wrap:anywhere">'
            f"{html.escape(str(path))}</div>"
        )

    def _send(self, event: viser.GuiEvent) -> None:
        path = self._controller.log_path
        if event.client is None or not path.exists():
            return
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_DOWNLOAD_BYTES))
            event.client.send_file_download(path.name, file.read(), save_immediately=True)


def tail(path: Path, num_lines: int = NUM_LINES) -> list[str]:
    """Return the last whole lines of a text file, reading at most TAIL_BYTES of it.

    Raises OSError when it cannot be read.
    """
    with path.open("rb") as file:
        start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
        file.seek(start)
        text = file.read().decode("utf-8", errors="replace")
    lines = _ANSI.sub("", text).splitlines()
    if start > 0:
        lines = lines[1:]  # cut off at its beginning
    # A progress bar writes over its own line: what stood there last is what counts.
    return [line.rpartition("\r")[2] for line in lines[-num_lines:]]


def news_html(items: Sequence[NewsItem]) -> str:
    """Return what was told as a scrolling box that shows its end, nothing for nothing; it is escaped."""
    if not items:
        return ""
    rows = ""
    for item in items:
        color = BAD if item.notice.bad else "#e0e0e0"
        mark = ' data-splatstudio="bad"' if item.notice.bad else ""
        text = f"<br>{html.escape(item.notice.text)}" if item.notice.text else ""
        rows += (
            f'<div{mark} style="margin-top:3px;color:{color}"><span style="color:{MUTED}">'
            f"{item.time:%m-%d %H:%M:%S}</span> {html.escape(item.notice.title)}{text}</div>"
        )
    return (
        '<div data-splatstudio="news" style="display:flex;flex-direction:column-reverse;overflow-y:auto;'
        f"max-height:{NEWS_HEIGHT};margin:4px 10px;font-size:12px;line-height:1.4;"
        f'overflow-wrap:anywhere"><div style="margin-bottom:auto">{rows}</div></div>'
    )


def log_html(lines: list[str], *, with_news: bool = False) -> str:
    """Return lines as a scrolling box that shows its end; the text is escaped, errors are marked.

    The box leaves room for the news above it where there are any.
    """
    above = f"190px - {NEWS_HEIGHT}" if with_news else "190px"
    rows = "".join(f"<div{_style(line)}>{html.escape(line) or '&nbsp;'}</div>" for line in lines)
    # The reversed column keeps the end in sight without a script.
    return (
        '<div data-splatstudio="log" style="display:flex;flex-direction:column-reverse;overflow-y:auto;'
        f"height:calc(100vh - {above});margin:4px 10px 10px 10px;padding:6px 8px;border-radius:6px;"
        'background:rgba(0,0,0,.28);font:11px/1.45 ui-monospace,monospace;overflow-wrap:anywhere">'
        f'<div style="margin-bottom:auto;white-space:pre-wrap">{rows}</div></div>'
    )


def _style(line: str) -> str:
    if _BAD.search(line):
        return ' data-splatstudio="bad" style="color:#ff8a8a"'
    return ' style="color:#e0b040"' if _DOUBTFUL.search(line) else ""
