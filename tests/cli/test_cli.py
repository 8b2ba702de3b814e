"""The command line on the bundled scene: train, interrupt, resume, eval, export, info, and mistakes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from command_line import CommandLine
from started_programs import interrupt_training, start_program

from splatstudio.checkpoints.checkpoint import load_checkpoint
from splatstudio.cli import main as cli
from splatstudio.cli import train
from splatstudio.cli.info import run_values
from splatstudio.cli.main import main
from splatstudio.cli.overview import SUMMARIES, overview, say_starting
from splatstudio.devices.monitor import Driver
from splatstudio.distributed import rank_devices
from splatstudio.evaluation.evaluate import Evaluation, ImageScore, write_evaluation
from splatstudio.evaluation.lpips import NOT_FOUND, load_lpips, short_notes
from splatstudio.files import run as run_files
from splatstudio.files.run import Run, RunLock
from splatstudio.formats.ply import read_ply
from splatstudio.gaussians.transform import transformed
from splatstudio.kernels import ops
from splatstudio.models.model import load_model
from splatstudio.runtime import supervisor
from splatstudio.runtime.messages import Event, StateChanged
from splatstudio.runtime.supervisor import WorkerClient
from splatstudio.settings.config import TrainConfig
from splatstudio.training.time_plan import StepTimes

DEMO = Path(__file__).parents[2] / "assets" / "demo"
SMALL = ("--downscale", "8", "--test-every", "16")


def no_driver() -> Driver:
    raise ValueError("none seen")


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a run of 60 steps on the demo scene at 80 x 50 pixels."""
    folder = tmp_path_factory.mktemp("cli") / "run"
    arguments = [
        "train",
        DEMO,
        "--run",
        folder,
        "--steps",
        "60",
        *SMALL,
        "--eval-steps",
        "30",
        "--save-steps",
        "30",
    ]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as stop:
        patch.setattr(sys, "argv", ["splatstudio", *map(str, arguments)])
        main()
    assert not stop.value.code
    return folder


def test_train_writes_what_was_asked_for(run_dir: Path) -> None:
    assert sorted(path.name for path in (run_dir / "ckpts").iterdir()) == ["step_00000030", "step_00000060"]
    rows = Run.open(run_dir).metrics().rows
    losses = [row["loss"] for row in rows if "loss" in row]
    scores = {row["step"]: row["test_psnr"] for row in rows if "test_psnr" in row}
    assert losses[-1] < 0.8 * losses[0]
    assert set(scores) == {30, 60} and scores[60] > scores[30]


def test_eval_of_a_run_equals_eval_of_its_export(run_dir: Path, tmp_path: Path, command: CommandLine) -> None:
    exported = tmp_path / "model.ply"
    assert command("export", run_dir, "-o", exported)[0] == 0
    assert command("eval", run_dir, "--json-file", tmp_path / "of_run.json")[0] == 0
    of_ply = ("eval", exported, "--scene", DEMO, *SMALL, "--json-file", tmp_path / "of_ply.json")
    assert command(*of_ply)[0] == 0
    run_scores, ply_scores = (
        json.loads((tmp_path / name).read_text()) for name in ("of_run.json", "of_ply.json")
    )
    assert run_scores["num_gaussians"] == ply_scores["num_gaussians"] == len(read_ply(exported))
    assert run_scores["psnr"] == pytest.approx(ply_scores["psnr"], abs=0.01)
    assert run_scores["psnr"] > 12.0
    assert [image["name"] for image in run_scores["images"]] == [
        image["name"] for image in ply_scores["images"]
    ]
    in_run = json.loads((run_dir / "eval" / "step_00000060.json").read_text())
    assert in_run["psnr"] == run_scores["psnr"] and in_run["step"] == 60
    assert (run_dir / "eval" / "step_00000060.csv").read_text().startswith("name,psnr,ssim")


