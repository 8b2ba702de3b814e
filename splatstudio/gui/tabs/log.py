"""The Log tab: what the studio has told, and the last lines that the background process printed."""

from __future__ import annotations

import html
import os
import re
from collections.abc import Sequence
from pathlib import Path

import viser

from splatstudio.files.inputs import open_input
from splatstudio.gui.panel import Page, Panel
from splatstudio.gui.state.tasks import News, NewsItem
from splatstudio.gui.theme import note_html

NUM_LINES = 200
NUM_NEWS = 50
TAIL_BYTES = 64 * 1024
MAX_LOG_BYTES = 50_000_000  # of a download: its end
_BAD = re.compile(r"(?i:\b(traceback|fatal|killed|failed)\b|(\b|\w)(error|exception)\b)|\bSIG[A-Z]{3,}\b")
_DOUBTFUL = re.compile(r"\b(warn|warning|not saved|refused)\b", re.I)
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class LogPanel(Panel):
    """What the studio has told, and the worker's log, followed to its end; errors are red."""

    look_seconds = 1.0

    def __init__(self, page: Page, news: News):
        super().__init__(page)
        self._news = news
        self._told = self.gui.add_html("")
        self._text = self.gui.add_html("")
        self._follow = self.gui.add_checkbox(
            "Follow", True, hint="Off: the text stays still for reading or copying."
        )
        self.button("Download the log", self._send)
        self._place = self.gui.add_html("")
        self._lines: list[str] = []
        self._read: tuple[Path, int, int] | None = None  # which file, as large and as new as it was then

    def look(self) -> None:
        """Read the end of the log again when it has grown."""
        path = self.controller.log_path
        if not self._follow.value:
            return
        try:
            found = os.stat(path)
        except OSError:
            self._lines, self._read = ["The background process has not written anything yet."], None
            return
        read = (path, found.st_size, found.st_mtime_ns)
        if read != self._read:
            self._lines, self._read = tail(path), read

    def refresh(self) -> None:
        """Show what was told, and the lines that were read last."""
        items = self._news.items[-NUM_NEWS:]
        self._told.content = news_html(items)
        self._text.content = log_html(self._lines, with_news=bool(items))
        self._place.content = note_html(str(self._read[0])) if self._read is not None else ""

    def _send(self, client: viser.ClientHandle) -> None:
        path = self.controller.log_path
        if path.exists():
            with open_input(path) as file:
                file.seek(max(0, path.stat().st_size - MAX_LOG_BYTES))
                client.send_file_download(path.name, file.read(), save_immediately=True)


def tail(path: Path) -> list[str]:
    """Return the last NUM_LINES whole lines of a text file, reading at most TAIL_BYTES of it.

    Raises OSError when it cannot be read.
    """
    with open_input(path) as file:
        start = max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES)
        file.seek(start)
        text = file.read().decode("utf-8", errors="replace")
    lines = _ANSI.sub("", text).splitlines()
    if start > 0:
        lines = lines[1:]  # cut off at its beginning
    # A progress bar writes over its own line: what stood there last is what counts.
    return [line.rpartition("\r")[2] for line in lines[-NUM_LINES:]]


def news_html(items: Sequence[NewsItem]) -> str:
    """Return what was told as a scrolling box that shows its end, nothing for nothing; it is escaped."""
    if not items:
        return ""
    rows = ""
    for item in items:
        mark = ' class="ss-bad" data-splatstudio="bad"' if item.notice.bad else ""
        text = f"<br>{html.escape(item.notice.text)}" if item.notice.text else ""
        time = f'<span class="ss-muted">{item.time:%m-%d %H:%M:%S}</span>'
        rows += f"<div{mark}>{time} {html.escape(item.notice.title)}{text}</div>"
    return f'<div class="ss-news" data-splatstudio="news"><div>{rows}</div></div>'


def log_html(lines: Sequence[str], *, with_news: bool = False) -> str:
    """Return lines as a scrolling box that shows its end; the text is escaped, errors are marked.

    The box leaves room for the news above it where there are any.
    """
    rows = "".join(f"<div{_mark(line)}>{html.escape(line) or '&nbsp;'}</div>" for line in lines)
    below = " below-news" if with_news else ""
    return f'<div class="ss-log{below}" data-splatstudio="log"><div>{rows}</div></div>'


def _mark(line: str) -> str:
    if _BAD.search(line):
        return ' class="ss-bad" data-splatstudio="bad"'
    return ' class="ss-warning"' if _DOUBTFUL.search(line) else ""
