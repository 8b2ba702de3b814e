"""What was mistyped: commands, options and values that there are not, and which ones were meant.

Also by who is used to another program.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from splatstudio.cli.command_options import CommandOption, Commands, most_alone, num_values, options_of, plain
from splatstudio.cli.short_help import help_option
from splatstudio.files.path_words import as_argument
from splatstudio.settings.setting import in_words, typed_value

OPTION = re.compile(r"--?[A-Za-z]")  # how one begins: not as a negative number does
NUMBERS = ("-inf", "-infinity", "-nan")  # but for these

OPTION_ALONE = re.compile(r"--[\w.-]+( \d)*")
WRITTEN = {".ply", ".spz", ".sog", ".splat", ".glb", ".pt", ".html", ".obj", ".stl", ".mp4", ".webm", ".png"}
ALIKE = 0.72  # of SequenceMatcher: --downscal, --test-evry
AS_GOOD = 0.08  # below the best one: named as well

SCENE = "the scene needs none: splatstudio {command} SCENE"
RUN = "here it is --run, the folder for all that a training leaves"
CAP = "here --max-splats is the limit of any strategy, and --mcmc.max-gaussians how many mcmc has"
RATES = (
    "each property has its own here: --optim.means-lr (positions), --optim.scales-lr, --optim.sh0-lr (color)"
)
NO_PAGE = "splatstudio train has no window; splatstudio open SCENE --train is the one with a page"

OTHER_COMMANDS = {
    **dict.fromkeys(("view", "viewer", "gui", "studio", "show"), "splatstudio open PATH"),
    **dict.fromkeys(("default", "mcmc"), "splatstudio train SCENE --preset {word}"),
    **dict.fromkeys(("convert", "compress", "export-splat"), "splatstudio export MODEL -o FILE"),
    **dict.fromkeys(("evaluate", "test", "metrics"), "splatstudio eval RUN"),
    "resume": "splatstudio train SCENE --run RUN --resume",
}


@dataclass(frozen=True)
class Taken:
    """An argument as it was typed: an option with its values, or, without a name, what stands alone."""

    option: str | None  # as typed, --data_dir
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the option's name as `options_of` has it."""
        return plain(self.option or "")


def taken(
    arguments: Sequence[str], options: Mapping[str, CommandOption], alone: int | None = 0
) -> Iterator[Taken]:
    """Yield the arguments of a command with their values; an option that is not known has none.

    `alone` is how many have to stand without an option, None: any number. An option with any number of values
    leaves the last ones of the line for them: --lpips alex RUN.
    """
    rest, missing = list(arguments), alone or 0
    while rest:
        argument = rest.pop(0)
        if argument == "--":  # behind it are no options
            yield from (Taken(None, (each,)) for each in rest)
            return
        if not _is_option(argument):
            missing -= 1
            yield Taken(None, (argument,))
            continue
        option, values = _parted(argument, options)
        wanted = _values_of(plain(option), options)
        most = max(len(rest) - max(missing, 0), 0) if wanted is None else wanted - len(values)
        for each in rest[: max(most, 0)]:
            if each == "--" or _is_option(each):
                break
            values.append(rest.pop(0))
        yield Taken(option, tuple(values))


def refused_value(option: str, values: Sequence[str], hint: Any) -> str | None:
    """Return a sentence about values that an option of that type cannot have, else None."""
    wanted = num_values(hint)
    if values and values[0] == "None":
        return None  # where it is not allowed, there are other words for it
    if wanted is not None and len(values) < wanted:
        return f"{option} needs {in_words(hint)} behind it"
    plain_values = [value.replace("_", "") if value[:1].isdigit() else value for value in values]  # 30_000
    try:
        if wanted != 0:
            value = typed_value(hint, plain_values[0] if wanted == 1 else plain_values, option, as_typed=True)
            if type(value) is int:
                int(plain_values[0])  # the options' parser takes no 1e3
    except ValueError:
        return f"{option} must be {in_words(hint)}, not {' '.join(values)}"
    return None


def _values_of(name: str, options: Mapping[str, CommandOption]) -> int | None:
    return num_values(options[name].kind) if name in options else 0


def _is_option(argument: str) -> bool:
    return OPTION.match(argument) is not None and argument.partition("=")[0].lower() not in NUMBERS


def _parted(argument: str, options: Mapping[str, CommandOption]) -> tuple[str, list[str]]:
    """Return an option and the value that is written to it, if any: --steps=3, -o=FILE, -oFILE."""
    letter = argument[1]
    if len(argument) > 2 and _values_of(letter, options):
        return argument[:2], [argument[2:].removeprefix("=")]
    option, equals, value = argument.partition("=")
    return option, [value] if equals else []