def test_eval_refuses_a_part_alone_but_where_asked_and_merges(
    run_dir: Path, tmp_path: Path, command: CommandLine
) -> None:
    gaussians = load_model(run_dir).gaussians
    transform = load_model(run_dir).transform
    for rank in range(2):
        part = transformed(gaussians[rank::2], np.linalg.inv(transform))
        content = {"step": 60, "splats": dict(part.tensors())}
        torch.save(content, tmp_path / f"ckpt_60_rank{rank}.pt")
    part = tmp_path / "ckpt_60_rank0.pt"
    arguments = ("eval", part, "--scene", DEMO, *SMALL, "--lpips", "--json-file", tmp_path / "scores.json")
    code, output = command(*arguments)
    assert code == 2 and "is rank 0 of 2: about half of the scene" in output and "Add --merge to" in output
    assert not (tmp_path / "scores.json").exists()
    code, output = command(*arguments, "--alone")
    assert code == 0 and "is rank 0 of 2" in output
    alone = json.loads((tmp_path / "scores.json").read_text())
    code, output = command(*arguments, "--merge", "--overwrite", "--csv", tmp_path / "scores.csv")
    assert code == 0 and "about half" not in output
    whole = json.loads((tmp_path / "scores.json").read_text())
    assert whole["num_gaussians"] == len(gaussians) and whole["psnr"] > alone["psnr"] + 1.0
    assert len((tmp_path / "scores.csv").read_text().splitlines()) == 5  # heading, three photos, mean
    for arguments in (("info", part), ("export", part, "-o", tmp_path / "half.ply")):
        code, output = command(*arguments)
        assert code == 0 and "merge with ckpt_60_rank1.pt (found beside it)? Use splatstudio merge." in output
    code, output = command("eval", tmp_path)
    assert code == 2 and "splatstudio merge" in output


def test_resume_goes_on_to_a_later_step(
    run_dir: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "has_cuda_kernels", lambda: False)
    monkeypatch.setattr(rank_devices, "read_driver", no_driver)
    monkeypatch.setattr(rank_devices, "has_nvidia_card", lambda: True)
    code, output = command("train", DEMO, "--run", run_dir, "--resume", "--steps", "70")
    assert output.rstrip().endswith(f"See it: splatstudio open {run_dir}")
    assert code == 0 and "Resuming at step 60" in output
    assert "CPU: an NVIDIA card is built in, but its driver does not answer" in output
    checkpoint = load_checkpoint(run_dir / "ckpts" / "step_00000070")
    assert (checkpoint.config.downscale, checkpoint.config.test_every) == (8, 16), "the run's own settings"
    # The run's length is kept when no other is asked for: there is nothing left to do. It knows its scene.
    code, output = command("train", run_dir, "--resume")
    assert code == 0 and "Nothing to do" in output and f"Resuming at step 70 from {run_dir}" in output
    # A training that was killed before it could save has told its metrics how far it was to go.
    with open(run_dir / "metrics.jsonl", "a") as file:
        file.write(json.dumps({"step": 70, "setting": "steps", "value": 72}) + "\n")
    code, output = command("train", run_dir, "--resume")
    assert code == 0 and (run_dir / "ckpts" / "step_00000072").is_dir(), output
    assert Run.open(run_dir).planned_steps == 72
    code, output = command("train", run_dir)
    assert code == 2 and "is a run, not a scene: add --resume" in output
    code, output = command("train", run_dir, "--resume", "--run", run_dir.with_name("other"))
    assert code == 2 and "is a run, not a scene: omit --run to go on with it" in output
    code, output = command("train", run_dir, "--resume", "--run", run_dir)
    assert code == 0 and "Nothing to do" in output


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ("../nowhere", "does not exist; name the folder of the run"),
        ("ckpts", "ckpts lies in a run: splatstudio train {run} --resume goes on with it"),
        (DEMO, "is no run: name the run to go on with, as in splatstudio train RUN --resume"),
    ],
)
def test_what_is_no_run_cannot_be_resumed(
    run_dir: Path, command: CommandLine, named: str | Path, told: str
) -> None:
    code, output = command("train", run_dir / named, "--resume")
    assert code == 2 and told.format(run=run_dir) in output


def test_resume_refuses_other_settings(run_dir: Path, command: CommandLine) -> None:
    code, output = command("train", DEMO, "--run", run_dir, "--resume", "--test-every", "5")
    assert code == 2 and "test_every" in output
    code, output = command("train", DEMO, "--run", run_dir, "--resume", "--optim.means-lr", "0.1")
    assert code == 2 and "optim.means_lr" in output


