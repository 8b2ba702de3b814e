"""How far a long task is, a button to cancel it, and the download of what it wrote."""

from __future__ import annotations

import html
import io
import zipfile
from pathlib import Path

import viser

from splatstudio.gui.state.tasks import JobBoard, JobStatus, why_ended
from splatstudio.gui.theme import ACCENT, BAD, MUTED, duration, size
from splatstudio.runtime.messages import JobCommand, JobDone, JobFailed
from splatstudio.runtime.tasks import num_bytes

MAX_DOWNLOAD_BYTES = 500_000_000  # viser holds the whole file in memory and so does the browser


class JobBar:
    """The newest task of a kind, below the button that starts it."""

    def __init__(self, gui: viser.GuiApi, board: JobBoard, kind: type[JobCommand]):
        self._board = board
        self._kind = kind
        self._shown: JobStatus | None = None
        self._bar = gui.add_progress_bar(0.0, color=ACCENT, visible=False)
        self._text = gui.add_html("", visible=False)
        self._cancel = gui.add_button(
            "Cancel", color="gray", visible=False, hint="Nothing of the file is kept."
        )
        self._download = gui.add_button(
            "Download", color="gray", visible=False, hint="Sends the file to this browser."
        )
        self._cancel.on_click(lambda _: self._press_cancel())
        self._download.on_click(self._send)

    def refresh(self) -> None:
        """Show the task as it is now."""
        status = self._board.newest(self._kind)
        if status is None or status is self._shown:
            return
        self._shown = status
        running = status.end is None
        done, total = (status.progress.done, status.progress.total) if status.progress else (0, 0)
        self._bar.visible = self._cancel.visible = running
        self._text.visible = True
        if running:
            self._bar.animated = total == 0 or done == total
            self._bar.value = 100.0 * done / total if total else 100.0
        # The end stays to be read by who was not there when it came.
        color = BAD if isinstance(status.end, JobFailed) and not status.ended_by else MUTED
        text = progress_text(status) if running else end_text(status)
        self._text.content = (
            f'<div data-splatstudio="job" style="padding:0 10px;font-size:12px;overflow-wrap:anywhere;'
            f'color:{color}">{html.escape(text)}</div>'
        )
        end = status.end
        # A file of a task before is offered no more: the text above is of this one.
        self._download.visible = isinstance(end, JobDone) and end.num_bytes < MAX_DOWNLOAD_BYTES
        if isinstance(end, JobDone):
            self._download.label = f"Download {end.path.name} ({size(end.num_bytes)})"

    def _press_cancel(self) -> None:
        if self._shown is not None:
            self._board.cancel(self._shown.command.job)

    def _send(self, event: viser.GuiEvent) -> None:
        status = self._shown
        if event.client is not None and status is not None and isinstance(status.end, JobDone):
            download(event.client, status.end.path)


def progress_text(status: JobStatus) -> str:
    """Return how far a task is, in words."""
    progress = status.progress
    if progress is None or progress.total == 0:
        return f"{status.doing} …"
    if progress.done >= progress.total:
        return f"{status.doing}: finishing …"
    text = f"{status.doing}: {progress.done:,} of {progress.total:,}"
    return text if progress.eta_seconds is None else f"{text}, {duration(progress.eta_seconds)} left"


def end_text(status: JobStatus) -> str:
    """Return what became of a task that has ended, in words."""
    end = status.end
    if isinstance(end, JobDone):
        return f"Complete: {end.path} ({size(end.num_bytes)})"
    if status.ended_by:
        return f"{status.doing}: cancelled. {why_ended(status)}"
    if isinstance(end, JobFailed):
        return f"{status.doing} failed: {end.sentence}"
    return f"{status.doing}: cancelled, nothing of it was kept."


def can_be_sent(path: Path) -> bool:
    """Return whether a file or folder is there and small enough to be sent to a browser."""
    try:
        return num_bytes(path) < MAX_DOWNLOAD_BYTES
    except OSError:
        return False


def download(client: viser.ClientHandle, path: Path) -> None:
    """Send a file, or a folder as a .zip, to a browser; say so where it is gone."""
    try:
        if num_bytes(path) >= MAX_DOWNLOAD_BYTES:
            raise OSError(0, "it has become too large to be sent")
        content = _zipped(path) if path.is_dir() else path.read_bytes()
    except OSError as error:
        client.add_notification("Not sent", f"{path}: {error.strerror}", color="red")
        return
    name = f"{path.name}.zip" if path.is_dir() else path.name
    client.send_file_download(name, content, save_immediately=True)


def _zipped(folder: Path) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_STORED) as archive:
        for file in sorted(folder.iterdir()):
            archive.write(file, f"{folder.name}/{file.name}")
    return content.getvalue()
