"""The options of a command, as they are declared: name, type, default and help. Nothing here needs torch."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from typing import Any

Commands = Mapping[str, Callable[..., object]]

_HELP = re.compile(r"^ {4}(\w+): (.*(?:\n {5,}.*)*)", re.MULTILINE)  # below "Args:" of a docstring


@dataclass(frozen=True)
class CommandOption:
    """What is declared of an option: its type, what it is when it is not given, and a sentence or more."""

    kind: Any  # bool: a switch
    default: Any = None
    help: str = ""


def options_of(command: Callable[..., object]) -> dict[str, CommandOption]:
    """Return the options of a command by name, without hyphens before: steps, optim.means-lr, no-resume."""
    hints, help_texts = typing.get_type_hints(command), _help_texts(command)
    shows_help = CommandOption(bool, False, "Show the options that most people use.")
    options: dict[str, CommandOption] = {"help": shows_help, "h": shows_help}
    for name, parameter in inspect.signature(command).parameters.items():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            continue
        default = None if parameter.default is inspect.Parameter.empty else parameter.default
        option = CommandOption(hints[name], default, help_texts.get(name, ""))
        options |= dict(_of_group(option) if is_dataclass(option.kind) else _spellings(name, option))
        if name == "output":
            options["o"] = option
    return options


def positionals_of(command: Callable[..., object]) -> dict[str, CommandOption]:
    """Return what stands without an option behind a command, by name."""
    hints, help_texts = typing.get_type_hints(command), _help_texts(command)
    parameters = inspect.signature(command).parameters.items()
    alone = [name for name, parameter in parameters if parameter.kind is inspect.Parameter.POSITIONAL_ONLY]
    return {name: CommandOption(hints[name], help=help_texts.get(name, "")) for name in alone}


def most_alone(command: Callable[..., object]) -> int | None:
    """Return how many arguments of a command may stand without an option; None: any number."""
    alone = positionals_of(command).values()
    return None if any(num_values(each.kind) is None for each in alone) else len(alone)


def num_values(kind: Any) -> int | None:
    """Return how many values an option of that type has, None: any number."""
    if kind is bool:
        return 0
    tuples = [typing.get_args(arm) for arm in arms(kind) if typing.get_origin(arm) is tuple]
    if not tuples:
        return 1
    return None if Ellipsis in tuples[0] else len(tuples[0])


def arms(kind: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type, without None."""
    union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return tuple(arm for arm in (typing.get_args(kind) if union else (kind,)) if arm is not types.NoneType)


def plain(option: str) -> str:
    """Return an option as typed without the hyphens before, and with hyphens for underscores within.

    One hyphen is for a letter: before a word it stays, as there is no such option.
    """
    if option.startswith("--"):
        return _hyphens(option[2:])
    return option[1:] if len(option) == 2 else option


def _of_group(group: CommandOption, path: str = "") -> Iterator[tuple[str, CommandOption]]:
    help_texts = _help_texts(group.kind)
    for name, kind in typing.get_type_hints(group.kind).items():
        if typing.get_origin(kind) is typing.ClassVar:
            continue
        option = CommandOption(kind, getattr(group.default, name, None), help_texts.get(name, ""))
        if is_dataclass(kind):
            yield from _of_group(option, f"{path}{_hyphens(name)}.")
        else:
            yield from _spellings(name, option, path)


def _spellings(name: str, option: CommandOption, path: str = "") -> Iterator[tuple[str, CommandOption]]:
    yield path + _hyphens(name), option
    if option.kind is bool:
        yield f"{path}no-{_hyphens(name)}", option


def _help_texts(owner: Callable[..., object]) -> dict[str, str]:
    """Return what the docstring of a command, or of a group of options, says of each of its parts."""
    _, _, parts = (inspect.getdoc(owner) or "").partition("Args:\n")
    return {name: " ".join(text.split()) for name, text in _HELP.findall(parts)}


def _hyphens(name: str) -> str:
    return name.replace("_", "-")