def test_a_run_that_is_trained_already_is_refused_and_one_that_was_left_is_taken_over(
    run_dir: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_files, "PATIENCE_SECONDS", 0.1)
    arguments = ("train", DEMO, "--run", run_dir, "--resume", "--steps", "80")
    lock = RunLock(run_dir)
    code, output = command(*arguments)
    assert code == 2 and f"is in use by process {os.getpid()}" in output
    left = lock.path.read_text()
    lock.release()
    lock.path.write_text(left)  # as after a kill
    code, output = command(*arguments, "--eval-steps", "75", "--save-steps", "78")
    assert code == 0 and "left this run without ending properly" in output
    assert "step 75: PSNR" in output and "step_00000078" in output, "other steps may be asked for"
    assert not lock.path.exists()


def test_a_training_that_diverges_ends_with_the_reason_and_what_is_safe(
    tmp_path: Path, command: CommandLine
) -> None:
    folder = tmp_path / "run"
    arguments = ("train", DEMO, *SMALL, "--run", folder, "--steps", "120", "--save-steps", "15")
    dying = ("--init-opacity", "0.002", "--optim.opacities-lr", "0", "--densify.every", "10")
    code, output = command(*arguments, *dying)
    newest = folder / "ckpts" / "step_00000015"
    assert code == 2 and f"The newest good checkpoint is {newest}" in output, output
    assert "error: All splats became transparent" in output and "Traceback" not in output


