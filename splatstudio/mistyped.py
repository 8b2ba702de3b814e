"""Commands and options that there are not: which one was meant, also by who is used to another program."""

from __future__ import annotations

import inspect
import re
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

Commands = Mapping[str, Callable[..., object]]

OPTION = re.compile(r"--[A-Za-z][\w.-]*|-[A-Za-z]")  # not a negative number
OPTION_ALONE = re.compile(r"--[\w.-]+( \d)*")
ALIKE = 0.72  # of SequenceMatcher: --downscal, --test-evry
AS_GOOD = 0.08  # below the best one: named as well

SCENE = "the scene needs none: splatstudio {command} SCENE"
RUN = "here it is --run, the folder for all that a training leaves"
NO_PAGE = "splatstudio train has no window; splatstudio open SCENE --train is the one with a page"

# What the trainers of others call it, with hyphens: gsplat's simple_trainer, nerfstudio, LichtFeld Studio,
# Brush, Postshot and the original implementation. A name of an option, or a sentence.
OTHER_NAMES: dict[str, str] = {
    **dict.fromkeys(("data-dir", "data", "data-path", "source-path", "d", "s", "import"), SCENE),
    **dict.fromkeys(("result-dir", "output-dir", "output-path", "model-path", "m", "export-path"), RUN),
    **dict.fromkeys(("experiment-name", "output", "o"), RUN),
    **dict.fromkeys(("max-steps", "max-num-iterations", "iterations", "iter", "iters", "i"), "--steps"),
    **dict.fromkeys(("total-steps", "total-train-iters", "train-steps-limit"), "--steps"),
    **dict.fromkeys(("data-factor", "downscale-factor", "resize-factor", "resolution", "r"), "--downscale"),
    **dict.fromkeys(
        ("max-resolution", "max-image-size", "max-width"),
        "here --downscale divides the photographs' sides, as --downscale 4",
    ),
    **dict.fromkeys(("cap-max", "max-cap", "max-num-splats", "strategy.cap-max"), "--max-splats"),
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
    **dict.fromkeys(("densify-until-iter", "growth-stop-iter"), "--densify.stop-step"),
    **dict.fromkeys(("refine-every", "densification-interval"), "--densify.every"),
    **dict.fromkeys(("profile",), "--preset"),
    **dict.fromkeys(("gpu", "devices"), "--gpus"),
    **dict.fromkeys(("disable-viewer", "headless", "vis", "viewer", "with-viewer", "port"), NO_PAGE),
}

OTHER_COMMANDS = {
    **dict.fromkeys(("view", "viewer", "gui", "studio", "show"), "splatstudio open PATH"),
    **dict.fromkeys(("default", "mcmc"), "splatstudio train SCENE --preset {word}"),
    **dict.fromkeys(("convert", "compress", "export-splat"), "splatstudio export MODEL -o FILE"),
    **dict.fromkeys(("evaluate", "test", "metrics"), "splatstudio eval RUN"),
    "resume": "splatstudio train SCENE --run RUN --resume",
}


def mistake_in(arguments: Sequence[str], commands: Commands) -> str | None:
    """Return a sentence on the first command or option that there is not, or None where all are known.

    It says which one may have been meant. What is wrong with values, and what is missing, is not its matter.
    """
    if not arguments or arguments[0].startswith("-"):
        return None
    word, *rest = arguments
    if word not in commands:
        return _no_command(word, commands)
    known = option_names(commands[word])
    for argument in rest:
        option = argument.partition("=")[0]
        if OPTION.fullmatch(option) and _plain(option) not in known:
            return f"splatstudio {word} has no option {option}: {_meant(word, _plain(option), commands)}"
    return None


def option_names(command: Callable[..., object]) -> frozenset[str]:
    """Return the names of a command's options, without hyphens before: steps, optim.means-lr, no-resume."""
    hints = typing.get_type_hints(command)
    names = {"help", "h"}
    for name, parameter in inspect.signature(command).parameters.items():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            continue
        hint = hints[name]
        names |= set(_of_group(hint) if is_dataclass(hint) else _spellings(name, hint))
        names |= {"o"} if name == "output" else set()
    return frozenset(names)


def _of_group(group: Any, path: str = "") -> Iterable[str]:
    for name, hint in typing.get_type_hints(group).items():
        if name.startswith("__") or typing.get_origin(hint) is typing.ClassVar:
            continue
        if is_dataclass(hint):
            yield from _of_group(hint, f"{path}{_hyphens(name)}.")
        else:
            yield from _spellings(name, hint, path)


def _spellings(name: str, hint: Any, path: str = "") -> Iterable[str]:
    yield path + _hyphens(name)
    if hint is bool:
        yield f"{path}no-{_hyphens(name)}"


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def _plain(option: str) -> str:
    return _hyphens(option.lstrip("-")) if option.startswith("--") else option[1:]


def _no_command(word: str, commands: Commands) -> str:
    all_of_them = f"the commands are {', '.join(commands)}"
    if word in OTHER_COMMANDS:
        return f"there is no command {word}: it is {OTHER_COMMANDS[word].format(word=word)}; {all_of_them}"
    near = max(commands, key=lambda name: SequenceMatcher(None, word, name).ratio())
    if Path(word).exists():
        return (
            f"say what to do with {word}: splatstudio open {word} shows it, train in place of open trains it"
        )
    if SequenceMatcher(None, word, near).ratio() >= ALIKE:
        return f"there is no command {word}: did you mean {near}? {all_of_them.capitalize()}"
    return f"there is no command {word}: {all_of_them}"


def _meant(word: str, option: str, commands: Commands) -> str:
    """Return what may have been meant by an option that a command has not, and where all are listed."""
    known = option_names(commands[word])
    listed = f"splatstudio {word} --help lists all"
    other = OTHER_NAMES.get(option) if word in ("train", "open") else None
    if other is not None:
        told = f"here it is {other}" if OPTION_ALONE.fullmatch(other) else other.format(command=word)
        return f"{told}; {listed}"
    near = _nearest(option, known)
    if near:
        return f"did you mean {' or '.join(f'--{name}' for name in near)}? {listed}"
    elsewhere = [name for name, command in commands.items() if option in option_names(command)]
    if elsewhere:
        return f"it is one of splatstudio {' and '.join(elsewhere)}; {listed}"
    return listed


def _nearest(option: str, known: Iterable[str]) -> list[str]:
    """Return up to three known options that are spelt much like `option`, in whole or behind the dot."""
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
