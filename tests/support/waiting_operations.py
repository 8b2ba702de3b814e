"""The operations of torch for which the host waits on an emulated GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# What needs a number, or a size, that only the device knows.
WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "equal")


class WaitingOperations(TorchDispatchMode):
    """Collects the operations of torch for which the host waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_mask = name.startswith("index") and any(
            isinstance(index, torch.Tensor) and index.dtype == torch.bool
            for index in (args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ())
        )
        if name.startswith(WAITING) or by_mask:
            self.waiting.append(name)
        return func(*args, **(kwargs or {}))
