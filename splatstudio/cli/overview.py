"""What `splatstudio --help` and `--version` say, without loading what the commands need."""

from __future__ import annotations

import shutil
import sys
import textwrap

from splatstudio.kernels.installed import installed_torch, kernel_files

# The first sentence of each command's own help; its module has the rest.
SUMMARIES = {
    "open": "Open a scene folder, photos, a video, a file of splats or a run folder in the studio.",
    "demo": "Train the demo scene, which comes with splatstudio, in the studio.",
    "poses": "Estimate the camera poses of photos or of a video, and report how good they are.",
    "train": "Train a model of a scene, without the studio. Ctrl-C saves and says where.",
    "eval": "Compare a run, a checkpoint or a file of splats with the scene's test photos.",
    "merge": "Merge the files that the ranks of a training on several GPUs wrote into one model.",
    "export": "Write a model for other programs, in the coordinates of the scene's files or upright.",
    "mesh": "Make a triangle mesh of a model, and report how good it is.",
    "render": "Render a camera path as a video, or as PNG frames. Ctrl-C cancels and removes partial output.",
    "info": "Show what a scene folder, a file of splats, a checkpoint, a run or a folder of runs contains.",
    "doctor": "Check this machine and the installation.",
    "attach": (
        "Open the studio for a training that torchrun or Slurm started elsewhere. It continues when you"
        " leave."
    ),
    "completion": "Print a script that makes a shell complete commands, options, presets and paths.",
}
ABOUT = (
    "The desktop studio for 3D Gaussian Splatting, as in: splatstudio open SCENE. Every command explains"
    " itself with --help, and --help-all lists all of its settings; splatstudio --version shows the release,"
    " the kernels and torch."
)
MAX_WIDTH = 100  # columns


def answer(arguments: list[str]) -> str | None:
    """Return what to print where the arguments ask for the overview or the version; None: a command."""
    if arguments in ([], ["--help"], ["-h"], ["help"]):
        return overview(min(shutil.get_terminal_size().columns, MAX_WIDTH))
    if arguments in (["--version"], ["-V"], ["version"]):
        return version()
    return None


def say_starting() -> None:
    """Say at once, to who waits at a terminal, that it is under way: torch takes seconds to load."""
    if sys.stdout.isatty():
        from importlib import metadata

        print(f"splatstudio {metadata.version('splatstudio')}: starting ...", flush=True)


def overview(width: int) -> str:
    """Return the list of all commands, in lines of at most `width` columns."""
    indent = 2 + max(map(len, SUMMARIES)) + 2
    rows = [
        textwrap.fill(
            f"  {name:<{indent - 4}}  {summary}", max(width, 40), subsequent_indent=" " * indent, tabsize=1
        )
        for name, summary in SUMMARIES.items()
    ]
    usage = "usage: splatstudio [-h] [--version] COMMAND ..."
    return "\n".join([usage, "", textwrap.fill(ABOUT, max(width, 40)), "", "commands:", *rows])


def version() -> str:
    """Return the release, its kernels and the torch beside it, a line each."""
    from importlib import metadata  # which takes as long to load as all else

    return f"splatstudio {metadata.version('splatstudio')}\ntorch {_torch()}\nkernels: {_kernels()}"


def _torch() -> str:
    found = installed_torch()
    if found is None:
        return "is not installed"
    return f"{found.release}, {f'CUDA {found.cuda}' if found.cuda else 'without CUDA'}"


def _kernels() -> str:
    files = kernel_files()
    if files is None:
        return "not built"
    return "CPU and CUDA" if files.without_cuda is None else f"CPU; no CUDA: {files.without_cuda}"
