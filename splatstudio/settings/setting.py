"""What a setting is, and how what a user types becomes a value or a path."""

from __future__ import annotations

import os
import re
import types
import typing
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from splatstudio.error_text import shown

T = TypeVar("T")


@dataclass(frozen=True)
class Setting:
    """What is declared of a hyper-parameter besides its type and default."""

    help: str
    low: float | None = None
    high: float | None = None
    live: bool = False
    least: float | None = None  # but for 0, which switches something off


def setting(
    default: Any,
    text: str,
    low: float | None = None,
    high: float | None = None,
    *,
    live: bool = False,
    least: float | None = None,
) -> Any:
    """Declare a dataclass field with its default, one line of help (`text`) and its range.

    `live` says that a running training takes a new value at its next step; between 0, which switches
    something off, and `least` no value makes sense.
    """
    return field(default=default, metadata={"setting": Setting(text, low, high, live, least)})


def documented(cls: type[T]) -> type[T]:
    """Append the fields' help to the docstring, where tyro finds it, so that it is written once."""
    lines = [
        f"    {f.name}: {f.metadata['setting'].help}"
        for f in fields(typing.cast(Any, cls))
        if "setting" in f.metadata
    ]
    cls.__doc__ = (cls.__doc__ or "") + "\n\nArgs:\n" + "\n".join(lines)
    return cls


_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text", Path: "a path"}
_SEVERAL = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts", Path: "paths"}


def typed_value(kind: Any, value: Any, name: str, *, as_typed: bool = False) -> Any:
    """Return `value` as the declared type `kind`: whole numbers serve as float, lists as tuple, nothing else.

    `kind` is made of bool, int, float, str, Path, Literal, tuple and None. `as_typed`: a text stands for the
    number or the choice that it spells, as in a field or on the command line. Raises ValueError with one
    sentence, which begins with `name`.
    """
    import msgspec  # here: a bare GPU machine measures the kernels without it

    if kind is str and isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif hasattr(value, "item") and getattr(value, "ndim", None) == 0:  # a number of numpy's or torch's
        value = value.item()
    plain = _as_in_json(value) if as_typed and not _kinds_in(kind) & {str, Path} else value
    try:
        return msgspec.convert(plain, kind, strict=not as_typed, dec_hook=lambda of, each: of(each))
    except msgspec.ValidationError:
        raise ValueError(f"{name} must be {in_words(kind)}, not {value!r:.60}") from None


_NUMBER = re.compile(r"([+-]?)(?:(\d+)\.?|(\d*)(\.\d+))((?:[eE][+-]?\d+)?)")


def _kinds_in(kind: Any) -> frozenset[Any]:
    """Return the types of which a type is made: those of its items, or of its alternatives."""
    if not (parts := typing.get_args(kind)) or typing.get_origin(kind) is Literal:
        return frozenset({kind})
    return frozenset().union(*map(_kinds_in, parts))


def _as_in_json(value: Any) -> Any:
    """Return what was typed with numbers as JSON has them, and so msgspec: ".5", "+5" and "5." are none."""
    if isinstance(value, (list, tuple)):
        return [_as_in_json(each) for each in value]
    match = _NUMBER.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        return value
    sign, whole, before, after, power = match.groups(default="")
    return f"{sign.replace('+', '')}{whole or before or '0'}{after}{power}"


def in_words(kind: Any) -> str:
    """Return what values of a type are called in a sentence, as "3 numbers" or "one of a, b"."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        choices = ", ".join(map(str, arguments))
        return f"one of {choices}" if len(arguments) > 1 else choices
    if origin is tuple:
        several = _SEVERAL.get(arguments[0]) or in_words(arguments[0])
        return several if Ellipsis in arguments else f"{len(arguments)} {several}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(arm) for arm in arguments if arm is not type(None))
    return _WORDS.get(kind, f"of type {getattr(kind, '__name__', kind)}")


def typed_path(text: str | Path) -> Path:
    """Return the path that somebody typed, ~ and ~name replaced by that user's folder.

    Raises ValueError with one sentence where no such folder is known, or where no file can be called that.
    """
    if not isinstance(text, (str, os.PathLike)):
        raise ValueError(f"this is to be the path of a file or folder, not {shown(text)}")
    if "\0" in str(text):
        raise ValueError("a path cannot hold a NUL character; type it again")
    if str(text).startswith(("http://", "https://", "http:/", "https:/")):
        address = re.sub(":/+", "://", str(text), count=1)  # a path has lost a slash of it
        raise ValueError(f"{address} is an address of the network: download what is there, and open that")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        start = Path(text).parts[0]
        raise ValueError(
            f"the folder {start} of {text} is not known here; write the whole path, beginning with /"
        ) from error


def typed_output(text: str) -> Path:
    """Return the path of a file or folder to write that somebody typed, as `typed_path`.

    Raises ValueError as it does, and where the path has no name, as that of an emptied field.
    """
    path = typed_path(text.strip())
    if path.name in ("", ".."):
        raise ValueError(
            f"{text.strip() or 'an empty field'} names no file; type the name of the one to write"
        )
    return path
