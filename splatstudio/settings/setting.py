"""How a hyper-parameter is declared: once, with its default, help, range, and whether it may change live."""

from __future__ import annotations

import typing
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

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
