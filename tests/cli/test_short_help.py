"""`--help` of commands with very many options: on one screen what most people use, and where the rest is."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys

import pytest
from command_line import CommandStreams

from splatstudio.cli import main as cli
from splatstudio.cli.command_options import options_of
from splatstudio.cli.mistyped import mistake_in
from splatstudio.cli.short_help import SHORT_HELP, first_sentence, short_help
from splatstudio.settings.presets import PRESETS

SCREEN = 45, 80  # lines and columns


@pytest.mark.parametrize("name", SHORT_HELP)
def test_help_fits_a_screen_and_all_that_it_says_can_be_typed(name: str) -> None:
    told = short_help(name, cli.COMMANDS[name], SCREEN[1])
    lines = told.splitlines()
    assert len(lines) <= SCREEN[0] and max(map(len, lines)) <= SCREEN[1], told
    known = options_of(cli.COMMANDS[name])
    assert (
        set(re.findall(r"^  --([\w.-]+)", told, re.MULTILINE)) == set(SHORT_HELP[name].options) <= set(known)
    )
    assert re.findall(r"^  ([a-z]+)  ", told, re.MULTILINE) == list(PRESETS)
    examples = re.findall(r"^  splatstudio (.*)", told, re.MULTILINE)
    assert len(examples) == 3 and all(shlex.split(line)[0] == name for line in examples)
    assert [mistake_in(shlex.split(line), cli.COMMANDS) for line in examples] == [None] * 3


def test_its_last_line_says_how_many_settings_the_other_help_lists() -> None:
    told = [
        subprocess.run(
            [sys.executable, "-m", "splatstudio", "train", option],
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, "COLUMNS": str(SCREEN[1])},
        ).stdout.splitlines()
        for option in ("--help", "--help-all")
    ]
    counted = re.fullmatch(r"splatstudio train --help-all lists all (\d+) settings.", told[0][-1])
    rows = [line for line in told[1] if re.match("[│ ] --?[a-z]", line) and "-h, --help" not in line]
    assert counted is not None and len(rows) == int(counted[1])


def test_the_default_of_the_demo_is_its_own() -> None:
    told = {name: short_help(name, cli.COMMANDS[name], 100) for name in ("demo", "train")}
    steps = {name: re.search(r"--steps N.*\((\d+) by default\)", text) for name, text in told.items()}
    assert steps["demo"] and steps["train"] and steps["demo"][1] != steps["train"][1] == "30000"


def test_commands_with_few_options_show_all_of_them_by_either(command_streams: CommandStreams) -> None:
    assert command_streams("poses", "--help") == command_streams("poses", "--help-all")
    assert command_streams("help", "train")[1] == command_streams("train", "-h")[1]


def test_a_mistake_points_at_what_lists_the_right_one() -> None:
    for typed, listed in {
        "train SCENE --stepz 3": "splatstudio train --help-all lists all",
        "open SCENE --steps 7k": "splatstudio open --help-all explains it",
        "poses SCENE --frame": "splatstudio poses --help lists all",
    }.items():
        assert (mistake_in(typed.split(), cli.COMMANDS) or "").endswith(listed)


def test_help_loads_neither_torch_nor_the_parser() -> None:
    asked = "import sys; sys.argv = ['splatstudio', 'train', '--help']\n"
    asked += "from splatstudio.cli.main import main\n"
    asked += "try:\n    main()\nfinally:\n    print({'torch', 'viser'} & set(sys.modules), file=sys.stderr)"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=120)
    assert told.stderr == "set()\n" and told.stdout.startswith("usage: splatstudio train SCENE")


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("One. Two.", "One."),
        ("At 0.0.0.0 for every network. More.", "At 0.0.0.0 for every network."),
        ("Of a .mp4 file, as in a.b", "Of a .mp4 file, as in a.b"),
        ("", ""),
    ],
)
def test_of_a_help_text_the_first_sentence_is_shown(text: str, first: str) -> None:
    assert first_sentence(text) == first
