"""`splatstudio mesh`: a table or JSON, a report beside the file, and one sentence where it cannot be made."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import CommandLine, CommandStreams

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
    assert code == 0 and f"{report['triangles']:,}" in told and "Seen by 3 photographs" in told
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


def test_several_processes_do_not_write_one_file(
    run: Path, tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = {
        "TORCHELASTIC_RUN_ID": "none",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
    }
    for name, value in (launcher | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}).items():
        monkeypatch.setenv(name, value)
    code, told = command("mesh", run, "-o", tmp_path / "model.glb")
    assert code == 2 and "a mesh is made by one process" in told
    assert list(tmp_path.iterdir()) == []


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
