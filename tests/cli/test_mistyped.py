"""Commands and options that there are not: a sentence names the one that was meant."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from splatstudio.cli import main as cli
from splatstudio.cli.command_options import options_of
from splatstudio.cli.mistyped import OPTION_ALONE, OTHER_NAMES, mistake_in
from splatstudio.files.path_words import as_argument


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("train SCENE --step 100", "did you mean --steps?"),
        ("train SCENE --sh_degre 2", "did you mean --sh-degree?"),
        ("train SCENE --means-lr=0.1", "did you mean --optim.means-lr?"),
        ("train SCENE --poses", "did you mean --poses.enabled?"),
        ("export RUN --out m.ply", "did you mean --output?"),
        ("--steps 3 train", "a command comes first: splatstudio COMMAND --steps"),
        ("export RUN -f m.ply", "splatstudio export --help lists all"),
        ("eval RUN --steps 3", "it is one of splatstudio open and demo and train"),
        # As the trainers of others say it.
        ("train --data_dir SCENE --max_steps 7000", "splatstudio train SCENE"),
        ("train SCENE --max_steps 7000", "here it is --steps;"),
        ("train SCENE --max-num-iterations 7000", "here it is --steps;"),
        ("train SCENE --total-train-iters 7000", "here it is --steps;"),
        ("train SCENE -i 7000", "here it is --steps;"),
        ("train SCENE --data_factor 4", "here it is --downscale;"),
        ("train SCENE --white_background", "here it is --background 1 1 1;"),
        ("train SCENE --cap_max 1000000", "--mcmc.max-gaussians how many mcmc has"),
        ("train SCENE --strategy.refine-stop-iter 9000", "here it is --densify.stop-step;"),
        ("train SCENE --absgrad", "here it is --strategy absgrad;"),
        ("train SCENE --headless", "splatstudio open SCENE --train is the one with a page"),
        # Values.
        ("train SCENE --steps 7k", "--steps must be a whole number, not 7k;"),
        ("train SCENE --steps=1.5", "--steps must be a whole number, not 1.5;"),
        ("train SCENE --steps 1e3", "--steps must be a whole number, not 1e3;"),
        ("train SCENE --steps --downscale 4", "--steps needs a whole number behind it;"),
        ("train SCENE --optim.means-lr fast", "--optim.means-lr must be a number, not fast;"),
        (
            "train SCENE --preset slow",
            "--preset must be one of preview, default, quality, mcmc, fast, surface, not slow;",
        ),
        ("train SCENE --max-splats many", "--max-splats must be a whole number or auto, not many;"),
        ("train SCENE --eval-steps 10 x", "--eval-steps must be whole numbers, not 10 x;"),
        ("export RUN -o F --crop 1 2 3", "--crop needs 6 numbers behind it;"),
        ("train My Scene --steps 3", "Scene is another: put a path with spaces in quotes"),
        ("info a --images b c", "c is another"),
        ("export / a.spz", "takes one path: name the file to write with --output a.spz"),
        ("export / a.spz -o b.spz", "a.spz is another: put a path with spaces in quotes"),
        ("render / path.json", "path.json is another: put a path with spaces in quotes"),
        ("train SCENE -steps 3", "train has no option -steps: did you mean --steps?"),
        ("train SCENE --resume True", "a switch has no value: omit True"),
        ("train '' --steps 3", "the path behind splatstudio train is empty"),
        ("doctor RUN", "takes no path: omit RUN"),
        ("trian SCENE", "did you mean train?"),
        ("mcmc --data_dir SCENE", "splatstudio train SCENE --preset mcmc"),
        ("/", "splatstudio open / shows it"),
        ("xyzzy", "the commands are open, demo, poses, train,"),
    ],
)
def test_the_one_that_was_meant_is_named(typed: str, meant: str) -> None:
    told = mistake_in(shlex.split(typed), cli.COMMANDS)
    assert told is not None and meant in told and "{" not in told


def test_a_path_that_begins_like_an_option_is_told_so_that_it_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("-my scene").mkdir()
    told = mistake_in(["train", "-my scene"], cli.COMMANDS)
    assert told == "-my scene is read as an option: name the path as './-my scene'"
    assert mistake_in(["train", "./-my scene"], cli.COMMANDS) is None
    assert as_argument(Path("-my scene")) == "'./-my scene'"


def test_a_command_that_is_told_can_be_typed_as_it_is(tmp_path: Path) -> None:
    scene = tmp_path / "my scene"
    scene.mkdir()
    told = mistake_in([str(scene)], cli.COMMANDS)
    assert (
        told is not None
        and ["splatstudio", "open", str(scene)]
        == shlex.split(re.findall(r"splatstudio open .* shows", told)[0])[:3]
    )


@pytest.mark.parametrize(
    "typed",
    [
        "train SCENE --eval-every -1 --background -1 -2 -3 --optim.means_lr=0.1 --densify.no-enabled",
        "render RUN -o FILE --no-orbit --help",
        "merge a.pt b.pt -o FILE --overwrite",
        "train SCENE --eval-steps 10 20 --test-images --save-steps=7 --max-splats auto --preset None",
        "train --eval-steps 10 20 --resume SCENE",
        "eval RUN --lpips --lpips alex vgg --csv F",
        "export RUN -o F --crop -1 -2 -3 1 2.5 3e1 --steps --help",
        "open SCENE --allow_host a --fit-batch --train",
        "eval --lpips RUN",
        "train --save-steps 100 200 SCENE",
        "export RUN -om.ply --crop -1 -inf -3 1 2 3",
        "info --images a -- --scene",
        "--help",
        "info",
        "",
    ],
)
def test_what_there_is_is_let_through(typed: str) -> None:
    assert mistake_in(typed.split(), cli.COMMANDS) is None


def test_the_commands_of_the_readme_and_the_guide_are_commands() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
    text = "\n".join(page.read_text() for page in pages).replace("\\\n", " ")
    typed = re.findall(r"^    .*?\bsplatstudio ([a-z].*?)(?:[#|].*)?$", text, re.MULTILINE)
    assert len(typed) > 15
    assert [told for line in typed if (told := mistake_in(shlex.split(line), cli.COMMANDS))] == []


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_the_options_are_those_that_help_lists(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["splatstudio", command, "--help-all"])
    with pytest.raises(SystemExit):
        cli.main()
    rows = capsys.readouterr().out.splitlines()
    heads = [row[2:].split("  ")[0] for row in rows if re.match("[│ ] -[-a-z]", row)]
    listed = {name for head in heads for name in re.findall(r"(?<![\w-])--?([A-Za-z][\w.-]*)", head)}
    assert listed == set(options_of(cli.COMMANDS[command]))


@pytest.mark.parametrize("option", ["--lr", "--learning-rate"])
def test_who_asks_for_the_learning_rate_is_told_of_the_rates(option: str) -> None:
    told = mistake_in(["train", "SCENE", option, "1e-3"], cli.COMMANDS)
    assert told is not None and "--optim.means-lr" in told and "exposure" not in told


def test_the_words_of_others_lead_to_options_that_there_are() -> None:
    known = options_of(cli.COMMANDS["train"])
    for name, here in OTHER_NAMES.items():
        assert name not in known, f"--{name} is one of ours"
        if OPTION_ALONE.fullmatch(here):
            assert here.split()[0].lstrip("-") in known, here


def test_a_mistake_is_told_in_one_line_and_nothing_at_all_is_helped(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["splatstudio", "train", "SCENE", "--step", "3"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    told = capsys.readouterr()
    assert stop.value.code == 2 and not told.out
    assert (
        told.err.startswith("error: splatstudio train has no option --step: ") and told.err.count("\n") == 1
    )
    monkeypatch.setattr(sys, "argv", ["splatstudio"])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert not stop.value.code and "splatstudio open SCENE" in capsys.readouterr().out