# What the trainers of others call it, with hyphens: gsplat's simple_trainer, nerfstudio, LichtFeld Studio,
# Brush, Postshot and the original implementation. A name of an option, or a sentence.
OTHER_NAMES: dict[str, str] = {
    **dict.fromkeys(("data-dir", "data", "data-path", "source-path", "d", "s", "import"), SCENE),
    **dict.fromkeys(("result-dir", "output-dir", "output-path", "model-path", "m", "export-path"), RUN),
    **dict.fromkeys(("experiment-name", "output", "o"), RUN),
    **dict.fromkeys(("lr", "learning-rate"), RATES),
    **dict.fromkeys(("max-steps", "max-num-iterations", "iterations", "iter", "iters", "i"), "--steps"),
    **dict.fromkeys(("total-steps", "total-train-iters", "train-steps-limit"), "--steps"),
    **dict.fromkeys(("data-factor", "downscale-factor", "resize-factor", "resolution", "r"), "--downscale"),
    **dict.fromkeys(
        ("max-resolution", "max-image-size", "max-width"),
        "here --downscale divides the photos' sides, as --downscale 4",
    ),
    **dict.fromkeys(("cap-max", "max-cap", "max-num-splats", "strategy.cap-max"), CAP),
    **dict.fromkeys(("eval-split-every", "llffhold"), "--test-every"),
    **dict.fromkeys(("test-iterations",), "--eval-steps"),
    **dict.fromkeys(("steps-per-eval-all-images",), "--eval-every"),
    **dict.fromkeys(("save-iterations", "checkpoint-iterations", "ply-steps"), "--save-steps"),
    **dict.fromkeys(
        ("steps-per-save", "export-every"),
        "--save-minutes 5 saves by the clock, --save-steps 7000 15000 after these steps",
    ),
    **dict.fromkeys(
        ("ckpt", "load-dir", "load-checkpoint", "start-checkpoint", "load-config"),
        "--init MODEL starts from a model, and --run FOLDER --resume goes on with a run",
    ),
    **dict.fromkeys(("pose-opt",), "--poses.enabled"),
    **dict.fromkeys(("app-opt",), "--exposure.enabled"),
    **dict.fromkeys(("use-bilateral-grid", "bilateral-grid"), "--exposure.grid"),
    **dict.fromkeys(("mip-filter", "antialiasing"), "--antialiased"),
    **dict.fromkeys(("random-bkgd",), "--random-background"),
    **dict.fromkeys(("white-background",), "--background 1 1 1"),
    **dict.fromkeys(("depth-loss", "depth-lambda"), "--depth.weight"),
    **dict.fromkeys(("ssim-lambda", "lambda-dssim"), "--ssim-weight"),
    **dict.fromkeys(("init-num-pts",), "--init-random"),
    **dict.fromkeys(("init-opa",), "--init-opacity"),
    **dict.fromkeys(("visible-adam",), "--optim.visible-only"),
    **dict.fromkeys(("densify-grad-threshold", "growth-grad-threshold"), "--densify.grow-grad"),
    **dict.fromkeys(("strategy.grow-grad2d",), "--densify.grow-grad"),
    **dict.fromkeys(("densify-from-iter", "strategy.refine-start-iter"), "--densify.start-step"),
    **dict.fromkeys(
        ("densify-until-iter", "growth-stop-iter", "strategy.refine-stop-iter"), "--densify.stop-step"
    ),
    **dict.fromkeys(("refine-every", "densification-interval", "strategy.refine-every"), "--densify.every"),
    **dict.fromkeys(("opacity-reset-interval", "strategy.reset-every"), "--densify.reset-every"),
    **dict.fromkeys(("absgrad", "strategy.absgrad"), "here it is --strategy absgrad"),
    **dict.fromkeys(("opacity-reg",), "--shapes.opacity-weight"),
    **dict.fromkeys(("scale-reg",), "--shapes.scale-weight"),
    **dict.fromkeys(("sh-degree-interval",), "--sh-degree-every"),
    **dict.fromkeys(("profile",), "--preset"),
    **dict.fromkeys(("gpu", "devices"), "--gpus"),
    **dict.fromkeys(("disable-viewer", "headless", "vis", "viewer", "with-viewer", "port"), NO_PAGE),
}


