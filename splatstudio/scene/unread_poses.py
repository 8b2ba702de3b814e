"""Camera poses of programs whose files are not read: recognized, so that nobody takes them for used.

What is said of an export was checked in the programs' own sources: AliceVision's main_exportColmap.cpp,
OpenMVG's main_openMVG2Colmap.cpp.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from splatstudio.files.inputs import open_input
from splatstudio.scene.layout import MOST_BYTES, NUM_BYTES

MOST_LOOKED_INTO = 8  # of the files that are called alike
MOST_SUBFOLDERS = 100

TO_COLMAP = "to use them, export them as COLMAP with `{}`"
OF_COLMAP = "to use them, open the COLMAP scene that they were made from, if there is one"
TO_CSV = "to use them, export internal and external camera parameters (.csv) from RealityScan"


@dataclass(frozen=True)
class Program:
    """How the files of a program are called and what is in them, in small letters as `fnmatch` has it."""

    name: str
    files: tuple[str, ...]
    mark: bytes = b""  # a regular expression; empty: the name is enough
    advice: str = ""  # how its poses can be used, where that is known
    num_bytes: int = NUM_BYTES  # in which the mark is looked for


PROGRAMS = (
    Program(
        "Meshroom", ("cameras.sfm", "sfm.sfm", "sfm.abc"), advice=TO_COLMAP.format("aliceVision_exportColmap")
    ),
    Program("Meshroom", ("sfm.json",), rb'"poses"', TO_COLMAP.format("aliceVision_exportColmap"), MOST_BYTES),
    Program("OpenMVG", ("sfm_data.bin",), advice=TO_COLMAP.format("openMVG_main_openMVG2Colmap")),
    Program(
        "OpenMVG",
        ("sfm_data.json",),
        rb'"extrinsics"\s*:\s*\[\s*\{',  # empty before the poses are found
        TO_COLMAP.format("openMVG_main_openMVG2Colmap"),
        MOST_BYTES,
    ),
    Program("LLFF", ("poses_bounds.npy",), rb"\A\x93NUMPY", OF_COLMAP),
    Program("NeuS", ("cameras_sphere.npz", "cameras.npz", "cameras_large.npz"), rb"\APK", OF_COLMAP),
    Program("MVSNet", ("*_cam.txt",), rb"\A\s*extrinsic", OF_COLMAP),
    # A drone writes an XMP, too, without these.
    Program("RealityScan", ("*.xmp",), rb"xcr:(Position|Rotation)", TO_CSV),
    Program("Bundler", ("*.out",), rb"\A# Bundle file"),
    Program("VisualSFM", ("*.nvm",), rb"\ANVM_V"),
    Program(
        "Tanks and Temples", ("*.log",), rb"\A\d+[ \t]+\d+[ \t]+\d+[ \t]*\r?\n([-+.\deE]+[ \t]+){3}[-+.\d]"
    ),
    Program("Stray Scanner", ("odometry.csv",), rb"\A\s*timestamp, *frame, *x"),
)


@dataclass(frozen=True)
class UnreadPoses:
    """A file of poses that is not read, and the program that it is of."""

    file: Path
    program: Program

    def told(self, folder: Path) -> str:
        """Return a clause on the poses below `folder`: that they are not read, and how to use them."""
        advice = f"; {self.program.advice}" if self.program.advice else ""
        return f"those of {self.program.name} in {self.file.relative_to(folder)} are not read{advice}"


def unread_poses(path: Path) -> UnreadPoses | None:
    """Return the first file of poses in a folder or a level below, or that at `path`, which is not read."""
    if path.is_file():
        return next((UnreadPoses(path, each) for each in PROGRAMS if _is_of(each, path)), None)
    folders = [path, *_subfolders(path)]
    names = {folder: _names(folder) for folder in folders}
    for program in PROGRAMS:
        for folder in folders:
            called = [folder / name for name in names[folder] if _is_called(program, name)]
            for file in called[:MOST_LOOKED_INTO]:
                if _is_of(program, file):
                    return UnreadPoses(file, program)
    return None


def _is_called(program: Program, name: str) -> bool:
    return any(fnmatchcase(name.lower(), pattern) for pattern in program.files)


def _is_of(program: Program, file: Path) -> bool:
    if not _is_called(program, file.name):
        return False
    try:
        with open_input(file) as opened:
            return re.search(program.mark, opened.read(program.num_bytes)) is not None
    except OSError:
        return False


def _names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name[0] != ".")
    except OSError:  # who opens it says so
        return []


def _subfolders(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            names = sorted(each.name for each in entries if each.is_dir() and each.name[0] != ".")
    except OSError:
        return []
    below = [folder / name for name in names[:MOST_SUBFOLDERS]]
    return [place for place in below if not (place / "run.json").exists()]
