"""Messages as bytes and back, by the types that their fields declare.

One form for the pipe, for the broadcast between ranks and for the socket: MessagePack. What comes from
another machine is never unpickled or run: a value is of the type that was asked for, or a ValueError.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union

import msgspec
import numpy as np

from splatstudio.cameras.camera import Camera
from splatstudio.cameras.camera_path import MAX_SIZE
from splatstudio.error_text import as_utf8
from splatstudio.runtime.messages import Command, Event, JobCommand, RankCommand

LONGEST = 200  # letters of what is wrong with a message, which may repeat much of it
MAX_MATRIX = 16  # numbers of an array: the matrix of a camera

T = TypeVar("T")


def encode(message: object) -> bytes:
    """Return a message as bytes."""
    try:
        return _ENCODER.encode(message)
    except UnicodeEncodeError:  # a text with the name of a file that is none
        return _ENCODER.encode(
            _as_utf8(msgspec.to_builtins(message, builtin_types=(bytes,), enc_hook=_encoded))
        )


def decode(data: bytes | memoryview, kind: type[T]) -> T:
    """Return the message of that type that `encode` wrote; ValueError, one sentence, where it is none.

    `Command` and `Event` stand for any message of theirs.
    """
    try:
        return _decoder(kind).decode(data)
    except (msgspec.MsgspecError, RecursionError, OverflowError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"this is no {kind.__name__}: {str(error)[:LONGEST]}") from error


def encode_order(command: Command, number: int = 0) -> bytes:
    """Return a command on its way to rank 0; one with a `number` above 0 is answered with Receipts."""
    return encode((number, command))


def decode_order(data: bytes) -> tuple[int, Command]:
    """Return number and command that `encode_order` wrote."""
    return _order_decoder().decode(data)


def concrete(kind: type[T]) -> tuple[type[T], ...]:
    """Return all messages of a kind, `Command` or `Event`, by their names."""
    found: list[type[T]] = []
    for child in kind.__subclasses__():
        found += concrete(child) if child in (JobCommand, RankCommand) else [child, *concrete(child)]
    return tuple(found)


@cache
def _order_decoder() -> msgspec.msgpack.Decoder[tuple[int, Command]]:
    # Made when first used: every command is declared by then.
    kind: Any = tuple[int, Union[concrete(Command)]]  # noqa: UP007
    return msgspec.msgpack.Decoder(kind, dec_hook=_decoded)


@cache
def _decoder(kind: Any) -> msgspec.msgpack.Decoder[Any]:
    if kind in (Command, Event):
        return msgspec.msgpack.Decoder(Union[concrete(kind)], dec_hook=_decoded)  # noqa: UP007 - made at run time
    return msgspec.msgpack.Decoder(kind, dec_hook=_decoded)


def _encoded(value: object) -> object:
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    if isinstance(value, Path):
        text = str(value)
        return text if text.isascii() or as_utf8(text) == text else os.fsencode(value)
    raise NotImplementedError(f"{type(value)} has no plain form")


def _as_utf8(value: Any) -> Any:
    if isinstance(value, str):
        return as_utf8(value)
    if isinstance(value, dict):
        return {_as_utf8(key): _as_utf8(item) for key, item in value.items()}
    return [_as_utf8(item) for item in value] if isinstance(value, (list, tuple)) else value


def _decoded(kind: type, value: Any) -> Any:
    if kind is np.ndarray:
        return _matrix(value)
    if kind is Path:
        if not isinstance(value, (str, bytes)) or not value or "\0" in (text := os.fsdecode(value)):
            raise ValueError("this is no path")
        return Path(text)
    raise NotImplementedError(f"{kind} has no plain form")


def _matrix(value: Any) -> np.ndarray:
    try:
        matrix = np.array(value, dtype=np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError("this is no matrix") from error
    if matrix.size > MAX_MATRIX or not np.isfinite(matrix).all():
        raise ValueError("this is no matrix of a camera")
    return matrix


def check_camera(camera: Camera) -> None:
    """Raise ValueError where a camera from another machine is none."""
    if camera.viewmat.shape != (4, 4) or camera.K.shape != (3, 3):
        raise ValueError("a camera has a 4 x 4 pose and 3 x 3 intrinsics")
    if not (1 <= camera.width <= MAX_SIZE and 1 <= camera.height <= MAX_SIZE):
        raise ValueError(f"a picture is 1 to {MAX_SIZE} pixels wide and high")
    if not (camera.K[0, 0] > 0 and camera.K[1, 1] > 0):
        raise ValueError("a focal length is above 0")


_ENCODER = msgspec.msgpack.Encoder(enc_hook=_encoded)