def test_a_disk_that_refuses_at_the_end_is_tried_again(
    tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    monkeypatch.setattr(supervisor, "RETRY_SECONDS", 0.5)
    told: list[str] = []

    def make_room(self: WorkerClient, event: Event) -> None:
        if isinstance(event, StateChanged):
            told.append(event.state)
            if event.state == "training":
                (folder / "ckpts").touch()  # in the way of the folder
            elif event.state == "paused" and told.count("paused") == 2:
                os.kill(os.getpid(), signal.SIGTERM)  # room may come before it is killed
            elif event.state == "paused" and told.count("paused") == 3:
                (folder / "ckpts").unlink(missing_ok=True)
        receive(self, event)

    receive = WorkerClient.receive
    monkeypatch.setattr(WorkerClient, "receive", make_room)
    code, output = command("train", DEMO, *SMALL, "--run", folder, "--steps", "60")
    assert told[-2:] == ["finished", "ended"], told
    assert code == 0 and output.count("Not saved: ") == 1 and "It is tried again every" in output
    assert "SIGTERM came. Saving is tried at once, and again ... (Ctrl-C ends at once)" in output
    saved = folder / "ckpts" / "step_00000060"
    assert saved.is_dir() and "60 steps in" in output


def test_a_run_folder_that_holds_something_is_refused(run_dir: Path, command: CommandLine) -> None:
    code, output = command("train", DEMO, "--run", run_dir)
    assert code == 2 and f"the run folder {run_dir} is not empty" in output


def test_some_minutes_are_planned_for_this_machine(
    tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch, blob_folder: Path
) -> None:
    slow = StepTimes(step=0.05, pixel=0.0, splat=0.0)
    monkeypatch.setattr(train, "measured_times", lambda device: slow)
    # All of its steps are trained: of small photos.
    some_minutes = ("--run", tmp_path / "run", "--minutes", "0.8", "--sh-degree", "0")
    code, output = command("train", blob_folder, *some_minutes)
    assert code == 0
    assert re.search(r"Takes about (\d+ seconds|a minute): fast, full size, 500 steps\.", output)
    config = Run.open(tmp_path / "run").config
    assert (config.strategy, config.steps, config.sh_degree) == ("fast", 500, 0)
    for refused in (("--steps", "5"), ("--preset", "mcmc"), ("--ranks", "2"), ("--resume",)):
        code, output = command("train", DEMO, "--run", tmp_path / "other", "--minutes", "5", *refused)
        assert code == 2 and "--minutes" in output and not (tmp_path / "other").exists()
    code, output = command("train", DEMO, "--run", tmp_path / "other", "--minutes", "0")
    assert code == 2 and "--minutes is 0, but must be more than 0" in output


def test_a_long_training_names_a_shorter_one(
    tmp_path: Path, command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "measured_times", lambda device: StepTimes(0.5, 0.0, 0.0))
    monkeypatch.setattr(train, "_Attendance", lambda *asked: SimpleNamespace(run=lambda: 0))
    code, output = command("train", DEMO, "--run", tmp_path / "run")
    assert (
        code == 0
        and "This takes about 5 hours here; --minutes 10 is about 7 minutes: fast, full size, 700 steps."
        in output
    )
    code, output = command("train", DEMO, "--run", tmp_path / "run", "--steps", "20000")
    assert code == 0 and "--minutes" not in output, "somebody knows what to train"


def test_ctrl_c_saves_and_says_where(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    arguments = ["train", DEMO, "--run", folder, "--steps", "100000", *SMALL]
    environment = {**os.environ, "COLUMNS": "500", "PYTHONUNBUFFERED": "1"}
    process = start_program("-m", "splatstudio", *arguments, env=environment)
    output, _ = interrupt_training(process, folder)
    assert process.returncode == 130
    saved = re.search(r"Saved (\S+step_\d+)", output)
    assert saved and (Path(saved.group(1)) / "manifest.json").exists(), output
    assert f"Go on with: splatstudio train {folder} --resume" in output


def test_a_checkpoint_alone_knows_its_scene(run_dir: Path, tmp_path: Path, command: CommandLine) -> None:
    shutil.copytree(run_dir / "ckpts" / "step_00000060", tmp_path / "copy")
    code, output = command("eval", tmp_path / "copy")
    assert code == 0 and "3 test photos" in output


def test_info_tells_scene_run_and_model_apart(run_dir: Path, command: CommandLine) -> None:
    code, output = command("info", DEMO)
    assert code == 0 and "COLMAP" in output and "48" in output
    code, output = command("info", run_dir)
    assert code == 0 and "splats" in output


def test_info_says_where_a_model_lies_as_a_crop_takes_it(
    run_dir: Path, tmp_path: Path, command: CommandLine
) -> None:
    command("export", run_dir, "-o", tmp_path / "a.ply")
    told = [command("info", path)[1] for path in (run_dir, tmp_path / "a.ply")]
    places = [re.search(r"98 % of the centers lie between \((.*)\) and \((.*)\)", text) for text in told]
    assert places[0] is not None and places[1] is not None
    numbers = [[float(n) for text in place.groups() for n in text.split(", ")] for place in places if place]
    assert numbers[0] == pytest.approx(numbers[1], abs=0.02)


def test_doctor_finds_a_working_installation(command: CommandLine) -> None:
    _, output = command("doctor")
    assert re.search(r"ok\s+CPU kernels", output) and re.search(r"ok\s+self test", output), output
    assert re.search(r"trains on\s+[CG]PU: ", output)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("train", "no-such-folder"), "no-such-folder"),
        (("train", DEMO, "--steps", "0"), "setting steps is 0"),
        (("train", DEMO, "--optim.means-lr", "nan"), "setting optim.means_lr is nan"),
        (("train", DEMO, "--resume"), "splatstudio train RUN --resume"),
        (("eval", DEMO), "holds no model"),
        (("export", DEMO, "-o", "model.obj"), ".ply"),
        (("info", "no-such-file.ply"), "does not exist"),
    ],
)
def test_mistakes_give_one_sentence(
    arguments: tuple[object, ...], sentence: str, command: CommandLine
) -> None:
    code, output = command(*arguments)
    assert code == 2 and sentence in output
    assert "Traceback" not in output and output.startswith("error: ") and output.count("\n") == 1


# Runs a command at a terminal up to its first line, and tells whether torch had been loaded by then.
UP_TO_THE_FIRST_LINE = """
import io, os, sys

class Terminal(io.StringIO):
    def isatty(self):
        return True
    def write(self, text):
        os.write(2, f"{'torch' in sys.modules}: {text}".encode())
        os._exit(0)

sys.stdout = Terminal()
sys.argv = ["splatstudio", *sys.argv[1:]]
from splatstudio.cli.main import main
from splatstudio.cli.overview import SUMMARIES, overview
main()
"""


