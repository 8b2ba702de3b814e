"""What the Evaluate tab has a process of its own do: the file that it writes, and what is told of its end."""

from __future__ import annotations

from pathlib import Path

from splatstudio.formats import format_to_write
from splatstudio.formats.free_path import free_path
from splatstudio.gui.state.status import Notice
from splatstudio.runtime.file_tasks import FileTask, TaskEnd
from splatstudio.settings.typed_path import typed_output


def file_to_write(text: str) -> tuple[Path, Path]:
    """Return the file or checkpoint folder that somebody typed, and a name like it that is free.

    Raises ValueError where it has no name or no known ending.
    """
    path = typed_output(text)
    if path.suffix:
        format_to_write(path)
    return path, free_path(path)


def notice_of_end(task: FileTask, end: TaskEnd) -> Notice | None:
    """Return what to tell of the end of a task, None where there is nothing."""
    stays = "" if end.output is None else f"{end.output} is complete and stays."
    if end.cancelled:
        return Notice(f"{task.title}: cancelled", stays or "Nothing of it was kept.")
    if end.error is not None:
        return Notice(f"{task.title}: failed", f"{end.error} {stays}".rstrip(), bad=True)
    if end.scored is not None:
        psnr = end.scored.evaluation.psnr
        title = task.title.replace("Evaluating", "Evaluated")
        return Notice(f"{title}: PSNR {psnr:.2f} dB", str(end.scored.file or ""))
    if end.output is not None:
        splats = f" ({end.num_gaussians:,} splats)" if end.num_gaussians is not None else ""
        text = f"{end.output}. {end.note}" if end.note else str(end.output)
        return Notice(f"Written {end.output.name}{splats}", text, bad=bool(end.note))
    return None


def folder_of_model(path: Path) -> Path:
    """Return the run or the folder of results to which a checkpoint or a file of gsplat's belongs."""
    folder = path.parent
    return folder.parent if folder.name == "ckpts" else folder
