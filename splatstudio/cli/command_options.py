"""What a command takes, read from its signature: options, how many values they have, and of what kind."""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, Literal

OPTION = re.compile(r"--?[A-Za-z]")  # how one begins: not as a negative number does
NUMBERS = ("-inf", "-infinity", "-nan")  # but for these
KINDS = {int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Taken:
    """An argument as it was typed: an option with its values, or, without a name, what stands alone."""

    option: str | None  # as typed, --data_dir
    values: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the option's name as `options_of` has it."""
        return plain(self.option or "")


def options_of(command: Callable[..., object]) -> dict[str, Any]:
    """Return the options of a command, without hyphens before, and the type of each.

    As steps, optim.means-lr, no-resume; a switch is a bool.
    """
    hints = typing.get_type_hints(command)
    options: dict[str, Any] = {"help": bool, "h": bool}
    for name, parameter in inspect.signature(command).parameters.items():
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            continue
        hint = hints[name]
        options |= dict(_of_group(hint) if is_dataclass(hint) else _spellings(name, hint))
        if name == "output":
            options["o"] = hint
    return options


def most_alone(command: Callable[..., object]) -> int | None:
    """Return how many arguments of a command may stand without an option; None: any number."""
    hints = typing.get_type_hints(command)
    kinds = inspect.signature(command).parameters.items()
    alone = [hints[name] for name, parameter in kinds if parameter.kind is inspect.Parameter.POSITIONAL_ONLY]
    return None if any(_num_values(hint) is None for hint in alone) else len(alone)


def taken(arguments: Sequence[str], options: Mapping[str, Any], alone: int | None = 0) -> Iterator[Taken]:
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
        wanted = _num_values(options.get(plain(option), bool))
        most = max(len(rest) - max(missing, 0), 0) if wanted is None else wanted - len(values)
        for each in rest[: max(most, 0)]:
            if each == "--" or _is_option(each):
                break
            values.append(rest.pop(0))
        yield Taken(option, tuple(values))


def refused_value(option: str, values: Sequence[str], hint: Any) -> str | None:
    """Return a sentence about values that an option of that type cannot have, else None."""
    wanted = _num_values(hint)
    if wanted is not None and len(values) < wanted and not (values and values[0] == "None"):
        return f"{option} needs {_in_words(hint)} behind it"
    for value in values:
        if not _accepts(hint, value):
            return f"{option} needs {_in_words(hint)}, not {value}"
    return None


def plain(option: str) -> str:
    """Return an option as typed without the hyphens before, and with hyphens for underscores within.

    One hyphen is for a letter: before a word it stays, as there is no such option.
    """
    if option.startswith("--"):
        return _hyphens(option[2:])
    return option[1:] if len(option) == 2 else option


def _is_option(argument: str) -> bool:
    return OPTION.match(argument) is not None and argument.partition("=")[0].lower() not in NUMBERS


def _parted(argument: str, options: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return an option and the value that is written to it, if any: --steps=3, -o=FILE, -oFILE."""
    letter = argument[1]
    if len(argument) > 2 and letter in options and _num_values(options[letter]):
        return argument[:2], [argument[2:].removeprefix("=")]
    option, equals, value = argument.partition("=")
    return option, [value] if equals else []


def _of_group(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    for name, hint in typing.get_type_hints(group).items():
        if typing.get_origin(hint) is typing.ClassVar:
            continue
        if is_dataclass(hint):
            yield from _of_group(hint, f"{path}{_hyphens(name)}.")
        else:
            yield from _spellings(name, hint, path)


def _spellings(name: str, hint: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    yield path + _hyphens(name), hint
    if hint is bool:
        yield f"{path}no-{_hyphens(name)}", hint


def _hyphens(name: str) -> str:
    return name.replace("_", "-")


def _arms(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the one type, without None."""
    arms = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    return tuple(arm for arm in arms if arm is not types.NoneType)


def _num_values(hint: Any) -> int | None:
    """Return how many values an option of that type has, None: any number."""
    if hint is bool:
        return 0
    tuples = [typing.get_args(arm) for arm in _arms(hint) if typing.get_origin(arm) is tuple]
    if not tuples:
        return 1
    return None if Ellipsis in tuples[0] else len(tuples[0])


def _accepts(hint: Any, value: str) -> bool:
    if value == "None" and hint not in KINDS:
        return True  # where it is not allowed, there are other words for it
    for arm in _arms(hint):
        if typing.get_origin(arm) is tuple:
            arm = typing.get_args(arm)[0]  # of one kind all
        if typing.get_origin(arm) is Literal:
            if value in map(str, typing.get_args(arm)):
                return True
        elif arm not in KINDS or _is_number(arm, value):
            return True
    return False


def _is_number(kind: Callable[[str], object], value: str) -> bool:
    try:
        kind(value)
    except ValueError:
        return False
    return True


def _in_words(hint: Any) -> str:
    words: list[str] = []
    for arm in _arms(hint):
        if typing.get_origin(arm) is tuple:
            several, arm = typing.get_args(arm), typing.get_args(arm)[0]
            kind = "whole numbers" if arm is int else "numbers" if arm is float else _in_words(arm)
            words.append(kind if Ellipsis in several else f"{len(several)} {kind}")
        elif typing.get_origin(arm) is Literal:
            choices = [str(choice) for choice in typing.get_args(arm)]
            words.append(choices[0] if len(choices) == 1 else f"one of {', '.join(choices)}")
        else:
            words.append(KINDS.get(arm, "a name"))
    return " or ".join(words)
