"""Messages as plain JSON and back, by the types that their fields declare.

What comes over a network is never unpickled or run: a value is of the type that was asked for, or a
ValueError.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import MAX_SIZE

MAX_NUMBERS = 16  # of an array: a matrix of a camera
LEFT_OUT = "number"  # of orders: who passes them on numbers them

T = TypeVar("T")


def plain(value: object) -> Any:
    """Return a message, or a value in one, as what JSON knows."""
    if is_dataclass(value):
        return {
            field.name: plain(getattr(value, field.name)) for field in fields(value) if field.name != LEFT_OUT
        }
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    assert value is None or isinstance(value, (bool, int, float, str)), f"{type(value)} has no plain form"
    return value


def from_plain(kind: type[T], values: object) -> T:
    """Return the `kind`, a dataclass, of which `values` is the plain form; ValueError where it is none."""
    if not isinstance(values, dict):
        raise ValueError(f"this is no {kind.__name__}")
    hints = _hints(kind)
    if unknown := [str(name) for name in values if name not in hints]:
        raise ValueError(f"{kind.__name__} has no {', '.join(unknown)}")
    try:
        made = kind(**{name: _value(hints[name], value) for name, value in values.items()})
    except (TypeError, OverflowError) as error:
        raise ValueError(f"this is no {kind.__name__}: {error}") from error
    if isinstance(made, Camera):
        _check_camera(made)
    return made


@cache
def _hints(kind: type) -> dict[str, Any]:
    hints = get_type_hints(kind)
    return {field.name: hints[field.name] for field in fields(kind) if field.init and field.name != LEFT_OUT}


def _value(hint: Any, value: Any) -> Any:
    origin = get_origin(hint)
    if hint is Any:
        return _scalars(value)
    if origin in (Union, types.UnionType):
        return _first_of(get_args(hint), value)
    if origin is Literal:
        if not isinstance(value, str) or value not in get_args(hint):
            raise ValueError(f"{value!r:.40} is none of {get_args(hint)}")
        return value
    if origin is tuple:
        return _tuple(get_args(hint), value)
    if is_dataclass(hint):
        return from_plain(hint, value)  # type: ignore[arg-type]
    if hint in _PLAIN:
        return _PLAIN[hint](value)
    raise AssertionError(f"no plain form of {hint} is known")


def _first_of(hints: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in hints:
        return None
    errors: list[str] = []
    for hint in hints:
        if hint is type(None):
            continue
        try:
            return _value(hint, value)
        except ValueError as error:
            errors.append(str(error))
    raise ValueError("; ".join(errors))


def _tuple(hints: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list):
        raise ValueError("this is no list")
    if len(hints) == 2 and hints[1] is Ellipsis:
        return tuple(_value(hints[0], item) for item in value)
    if len(value) != len(hints):
        raise ValueError(f"{len(hints)} values are needed, not {len(value)}")
    return tuple(_value(hint, item) for hint, item in zip(hints, value, strict=True))


def _scalars(value: Any) -> Any:
    """Return the value of a setting: a scalar, or a tuple of such."""
    if isinstance(value, list):
        return tuple(_scalars(item) for item in value)
    if value is not None and not isinstance(value, (bool, int, float, str)):
        raise ValueError("a setting is a number, a word, or a list of them")
    return value


def _of_type(*allowed: type) -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        if type(value) not in allowed:
            raise ValueError(f"{value!r:.40} is no {allowed[0].__name__}")
        return allowed[0](value)

    return check


def _path(value: Any) -> Path:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError("this is no path")
    return Path(value)


def _array(value: Any) -> np.ndarray:
    try:
        array = np.array(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError("this is no matrix") from error
    if array.size > MAX_NUMBERS or not np.isfinite(array).all():
        raise ValueError("this is no matrix of a camera")
    return array


_PLAIN: dict[Any, Callable[[Any], Any]] = {
    bool: _of_type(bool),
    int: _of_type(int),
    float: _of_type(float, int),
    str: _of_type(str),
    Path: _path,
    np.ndarray: _array,
}


def _check_camera(camera: Camera) -> None:
    if camera.viewmat.shape != (4, 4) or camera.K.shape != (3, 3):
        raise ValueError("a camera has a 4 x 4 pose and 3 x 3 intrinsics")
    if not (1 <= camera.width <= MAX_SIZE and 1 <= camera.height <= MAX_SIZE):
        raise ValueError(f"a picture is 1 to {MAX_SIZE} pixels wide and high")
    if not (camera.K[0, 0] > 0 and camera.K[1, 1] > 0):
        raise ValueError("a focal length is above 0")
