"""What a GPU would make the host wait for, told by torch's calls: for tests on the CPU, of one memory.

A tensor counts as the host's where nobody named a device for it or the name is "cpu", and so does all that is
made of such tensors alone; every other one as a GPU's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from splatstudio.devices import transfer
from splatstudio.scene import photo_uploads

# These copy without waiting, or are where the host may wait: what they do is not told. (On a GPU photos
# are copied by a stream of their own, see `PhotoUploads`.)
_LET = {f.__code__ for f in (transfer.to_device, transfer.ReadBack.read, photo_uploads.pixels_of)}
# What needs a number, or a size, that only the device knows.
_READS = {
    "item",
    "tolist",
    "numpy",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__array__",
    "__contains__",
}
_SIZES = {
    "nonzero",
    "argwhere",
    "masked_select",
    "unique",
    "unique_consecutive",
    "equal",
    "allclose",
    "bincount",
}
_FROM_HOST = {"tensor", "as_tensor", "new_tensor", "from_numpy", "frombuffer", "asarray"}
_FILLED = {
    "zeros",
    "ones",
    "empty",
    "full",
    "arange",
    "eye",
    "linspace",
    "rand",
    "randn",
    "randint",
    "randperm",
}


class HostWatch(TorchFunctionMode):
    """Collects the calls for which the host would wait for a GPU, each with the place in the product."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []
        self._host: Any = WeakIdKeyDictionary()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", str(func))
        tensors = list(_tensors([args, kwargs]))
        on_host = [tensor in self._host for tensor in tensors]
        if (reason := self._reason(name, args, kwargs, on_host)) and not _inside(_LET):
            self.waits.append(f"{reason} in {_place()}")
        result = func(*args, **kwargs)
        if sys._getframe(1).f_code is transfer.to_device.__code__:
            self._host.pop(result, None)  # here it may be the very tensor that was given
        elif self._is_hosts(name, kwargs, on_host):
            for tensor in _tensors([result]):
                self._host[tensor] = True
        return result

    def _reason(self, name: str, args: Any, kwargs: Any, on_host: list[bool]) -> str | None:
        of_gpu = bool(on_host) and not all(on_host)
        if name in _FROM_HOST:
            return f"{name} on a device" if self._on_gpu(name, kwargs) else None
        if not of_gpu:
            return "a copy to a device" if name in ("to", "cuda") and _names_device(args, kwargs) else None
        if name in _READS | _SIZES or (name == "where" and len(args) + len(kwargs) == 1):
            return name
        if name in ("cpu", "to") and (name == "cpu" or "cpu" in [*args[1:], *kwargs.values()]):
            return "a copy to the host"
        if name == "to" and on_host[0]:
            return "a copy to a device"
        if name == "repeat_interleave" and len(on_host) > 1 and kwargs.get("output_size") is None:
            return name
        if name in ("__getitem__", "__setitem__"):
            return self._reason_of_index(args[1])
        if name == "copy_" and on_host[0] != on_host[-1]:
            return "a copy between host and device"
        return None

    def _reason_of_index(self, index: Any) -> str | None:
        for part in index if isinstance(index, tuple) else (index,):
            if isinstance(part, list | np.ndarray) or (isinstance(part, Tensor) and part in self._host):
                return "an index that the host has"
            if isinstance(part, Tensor) and part.dtype == torch.bool:
                return "an index that is a mask"
        return None

    def _on_gpu(self, name: str, kwargs: Any) -> bool:
        if name == "new_tensor":
            return kwargs.get("device") != "cpu"
        return isinstance(kwargs.get("device"), torch.device)

    def _is_hosts(self, name: str, kwargs: Any, on_host: list[bool]) -> bool:
        if "device" in kwargs and kwargs["device"] is not None:
            return kwargs["device"] == "cpu"
        if name == "cpu":
            return True
        if name in _FROM_HOST | _FILLED and not on_host:
            return True
        return bool(on_host) and all(on_host)


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _tensors(each)
    elif isinstance(value, dict):
        yield from _tensors(list(value.values()))


def _names_device(args: Any, kwargs: Any) -> bool:
    return any(isinstance(value, torch.device) for value in [*args[1:], *kwargs.values()])


def _frames() -> Iterator[Any]:
    frame = sys._getframe(2)
    while frame is not None:
        yield frame
        frame = frame.f_back


def _inside(codes: set[Any]) -> bool:
    return any(frame.f_code in codes for frame in _frames())


def _place() -> str:
    for frame in _frames():
        file = frame.f_code.co_filename
        if "/splatstudio/" in file and "/tests/" not in file:
            return f"{file.rsplit('/splatstudio/', 1)[1]}:{frame.f_lineno}"
    return "a test"


def watched(work: Callable[[], Any]) -> list[str]:
    """Return what the host would wait for in `work`."""
    with HostWatch() as watch:
        work()
    return watch.waits
