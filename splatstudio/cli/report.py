"""`splatstudio doctor --report`: what helps to understand a crash, as text to paste into an issue.

It names no path, file, user, machine, address or secret. What replaces them errs on the side of taking too
much: what is left of a sentence tells its kind.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import platform
import re
import socket
from collections.abc import Iterable, Iterator
from importlib import metadata
from pathlib import Path

from splatstudio.cli.overview import version
from splatstudio.error_text import for_terminal, in_words
from splatstudio.files.inputs import open_input
from splatstudio.files.run import Run

MOST_LOG_BYTES = 8000  # of the log's end
PACKAGES = ("numpy", "viser", "nerfview", "websockets", "msgspec", "opencv-python-headless", "av", "pillow")
SAID = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "NCCL_DEBUG")
# Names of folders and users that tell nothing of anybody.
UNTOLD = re.compile(
    "root|user|localhost|home|runs|demo|splatstudio|tmp|work|var|data|mnt|shared", re.IGNORECASE
)

# What stands for a path, as in `File "/srv/me/.venv/lib/python3.11/site-packages/torch/nn/x.py"`.
_OF_PACKAGE = re.compile(r"""[^\s"'()]*/(?:site-packages|dist-packages|lib/python3\.\d+)/([\w./-]+)""")
_OF_OURS = re.compile(r"""[^\s"'()]*/(splatstudio/(?:\w+/)*\w+\.py)""")
_QUOTED = re.compile(r"""(["'])([^"'\n]*/[^"'\n]*)\1""")
_PATH = re.compile(r"(?<![\w<>])[^\s\"'<>(]*/[^\s\"'<>:,;)]*")
_FILE = re.compile(
    r"[\w.-]+\.(jpe?g|png|tiff?|webp|exr|ply|spz|sog|splat|glb|pt|html|mp4|webm|json|bin|txt|zip)\b",
    re.IGNORECASE,
)
_ADDRESS = re.compile(
    r"\b\w+://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b|\[?\b[0-9a-f]*(?::[0-9a-f]*){3,}\b\]?"
)
_SECRET = re.compile(r"(?=[\w-]*[0-9])(?=[\w-]*[a-z])(?=[\w-]*[A-Z])[\w-]{20,}")
_UNITS = re.compile(r"[a-z.]{1,6}/s|1/\d+|[\d,.]+/[\d,.]+|and/or|n/a", re.IGNORECASE)
_KEPT = "\x00"  # before what stays of a path


def crash_report(run_dir: Path | None, findings: Iterable[tuple[str, str, bool]]) -> str:
    """Return the report, with the end of the log of `run_dir`, None: of the newest run below runs/.

    `findings` are the rows of `splatstudio doctor`: a subject, what was found, and whether that is good.
    """
    chosen = newest_run() if run_dir is None else run_dir
    private = private_words(chosen)
    told = [*version().splitlines(), *(_row(*finding) for finding in findings)]
    if chosen is not None:
        told += ["", "The end of the newest run's log:" if run_dir is None else "The end of its log:"]
        told += _log(chosen)
    return "\n".join([*_system(), *(redacted(line, private) for line in told)])


def newest_run() -> Path | None:
    """Return the run below runs/ whose log was written last, None where there is none."""
    logs = [log for log in Path("runs").glob("*/logs/worker.log") if log.is_file()]
    return max(logs, key=lambda log: log.stat().st_mtime).parents[1] if logs else None


def private_words(run_dir: Path | None) -> tuple[str, ...]:
    """Return what a sentence may name of this user, the longest first: folders, names, the machine."""
    folders = [Path.cwd(), Path(os.path.expanduser("~"))]
    if run_dir is not None:
        folders.append(run_dir.resolve())
        with contextlib.suppress(ValueError, OSError):  # then nothing of its scene is known here
            folders.append(Run.open(run_dir).scene_path)
    words = {str(folder) for folder in folders if len(folder.parts) > 1}
    words |= {part for folder in folders for part in folder.parts}
    words |= {socket.gethostname(), os.environ.get("USER", ""), _login()}
    wanted = [word for word in words if len(word) > 2 and not UNTOLD.fullmatch(word)]
    return tuple(sorted(wanted, key=len, reverse=True))


def redacted(line: str, private: Iterable[str] = ()) -> str:
    """Return a line without paths, names of files, addresses, secrets and the `private` words."""
    line = for_terminal(line).replace(_KEPT, "")
    line = _ADDRESS.sub("<address>", line)
    line = _OF_PACKAGE.sub(lambda found: _KEPT + found[1].replace("/", _KEPT), line)
    line = _OF_OURS.sub(lambda found: _KEPT + found[1].replace("/", _KEPT), line)
    line = _QUOTED.sub(r"\1<path>\1", line)
    for word in private:
        line = re.sub(rf"(?<!\w){re.escape(word)}(?!\w)", "<name>", line)
    line = _PATH.sub(lambda found: found[0] if _UNITS.fullmatch(found[0]) else "<path>", line)
    line = _FILE.sub(lambda found: f"<file>.{found[1]}", line)
    line = _SECRET.sub("<secret>", line)
    return re.sub(rf"(?<=\w){_KEPT}", "/", line).replace(_KEPT, "")


def _system() -> Iterator[str]:
    libc = " ".join(platform.libc_ver())
    yield f"Python {platform.python_version()}, {platform.system()} {platform.release()}, {libc}"
    yield f"processor {_processor()}, {os.cpu_count()} cores"
    yield "packages: " + ", ".join(f"{name} {_version_of(name)}" for name in PACKAGES)
    said = [f"{name}={os.environ[name]}" for name in SAID if name in os.environ]
    named = [name for name in os.environ if name.startswith("SPLATSTUDIO_")]
    if said or named:
        yield "environment: " + ", ".join([*said, *(f"{name} is set" for name in named)])


def _row(subject: str, text: str, good: bool) -> str:
    return f"{'ok' if good else '!!'} {subject}: {text}"


def _log(run_dir: Path) -> list[str]:
    """Return the last lines of a run's log, or why they cannot be read."""
    try:
        with open_input(run_dir / "logs" / "worker.log") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - MOST_LOG_BYTES))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError as error:
        return [in_words(error)]
    return lines[1:] if size > MOST_LOG_BYTES else lines


def _processor() -> str:
    try:
        with open_input(Path("/proc/cpuinfo")) as file:
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^model name\s*: (.+)", text, re.MULTILINE)
    flags = [flag for flag in ("avx2", "fma", "avx512f") if re.search(rf"\b{flag}\b", text)]
    name = found[1] if found else platform.machine()
    # Only processors that may have AVX2 lack it.
    return f"{name} ({' '.join(flags) or 'no AVX2'})" if platform.machine() in ("x86_64", "AMD64") else name


def _version_of(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "is missing"


def _login() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user
        return ""
