"""A disk that is really full: a small file system of its own, mounted for a test and gone with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from blob_models import blobs
from started_programs import run_program

from splatstudio.checkpoints.checkpoint import checkpoint_folders, load_checkpoint
from splatstudio.files.run import Run
from splatstudio.formats.ply import write_ply

CANNOT_MOUNT = 99
# A tmpfs on a folder that this process alone sees; the program is forked, so it has no second thread yet.
SMALL_DISK = f"""
import ctypes, errno, os, shutil, subprocess, sys
from pathlib import Path

def mount(num_bytes, folder):
    "Mount a disk of that size on a folder: as root, else as one's own root."
    NAMESPACE, USERS, ids = 0x20000, 0x10000000, (os.getuid(), os.getgid())
    unshare = ctypes.CDLL(None).unshare
    if unshare(NAMESPACE) != 0:
        if unshare(NAMESPACE | USERS) != 0:
            sys.exit({CANNOT_MOUNT})
        for name, text in zip(("setgroups", "uid_map", "gid_map"), ("deny", *(f"0 {{i}} 1" for i in ids))):
            Path("/proc/self", name).write_text(text)
    private = ["mount", "--make-rprivate", "/"]
    for command in (private, ["mount", "-t", "tmpfs", "-o", f"size={{num_bytes}}", "tmpfs", str(folder)]):
        if subprocess.run(command).returncode != 0:
            sys.exit({CANNOT_MOUNT})

def fill(folder, spare):
    "Leave `spare` bytes of the disk."
    with open(folder / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError as error:
            assert error.errno == errno.ENOSPC, error
        file.truncate(file.tell() - spare)
    room = os.statvfs(folder)
    assert spare <= room.f_bavail * room.f_frsize <= spare + 8192, (room.f_bavail, room.f_frsize)

num_bytes, disk, kept = int(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
mount(num_bytes, disk)
"""
# What the disk holds is gone with the process.
KEEP = "\nshutil.copytree(disk, kept, dirs_exist_ok=True)\n"
TRAIN = """
from contextlib import closing
from splatstudio.settings.config import TrainConfig
from splatstudio.files.run import Run
from splatstudio.scene.load import load_scene
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

scene, told, spare = load_scene(sys.argv[4]), sys.argv[5], int(sys.argv[6])
if told == "quota":  # then a disk tells of room that is not there
    usage = shutil.disk_usage
    shutil.disk_usage = lambda path: usage("/")
folder = disk / "run"
config = TrainConfig(steps=14, save_steps=(2, 4), eval_steps=(), sh_degree=1)
trainer = Trainer(scene, config)
with closing(Session(trainer, Run.create(folder, scene.path, config))) as session:
    while not session.finished:
        if trainer.step == 3:
            session.settle()
            fill(disk, spare)
        if trainer.step == 12:
            (disk / "filler").unlink()
        advance = session.advance()
        for told in (advance, session.settle()):
            if told.problem:
                print("problem", trainer.step, told.problem, flush=True)
        if 3 <= trainer.step < 12:
            print("left", *sorted(path.name for path in (folder / "ckpts").iterdir()), flush=True)
print("end", trainer.step, flush=True)
"""
EXPORT = """
from splatstudio.cli.export import export_model
from splatstudio.formats import FORMATS

fill(disk, 4096)
for form in FORMATS:
    if form.write is not None:
        output = disk / f"model{form.endings[0]}"
        try:
            export_model(Path(sys.argv[4]), output)
        except ValueError as error:
            print("refused", form.endings[0], error, flush=True)
        print("left", *sorted(path.name for path in disk.iterdir()), flush=True)
"""


def run_in(tmp_path: Path, num_bytes: int, script: str, *arguments: object) -> tuple[list[str], Path]:
    """Run a script with a disk of that size; return its lines and what the disk held.

    Skips where no file system can be mounted.
    """
    if sys.platform != "linux":
        pytest.skip("a file system of one's own needs Linux")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    done = run_program("-c", SMALL_DISK + script + KEEP, num_bytes, disk, kept, *arguments)
    if done.returncode == CANNOT_MOUNT:
        pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines(), kept


@pytest.mark.parametrize(
    ("told", "spare", "reason"),
    [
        ("told", 0, "no checkpoint was written: it needs"),
        ("quota", 0, "No space left on device"),
        ("quota", 8192, "No space left on device"),  # it begins, and breaks off
    ],
)
def test_a_training_goes_on_when_the_disk_is_full(
    tmp_path: Path, blob_folder: Path, told: str, spare: int, reason: str
) -> None:
    lines, kept = run_in(tmp_path, 3_000_000, TRAIN, blob_folder, told, spare)
    problems = [line for line in lines if line.startswith("problem")]
    saving = [line for line in problems if "Step 4 could not be written" in line]
    assert len(saving) == 1 and reason in saving[0], problems
    assert "the training goes on" in saving[0]
    assert {line for line in lines if line.startswith("left")} == {"left step_00000002"}
    assert lines[-1] == "end 14"
    assert [load_checkpoint(folder).step for folder in checkpoint_folders(kept / "run")] == [2, 14]
    assert Run.open(kept / "run").metrics().rows  # readable, whatever could not be added to it


def test_an_export_to_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    write_ply(tmp_path / "a.ply", blobs(num=3000))
    lines, _ = run_in(tmp_path, 500_000, EXPORT, tmp_path / "a.ply")
    refused = [line for line in lines if line.startswith("refused")]
    left = [line for line in lines if line.startswith("left")]
    assert len(left) == len(refused) >= 9, lines
    assert all("No space left on device" in line for line in refused), refused
    assert set(left) == {"left filler"}
