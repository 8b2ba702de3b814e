"""A disk that is really full: a small file system of its own, mounted for a test and gone with it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from blob_models import blobs

from splatstudio.checkpoints.checkpoint import checkpoint_folders, load_checkpoint
from splatstudio.files.run import Run
from splatstudio.formats.ply import write_ply

# A tmpfs of $1 bytes on the folder $2; what it holds at the end is copied to $3. The rest is the command.
IN_A_SMALL_DISK = """
mount -t tmpfs -o size="$1" tmpfs "$2" || exit 99
disk="$2" kept="$3"
shift 3
"$@"
code=$?
cp -a "$disk/." "$kept"
exit $code
"""
FILL = """
import errno, os
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
"""
TRAIN = f"""{FILL}
import sys
from contextlib import closing
from pathlib import Path
from splatstudio.settings.config import TrainConfig
from splatstudio.files.run import Run
from splatstudio.scene.load import load_scene
from splatstudio.training.session import Session
from splatstudio.training.trainer import Trainer

if sys.argv[3] == "quota":  # then a disk tells of room that is not there
    import shutil
    usage = shutil.disk_usage
    shutil.disk_usage = lambda path: usage("/")
scene, disk = load_scene(sys.argv[1]), Path(sys.argv[2])
folder = disk / "run"
config = TrainConfig(steps=14, save_steps=(2, 4), eval_steps=(), sh_degree=1)
trainer = Trainer(scene, config)
with closing(Session(trainer, Run.create(folder, scene.path, config))) as session:
    while not session.finished:
        if trainer.step == 3:
            session.settle()
            fill(disk, int(sys.argv[4]))
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
EXPORT = f"""{FILL}
import sys
from pathlib import Path
from splatstudio.cli.export import export_model
from splatstudio.formats import FORMATS

disk = Path(sys.argv[2])
fill(disk, 4096)
for form in FORMATS:
    if form.write is not None:
        output = disk / f"model{{form.endings[0]}}"
        try:
            export_model(Path(sys.argv[1]), output)
        except ValueError as error:
            print("refused", form.endings[0], error, flush=True)
        print("left", *sorted(path.name for path in disk.iterdir()), flush=True)
"""


def run_in(tmp_path: Path, num_bytes: int, script: str, *arguments: object) -> tuple[list[str], Path]:
    """Run a script with a disk of that size as its second argument; return its lines and what the disk held.

    Skips where no file system can be mounted.
    """
    if shutil.which("unshare") is None or sys.platform != "linux":
        pytest.skip("a file system of one's own needs Linux and unshare")
    disk, kept = tmp_path / "disk", tmp_path / "kept"
    disk.mkdir()
    kept.mkdir()
    first, *rest = arguments
    command = [sys.executable, "-c", script, str(first), str(disk), *map(str, rest)]
    shell = ["sh", "-c", IN_A_SMALL_DISK, "sh", str(num_bytes), str(disk), str(kept), *command]
    for options in (["--mount"], ["--map-root-user", "--mount"]):  # as root, else as one's own root
        done = subprocess.run(["unshare", *options, *shell], capture_output=True, text=True, timeout=120)
        if done.returncode != 99 and "unshare failed" not in done.stderr:
            break
    else:
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