def refuse_lost_folder() -> None:
    """Raise ValueError where the folder of the shell was deleted: nothing in it can be found or written."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise ValueError("the folder of this shell was deleted: change to another one, as by cd") from None


def mistake_in(arguments: Sequence[str], commands: Commands) -> str | None:
    """Return a sentence on the first mistake in what was typed, or None where there is none to be seen.

    That is a command or an option that there is not, with the one that may have been meant, a value that is
    no number or none of the choices, or one path too many. What is missing is not its matter.
    """
    if not arguments or arguments[0] in ("-h", "--help"):
        return None
    if arguments[0].startswith("-"):
        return f"a command comes first: splatstudio COMMAND {arguments[0]}; splatstudio --help lists them"
    word, *rest = arguments
    if word not in commands:
        return _no_command(word, commands)
    if {"-h", "--help", "--help-all"} & set(rest):
        return None
    options, most = options_of(commands[word]), most_alone(commands[word])
    alone: list[str] = []
    named = {"-o", "--output"} & {argument.partition("=")[0] for argument in rest}
    for argument in taken(rest, options, most):
        if argument.option is None:
            alone.append(argument.values[0])
            if argument.values == ("",):  # else it would be the folder that the shell is in
                return f"the path behind splatstudio {word} is empty, as that of a variable that is not set"
            if most is not None and len(alone) > most:
                return _too_many(word, alone, most, writes="output" in options and not named)
        elif argument.name not in options:
            if os.path.exists(argument.option):
                return (
                    f"{argument.option} is read as an option: name the path as {as_argument(argument.option)}"
                )
            meant = _meant(word, plain(f"--{argument.option.lstrip('-')}"), commands)
            return f"splatstudio {word} has no option {argument.option}: {meant}"
        else:
            refused = refused_value(argument.option, argument.values, options[argument.name].kind)
            if refused is not None:
                return f"{refused}; splatstudio {word} {help_option(word)} explains it"
    return None


def _too_many(word: str, values: Sequence[str], most: int, *, writes: bool) -> str:
    value = values[-1]
    if value.lower() in ("true", "false"):
        return f"a switch has no value: omit {value}, as in --resume, or to switch off --no-resume"
    if not most:
        return f"splatstudio {word} takes no path: omit {value}"
    if word == "eval" and value.endswith(".json"):
        return f"--json prints the scores: --json-file {as_argument(value)} writes them"
    spaced = os.path.exists(" ".join(values))
    if writes and os.path.exists(values[0]) and Path(value).suffix.lower() in WRITTEN and not spaced:
        return f"splatstudio {word} takes one path: name the file to write with --output {as_argument(value)}"
    return f"splatstudio {word} takes one path, and {value} is another: put a path with spaces in quotes"


def _no_command(word: str, commands: Commands) -> str:
    all_of_them = f"the commands are {', '.join(commands)}"
    if word in OTHER_COMMANDS:
        return f"there is no command {word}: it is {OTHER_COMMANDS[word].format(word=word)}; {all_of_them}"
    near = max(commands, key=lambda name: SequenceMatcher(None, word, name).ratio())
    if Path(word).exists():
        command = f"splatstudio open {as_argument(word)}"
        return f"say what to do with {word}: {command} shows it, train in place of open trains it"
    if SequenceMatcher(None, word, near).ratio() >= ALIKE:
        return f"there is no command {word}: did you mean {near}? {all_of_them.capitalize()}"
    return f"there is no command {word}: {all_of_them}"


def _meant(word: str, option: str, commands: Commands) -> str:
    """Return what may have been meant by an option that a command has not, and where all are listed."""
    known = options_of(commands[word])
    listed = f"splatstudio {word} {help_option(word)} lists all"
    other = OTHER_NAMES.get(option) if word in ("train", "open") else None
    if other is not None:
        told = f"here it is {other}" if OPTION_ALONE.fullmatch(other) else other.format(command=word)
        return f"{told}; {listed}"
    near = _nearest(option, known)
    if near:
        return f"did you mean {' or '.join(f'--{name}' for name in near)}? {listed}"
    elsewhere = [name for name, command in commands.items() if option in options_of(command)]
    if elsewhere:
        return f"it is one of splatstudio {' and '.join(elsewhere)}; {listed}"
    return listed


def _nearest(option: str, known: Iterable[str]) -> list[str]:
    """Return up to three known options that are spelled much like `option`, in whole or behind the dot."""
    scored = [(_likeness(option, name), name) for name in known if len(name) > 1]
    best = max(score for score, _ in scored)
    near = sorted((-score, name) for score, name in scored if score >= max(ALIKE, best - AS_GOOD))
    return [name for _, name in near[:3]]


def _likeness(option: str, name: str) -> float:
    if name == f"{option}.enabled":
        return 1.0
    group, _, last = name.rpartition(".")
    whole = SequenceMatcher(None, option, name).ratio()
    behind = 0.98 * SequenceMatcher(None, option.rpartition(".")[2], last).ratio() if group else 0.0
    begun = 0.82 if len(option) > 2 and name.startswith(option) else 0.0
    return max(whole, behind, begun)
