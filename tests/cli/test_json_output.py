"""`--json`: one object on standard output and nothing else, by the keys that the guide names."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from command_line import CommandStreams
from started_programs import interrupt_training, start_program

from splatstudio.cli import doctor, train
from splatstudio.cli.doctor import Finding
from splatstudio.cli.json_output import print_json
from splatstudio.models.model import load_model
from splatstudio.runtime.launched import LaunchedRank

ROOT = Path(__file__).parents[2]
DEMO = ROOT / "assets" / "demo"
SMALL = ("--downscale", "8", "--test-every", "16")
TRAIN = ["-m", "splatstudio", "train", str(DEMO), *SMALL, "--json"]


def object_in(output: str) -> dict[str, Any]:
    """Return the one JSON object that a text is; NaN and Infinity are none of JSON's."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    values = json.loads(output, parse_constant=refuse)
    assert isinstance(values, dict)
    return values


def documented(row: str) -> set[str]:
    """Return the keys that the guide names in a row of its table."""
    line = re.search(
        rf"^\| {re.escape(row)} \|(.*)\|$", (ROOT / "docs/guide/python.md").read_text(), re.MULTILINE
    )
    assert line is not None
    return set(re.findall(r"`(\w+)`", line[1]))


SCORES = documented("scores")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """Return a run of 40 steps, what its training printed as JSON, and what it told beside."""
    folder = tmp_path_factory.mktemp("json") / "run"
    steps = ("--steps", "40", "--eval-steps", "30", "--save-steps", "20", "--run", str(folder))
    told = subprocess.run([sys.executable, *TRAIN, *steps], capture_output=True, text=True, timeout=280)
    assert told.returncode == 0, told.stderr
    return folder, object_in(told.stdout), told.stderr


def test_a_training_tells_what_it_came_to(trained: tuple[Path, dict[str, Any], str]) -> None:
    folder, values, notes = trained
    assert values["run"] == str(folder.resolve())
    assert values["checkpoint"] == str(folder.resolve() / "ckpts" / "step_00000040")
    assert (values["steps"], values["planned_steps"], values["stopped"]) == (40, 40, False)
    assert values["splats"] == len(load_model(folder)) and values["seconds"] > 0.0
    scored = json.loads((folder / "eval" / "step_00000040.json").read_text())
    assert values["scores"]["step"] == 40 and values["scores"]["psnr"] == scored["psnr"]
    assert set(values) | {"step"} == documented("`train`")
    assert set(values["scores"]) == SCORES | {"step"}
    assert "Saved " in notes and "See it: splatstudio open" in notes


def test_a_run_with_nothing_to_do_tells_the_same(
    trained: tuple[Path, dict[str, Any], str], command_streams: CommandStreams
) -> None:
    folder, values, _ = trained
    code, output, notes = command_streams("train", folder, "--resume", "--json")
    assert code == 0 and "Nothing to do" in notes
    assert object_in(output) == {**values, "seconds": 0.0}


def test_the_scores_have_all_their_digits(
    trained: tuple[Path, dict[str, Any], str], command_streams: CommandStreams, tmp_path: Path
) -> None:
    asked = ("eval", trained[0], "--json", "--lpips", "--json-file", tmp_path / "scores.json")
    code, output, notes = command_streams(*asked)
    values, in_file = object_in(output), json.loads((tmp_path / "scores.json").read_text())
    assert code == 0 and (values["psnr"], values["ssim"]) == (in_file["psnr"], in_file["ssim"])
    assert values["lpips_vgg"] is None and values["psnr_corrected"] is None
    assert values["step"] == 40 and values["splats"] == in_file["num_gaussians"]
    psnr = [image["psnr"] for image in values["images"]]
    assert sum(psnr) / len(psnr) == pytest.approx(values["psnr"], abs=1e-9)
    assert set(values) == (documented("`eval`") | SCORES) - {"name"}
    assert all(set(image) == SCORES | {"name"} for image in values["images"])
    assert "Written to" in notes and "dB" not in output


