"""What `--help` says of a command with very many options: the few that people use most, presets and examples.

`--help-all` lists all of them.
"""

from __future__ import annotations

import re
import textwrap
import types
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from splatstudio.cli.command_options import CommandOption, arms, options_of, positionals_of
from splatstudio.settings.presets import PRESETS

MAX_WIDTH = 100  # columns
NARROW = 50  # columns, which is as few as there may be
MOST_CHOICES = 12  # letters, above which the choices of an option are named elsewhere


@dataclass(frozen=True)
class ShortHelp:
    """The options of a command that its `--help` lists, and what it is used for."""

    options: tuple[str, ...]
    examples: tuple[str, ...]


_TRAINING = ("preset", "steps", "downscale", "test-every", "max-splats", "gpus")
SHORT_HELP = {
    "open": ShortHelp(
        ("train", *_TRAINING, "run", "host", "port", "browser"),
        (
            "splatstudio open photos/ --train --preset fast",
            "splatstudio open model.ply",
            "splatstudio open runs/garden --host 0.0.0.0 --no-browser",
        ),
    ),
    "demo": ShortHelp(
        (*_TRAINING, "run", "host", "port", "browser"),
        (
            "splatstudio demo",
            "splatstudio demo --preset mcmc --steps 2000",
            "splatstudio demo --host 0.0.0.0 --no-browser",
        ),
    ),
    "train": ShortHelp(
        ("minutes", *_TRAINING, "init", "stop-when-flat", "run", "resume", "json"),
        (
            "splatstudio train photos/ --minutes 10",
            "splatstudio train garden/ --steps 7000 --downscale 4 --run runs/garden",
            "splatstudio train runs/garden --resume --steps 60000",
        ),
    ),
}


def help_option(command: str) -> str:
    """Return the option that lists all options of a command."""
    return "--help-all" if command in SHORT_HELP else "--help"


def short_help(name: str, command: Callable[..., object], width: int) -> str:
    """Return what `--help` says of a command of `SHORT_HELP`, in lines of at most `width` columns."""
    chosen, known, width = SHORT_HELP[name], options_of(command), max(min(width, MAX_WIDTH), NARROW)
    positionals = positionals_of(command)
    alone = [
        f"[{part.upper()}]" if _may_be_left_out(each) else part.upper() for part, each in positionals.items()
    ]
    spelled_once = [option for option in known if not option.rpartition(".")[2].startswith("no-")]
    all_of_them = len(set(spelled_once) - {"help", "h"})
    rows = [(part.upper(), option.help) for part, option in positionals.items()]
    rows += [(_spelled(option, known[option]), _said(known[option])) for option in chosen.options]
    told = [
        " ".join(["usage: splatstudio", name, *alone, "[OPTIONS]"]),
        "",
        textwrap.fill((command.__doc__ or "").partition("\n")[0], width),
        "",
        *_lines(rows, width),
        "\npresets:",
        *_lines([(preset.name, preset.description) for preset in PRESETS.values()], width),
        "\nexamples:",
        *(f"  {example}" for example in chosen.examples),
        "",
        f"splatstudio {name} --help-all lists all {all_of_them} settings.",
    ]
    return "\n".join(told)


def first_sentence(text: str) -> str:
    """Return the first sentence of a help text; a dot within a word or number ends none."""
    return re.split(r"(?<=[.])\s+(?=[A-Z])", text, maxsplit=1)[0]


def choices_of(kind: Any) -> tuple[str, ...]:
    """Return the words that an option of that type can have, or each of its values, where there are such."""
    kinds = [
        each
        for arm in arms(kind)
        for each in (typing.get_args(arm) if typing.get_origin(arm) is tuple else (arm,))
    ]
    literals = [typing.get_args(each) for each in kinds if typing.get_origin(each) is Literal]
    return tuple(str(choice) for choices in literals for choice in choices)


def _lines(rows: Sequence[tuple[str, str]], width: int) -> list[str]:
    """Return what is said of each name, in a column beside the names."""
    indent = 4 + max(len(name) for name, _ in rows)
    return [
        textwrap.fill(text, width, initial_indent=f"  {name}".ljust(indent), subsequent_indent=" " * indent)
        for name, text in rows
    ]


def _may_be_left_out(positional: CommandOption) -> bool:
    return types.NoneType in typing.get_args(positional.kind)


def _spelled(name: str, option: CommandOption) -> str:
    """Return an option with what stands for its value, as "--steps N"; one that is on, with its opposite."""
    if option.kind is bool:
        return f"--{name}, --no-{name}" if option.default else f"--{name}"
    names = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
    choices, kinds = choices_of(option.kind), [names[arm] for arm in arms(option.kind) if arm in names]
    shown = "|".join([*kinds, *choices])
    return f"--{name} {shown if len(shown) <= MOST_CHOICES else 'NAME'}"


def _said(option: CommandOption) -> str:
    text, default = first_sentence(option.help), option.default
    if isinstance(default, bool) or default in (None, "", "auto"):
        return text
    return f"{text.removesuffix('.')} ({default} by default)."
