"""`splatstudio mesh`: a table or JSON, a report beside the file, and one sentence where it cannot be made."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from command_line import CommandLine, CommandStreams
from free_ports import free_port
from started_programs import run_program, start_program

import splatstudio as ss


@pytest.fixture(scope="module")
def run(blob_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a few steps."""
    folder = tmp_path_factory.mktemp("mesh") / "run"
    ss.train(blob_folder, run_dir=folder, steps=60)
    return folder


def test_a_mesh_is_written_with_a_table_and_a_report(run: Path, tmp_path: Path, command: CommandLine) -> None:
    output = tmp_path / "model.obj"
    code, told = command("mesh", run, "-o", output, "--resolution", 48)
    report = json.loads((tmp_path / "model.obj.report.json").read_text())
    assert code == 0 and f"{report['triangles']:,}" in told and "Seen by 3 photos" in told
    assert output.read_text().count("\nf ") == report["triangles"]
    code, told = command("mesh", run, "-o", output)
    assert code == 2 and "is there already" in told
    output.unlink()
    code, told = command("mesh", run, "-o", output)
    assert code == 2 and "model.obj.report.json is there already" in told, "nor is a report written over"
    assert command("mesh", run, "-o", output, "--overwrite", "--mesh-preset", "collision")[0] == 0
    assert json.loads((tmp_path / "model.obj.report.json").read_text())["holes"] == 0


def test_the_report_is_one_json_object(run: Path, tmp_path: Path, command_streams: CommandStreams) -> None:
    code, output, _ = command_streams("mesh", run, "-o", tmp_path / "model.glb", "--resolution", 48, "--json")
    told = json.loads(output)
    written = json.loads((tmp_path / "model.glb.report.json").read_text())
    assert code == 0 and told == {"output": str(tmp_path / "model.glb"), **written}


def launched(rank: int, port: int) -> dict[str, str]:
    """Return the environment of one rank of a torchrun of two."""
    return {
        **os.environ,
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": str(rank),
        "WORLD_SIZE": "2",
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def test_the_ranks_of_a_launcher_make_one_mesh(run: Path, tmp_path: Path) -> None:
    port, output = free_port(), tmp_path / "model.glb"
    words = ("-m", "splatstudio", "mesh", run, "-o", output, "--resolution", 48)
    ranks = [start_program(*words, env=launched(rank, port)) for rank in (0, 1)]
    told = [rank.communicate(timeout=120.0)[0] for rank in ranks]
    assert [rank.wait() for rank in ranks] == [0, 0]
    assert "Seen by 3 photos" in told[0] and "Written to" not in told[1]
    assert output.exists() and (tmp_path / "model.glb.report.json").exists()


def test_processes_of_this_machine_make_the_mesh_of_one(
    run: Path, tmp_path: Path, command: CommandLine
) -> None:
    for name, more in (("one.ply", ()), ("two.ply", ("--ranks", 2))):
        done = run_program("-m", "splatstudio", "mesh", run, "-o", tmp_path / name, "--resolution", 48, *more)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "one.ply").read_bytes() == (tmp_path / "two.ply").read_bytes()
    code, told = command("mesh", run, "-o", tmp_path / "model.glb", "--gpus", "0,1")
    assert code == 2 and "there is no GPU" in told


def test_what_another_process_could_not_read_is_said(run: Path, blob_folder: Path, tmp_path: Path) -> None:
    scene = tmp_path / "scene"
    shutil.copytree(blob_folder, scene)
    second = sorted((scene / "images").iterdir())[1]
    whole = second.read_bytes()
    second.write_bytes(whole[:60] + bytes(40) + whole[100:])  # nothing is lacking, but what it holds is none
    words = ("-m", "splatstudio", "mesh", run, "-o", tmp_path / "model.glb", "--scene", scene)
    done = run_program(*words, "--resolution", 48, "--ranks", 2)
    assert done.returncode == 2 and second.name in done.stderr and "Traceback" not in done.stderr
    assert not list(tmp_path.glob("model*"))


@pytest.mark.parametrize("end", ["Ctrl-C", "a killed process"])
def test_nothing_is_left_of_processes_that_are_ended(run: Path, tmp_path: Path, end: str) -> None:
    temporary = tmp_path / ("temporary" * 6)  # too long a name for the socket of a fork server
    temporary.mkdir()
    words = ("mesh", run, "-o", tmp_path / "model.glb", "--voxel-size", 0.004, "--ranks", 2)
    environment = {**os.environ, "TMPDIR": str(temporary)}
    program = start_program("-m", "splatstudio", *words, env=environment, stderr=subprocess.PIPE)
    told = ""
    while "fusing" not in told:
        told += program.stdout.readline()
        assert program.poll() is None, told
    everyone = psutil.Process(program.pid).children(recursive=True)
    helper = next(process for process in everyone if "spawn_main" in str(process.cmdline()))
    if end == "Ctrl-C":
        program.send_signal(signal.SIGINT)
    else:
        helper.kill()
    _, errors = program.communicate(timeout=60.0)
    assert program.wait() == (130 if end == "Ctrl-C" else 2), errors
    assert "Traceback" not in errors and (end == "Ctrl-C" or "rank 1 was killed" in errors), errors
    assert not psutil.wait_procs(everyone, 10.0)[1], "a process is left"
    assert not list(temporary.iterdir()) and not list(tmp_path.glob("*model*"))


def test_what_cannot_be_made_is_one_sentence(run: Path, tmp_path: Path, command: CommandLine) -> None:
    for arguments, sentence in (
        ((run, "-o", tmp_path / "model.splat"), "a mesh ends in .glb, .obj, .ply or .stl"),
        ((run, "-o", tmp_path / "no" / "model.glb"), "make it first"),
        ((tmp_path, "-o", tmp_path / "model.glb"), "holds no model"),
        ((run, "-o", tmp_path / "model.glb", "--resolution", 3), "--resolution must be 8 to 8192"),
    ):
        code, told = command("mesh", *arguments)
        assert code == 2 and sentence in told, told
    assert list(tmp_path.iterdir()) == []
