"""Values of declared types: from JSON, from a message, or as somebody typed them."""

from __future__ import annotations

import types
import typing
from typing import Any, Literal

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
_SEVERAL = {int: "whole numbers", float: "numbers", bool: "true or false", str: "texts"}


def typed_value(kind: Any, value: Any, name: str, *, as_typed: bool = False) -> Any:
    """Return `value` as the declared type `kind`: whole numbers serve as float, lists as tuple, nothing else.

    `kind` is made of bool, int, float, str, Literal, tuple and None. `as_typed`: a text stands for the number
    or the choice that it spells, as in a field or on the command line. Raises ValueError with one sentence,
    which begins with `name`.
    """
    import msgspec  # here: a bare GPU machine measures the kernels without it

    try:
        return msgspec.convert(value, kind, strict=not as_typed)
    except msgspec.ValidationError:
        raise ValueError(f"{name} must be {in_words(kind)}, not {value!r}") from None


def in_words(kind: Any) -> str:
    """Return what values of a type are called in a sentence, as "3 numbers" or "one of a, b"."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is tuple:
        several = _SEVERAL.get(arguments[0], "values")
        return f"a list of {several}" if Ellipsis in arguments else f"a list of {len(arguments)} {several}"
    if origin in (typing.Union, types.UnionType):
        return " or ".join(in_words(arm) for arm in arguments if arm is not type(None))
    return _WORDS.get(kind, f"of type {getattr(kind, '__name__', kind)}")