def test_info_tells_of_scenes_models_and_runs(
    trained: tuple[Path, dict[str, Any], str], command_streams: CommandStreams, tmp_path: Path
) -> None:
    folder, (kind,) = trained[0], documented("`info` of all") & {"kind"}
    told = {row: documented(f"`info` of {row}") for row in ("a scene", "a model", "a run", "runs")}

    def info(path: Path) -> dict[str, Any]:
        code, output, notes = command_streams("info", path, "--json")
        assert code == 0 and notes == ""
        return object_in(output)

    scene, run, runs = info(DEMO), info(folder), info(folder.parent)
    model = info(folder / "ckpts" / "step_00000040")
    assert [each[kind] for each in (scene, model, run, runs)] == ["scene", "model", "run", "runs"]
    assert (scene["photos"], scene["train"] + scene["test"]) == (48, 48)
    assert scene["sizes_in_files"][0][2] == 48 and scene["radius"] != round(scene["radius"], 4)
    assert set(scene) - {kind} == told["a scene"]
    assert model["splats"] == run["model"]["splats"] == trained[1]["splats"]
    assert set(model) - {kind} == told["a model"]
    assert all(low < high for low, high in zip(model["low"], model["high"], strict=True))
    assert (run["steps"], run["checkpoints"], run["scored_at"]) == (40, [20, 40], 40)
    assert run["psnr"] == trained[1]["scores"]["psnr"] and set(run) - {kind} == told["a run"]
    assert set(run["model"]) < set(model)
    assert [each["path"] for each in runs["runs"]] == [str(folder.resolve())]
    assert set(runs) - {kind} == told["runs"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("info", "no-such-file.ply"), "does not exist"),
        (("info",), "splatstudio info --help explains them"),
        (("eval", DEMO), "holds no model"),
        (("eval", "RUN", "scores.json"), "--json-file scores.json writes them"),
        (("train", DEMO, "--stepz", "3"), "did you mean --steps?"),
        (("train", DEMO, "--resume"), "splatstudio train RUN --resume"),
        (("doctor", "--report"), "omit --json"),
    ],
)
def test_an_error_is_told_to_programs_and_to_people(
    arguments: tuple[object, ...], sentence: str, command_streams: CommandStreams
) -> None:
    code, output, errors = command_streams(*arguments, "--json")
    values = object_in(output)
    assert code == 2 and list(values) == ["error"] and sentence in values["error"]
    assert len(arguments) == 1 or errors == f"error: {values['error']}\n", (
        "the parser tells more of what is missing"
    )


def test_ctrl_c_saves_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    process = start_program(*TRAIN, "--steps", "100000", "--run", folder, stderr=subprocess.PIPE)
    output, notes = interrupt_training(process, folder)
    values = object_in(output)
    assert process.returncode == 130 and values["stopped"] and "Go on with" in notes
    assert 0 < values["steps"] < 100000 and values["scores"] is None
    assert Path(values["checkpoint"]).name == f"step_{values['steps']:08d}"


def test_doctor_tells_numbers_and_the_same_exit_code(
    command_streams: CommandStreams, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        Finding("memory", "1.0 of 2.0 GiB free", values={"free_bytes": 2**30}),
        Finding("GPUs", "none", False),
    ]
    monkeypatch.setattr(doctor, "findings", lambda: iter(rows))
    code, output, notes = command_streams("doctor", "--json")
    values = object_in(output)
    assert code == 1 and notes == "" and values["good"] is False
    assert values["findings"][0] == {
        "subject": "memory",
        "text": "1.0 of 2.0 GiB free",
        "good": True,
        "values": {"free_bytes": 2**30},
    }
    assert documented("`doctor`") == {*values, *values["findings"][0]}


def test_what_has_no_word_in_json_is_null(capsys: pytest.CaptureFixture[str]) -> None:
    values = {"a": math.nan, "b": (1.5, -math.inf), "c": {"path": Path("x\udcff\x1b")}, "d": 0.1 + 0.2}
    print_json(values)
    told = capsys.readouterr().out
    assert object_in(told) == {"a": None, "b": [1.5, None], "c": {"path": "x\udcff\x1b"}, "d": 0.1 + 0.2}
    assert told.isascii() and "\x1b" not in told


def test_what_other_programs_print_meanwhile_is_no_part_of_it() -> None:
    program = (
        "import os, subprocess, sys\n"
        "from splatstudio.cli.json_output import print_json, printed_to_stderr\n"
        "with printed_to_stderr():\n"
        "    print('python')\n"
        "    os.write(1, b'library\\n')\n"
        "    subprocess.run(['echo', 'program'])\n"
        "print_json({'a': 1})"
    )
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert object_in(told.stdout) == {"a": 1}
    assert sorted(told.stderr.split()) == ["library", "program", "python"]


def test_ranks_of_a_launcher_do_not_all_print_one(
    command_streams: CommandStreams, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(train, "launched_rank", lambda _: LaunchedRank(0, 2, 0, 2))
    code, output, _ = command_streams("train", DEMO, "--json", "--run", tmp_path / "run")
    assert code == 2 and "metrics.jsonl" in object_in(output)["error"]
    assert not (tmp_path / "run").exists()