@pytest.mark.parametrize("arguments", [("open", "nowhere"), ("--help",)])
def test_the_first_line_comes_before_torch_is_loaded(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-c", UP_TO_THE_FIRST_LINE, *arguments]
    told = subprocess.run(command, capture_output=True, text=True, timeout=250).stderr
    starting = f"False: splatstudio {version('splatstudio')}: starting ..."
    assert told.startswith("False: ") and (told.strip() == starting) == (arguments[0] == "open")


def test_ctrl_c_while_it_loads_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "tyro.py").write_text("raise KeyboardInterrupt")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "splatstudio", "train", "--help"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_what_is_piped_on_has_no_such_line(capsys: pytest.CaptureFixture[str]) -> None:
    say_starting()
    assert capsys.readouterr().out == ""


def test_info_of_a_run_says_how_far_it_has_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Run.create(tmp_path / "run", tmp_path / "scene", TrainConfig(steps=2000, downscale=4))
    run.append_metrics({"step": 1200, "test_psnr": 27.5, "test_ssim": 0.8})
    run.append_metrics({"step": 1210, "setting": "steps", "value": 3000})
    monkeypatch.setattr("sys.argv", ["splatstudio", "info", str(run.path)])
    with pytest.raises(SystemExit) as ended:
        main()
    told = capsys.readouterr().out
    assert ended.value.code == 0
    for text in (
        str(tmp_path / "scene"),
        "Preset default",
        "1,210 of 3,000, none saved",
        "27.50 dB at step 1,200",
        "none yet",
        "1/4",
    ):
        assert "".join(text.split()) in "".join(told.split()), "whole, however narrow the terminal is"
    score = ImageScore("a.png", 31.25, 0.9)
    write_evaluation(run.path, 1210, Evaluation(31.25, 0.9, 4321, (score,), 0.01))
    (run.path / "ckpts" / "step_00001200").mkdir(parents=True)
    values = run_values(run)
    assert (values["scored_at"], values["psnr"]) == (1210, 31.25), "measured after the training's own"
    assert (values["steps"], values["saved_step"]) == (1210, 1200)
    for damage in ('"step": null', '"step": 1300, "psnr": "x"', '"step": 1300, "psnr": Infinity'):
        (run.path / "eval" / "step_00001300.json").write_text(f'{{"psnr": 1.0, "ssim": 1.0, {damage}}}')
        assert run_values(run)["scored_at"] == 1200, damage


def test_who_reads_only_the_beginning_gets_no_error() -> None:
    asked = [sys.executable, "-m", "splatstudio", "train", "--help"]
    with subprocess.Popen(asked, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 141


def test_missing_weights_are_told_once() -> None:
    missing = [f"LPIPS ({name}){NOT_FOUND}, put them there" for name in ("AlexNet", "VGG16")]
    told = short_notes([missing[0], "a photo is black", missing[1]])
    assert told[0] == "a photo is black" and len(told) == 2 and "--fetch-lpips" in told[1]
    assert short_notes(["LPIPS (VGG16): vgg.pth is damaged"]) == ["LPIPS (VGG16): vgg.pth is damaged"]


def test_the_command_says_its_version() -> None:
    command = [sys.executable, "-m", "splatstudio", "--version"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert told.returncode == 0 and told.stdout.startswith("splatstudio 0.") and not told.stderr
    _, of_torch, of_kernels = told.stdout.splitlines()
    assert of_torch.startswith(f"torch {torch.__version__}, ") and of_kernels.startswith("kernels: CPU")


def test_the_overview_has_every_command_with_the_first_line_of_its_own_help() -> None:
    own = {name: (command.__doc__ or "").splitlines()[0] for name, command in cli.COMMANDS.items()}
    assert own == SUMMARIES and all(line.strip() for line in overview(100).splitlines()[2:4])
    assert max(map(len, overview(60).splitlines())) <= 60
    assert re.findall(r"^  (\w+)  ", overview(80), re.MULTILINE) == list(cli.COMMANDS)


def test_missing_weights_are_told_with_what_fetches_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("splatstudio.evaluation.lpips._found", lambda *_: None)
    load_lpips.cache_clear()
    with pytest.raises(ValueError, match=r"weights not found, put .*, or let splatstudio eval --fetch-lpips"):
        load_lpips("alex")
