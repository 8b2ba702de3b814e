"""Names of files and texts of JSON are shown in the terminal, and never steer it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from scene_builder import tiny_scene, write_transforms
from started_programs import run_program

from splatstudio.error_text import for_terminal
from splatstudio.formats.sog import parsed_description
from splatstudio.scene.load import load_scene

TINY = tiny_scene(3, num_points=4)
CLEARED = "\x1b[2J\x1b]0;mine\x07"  # clears a terminal and gives its window another name


def test_what_steers_a_terminal_is_written_out() -> None:
    assert for_terminal("a\x1b[2J\x00\x7f\x9b\udcff\u202e\r b\n\tc") == (
        "a\\x1b[2J\\x00\\x7f\\x9b\\udcff\\u202e\\r b\n\tc"
    )
    assert for_terminal("schöne Bilder/größe") == "schöne Bilder/größe"


@pytest.mark.parametrize("command", ["info", "train"])
def test_names_reach_the_terminal_as_text(tmp_path: Path, command: str) -> None:
    folder = write_transforms(tmp_path / f"scene{CLEARED}", TINY)
    values = json.loads((folder / "transforms.json").read_text())
    values["frames"][0]["file_path"] = f"{CLEARED}.png"
    (folder / "transforms.json").write_text(json.dumps(values))
    options = ("--steps", "1", "--run", tmp_path / "run") if command == "train" else ()
    ended = run_program("-m", "splatstudio", command, folder, *options)
    assert ended.returncode == 0
    assert "\\x1b[2J" in ended.stdout and not {"\x1b", "\x07"} & set(ended.stdout + ended.stderr)


@pytest.mark.parametrize("name", [b"scene\xff", b"scene\x1b[2J"])
def test_errors_reach_the_terminal_as_text(tmp_path: Path, name: bytes) -> None:
    ended = run_program("-m", "splatstudio", "info", tmp_path / os.fsdecode(name))
    assert ended.returncode == 2 and "error:" in ended.stderr and "Traceback" not in ended.stderr
    assert ("\\udcff" if b"\xff" in name else "\\x1b[2J") in ended.stderr


@pytest.mark.parametrize("value", ["half \ud800", "nul \x00"])
@pytest.mark.parametrize("name", ["file_path", "mask_path", "ply_file_path"])
def test_what_no_file_is_called_is_told(tmp_path: Path, name: str, value: str) -> None:
    folder = write_transforms(tmp_path / "scene", TINY)
    values = json.loads((folder / "transforms.json").read_text())
    (values if name == "ply_file_path" else values["frames"][1])[name] = value
    (folder / "transforms.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=f"has {name} = .*, which no file is called; correct the file"):
        load_scene(folder)


@pytest.mark.parametrize("name", ["\ud800", "a\x00"])
def test_sog_names_no_impossible_file(name: str) -> None:
    numbers = {"mins": [0, 0, 0], "maxs": [1, 1, 1], "files": [name, "b.webp"]}
    others = {part: {"files": ["c.webp"], "codebook": [0.0] * 256} for part in ("scales", "quats", "sh0")}
    meta = {"version": 2, "count": 1, "means": numbers, **others}
    with pytest.raises(ValueError, match="is not the name of a file beside it"):
        parsed_description(Path("a.sog"), json.dumps(meta).encode())
