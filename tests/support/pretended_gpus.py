"""Ranks without GPUs that behave as ranks with: tensors say where they would be, groups take what NCCL takes.

A tensor that is made on `GPU`, or from one that is, is marked as one of the GPU; all lie in the memory of the
host. What a GPU or NCCL would not do raises: an operation on tensors of both, `numpy` of a GPU's, tensors of
the host in the group of the GPUs and the other way round, kinds of numbers that NCCL has not, parts that do
not add up, and ranks that do not all send the same in the same order, for which NCCL would wait for ever.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.overrides import TorchFunctionMode

from splatstudio.distributed import process_ranks
from splatstudio.distributed.process_ranks import ProcessRanks
from splatstudio.distributed.ranks import Ranks
from splatstudio.kernels import ops
from splatstudio.rendering import render

GPU = torch.device("xpu", 0)  # no kernels of this package, and none of torch's here, are for it
MARK = "_on_the_gpu"
NCCL_DTYPES = {torch.int8, torch.uint8, torch.bool, torch.int32, torch.int64}
NCCL_DTYPES |= {torch.float16, torch.bfloat16, torch.float32, torch.float64}
# These may take tensors of both: a copy, and an index that lies on the host.
MIXED = {Tensor.copy_, Tensor.__getitem__, Tensor.__setitem__, torch.Tensor.to}


def is_marked(tensor: Tensor) -> bool:
    return MARK in tensor.__dict__


def tensors_in(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_in(value)


def mark(values: Any) -> Any:
    for tensor in tensors_in(values):
        setattr(tensor, MARK, True)
    return values


def on_host(value: Any) -> Any:
    return torch.device("cpu") if isinstance(value, torch.device) and value == GPU else value


class PretendedGpu(TorchFunctionMode):
    """Marks tensors of the GPU, and refuses what a GPU would not do."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func == Tensor.device.__get__:  # type: ignore[attr-defined]
            return GPU if is_marked(args[0]) else func(*args)
        given = list(tensors_in((args, kwargs)))
        marked = any(is_marked(tensor) for tensor in given)
        named = [each for each in (*args, *kwargs.values()) if isinstance(each, (torch.device, str))]
        places = [torch.device(each) for each in named if not isinstance(each, str) or each == "cpu"]
        if func in (Tensor.cpu, Tensor.to) and (func is Tensor.cpu or places):
            target = torch.device("cpu") if func is Tensor.cpu else places[0]
            moved = func(*(on_host(each) for each in args), **{k: on_host(v) for k, v in kwargs.items()})
            if moved is args[0] and is_marked(moved) != (target == GPU):
                moved = moved.clone()  # on a real one it would have been another tensor
            moved.__dict__.pop(MARK, None)
            return mark(moved) if target == GPU else moved
        if func is Tensor.numpy and marked:
            raise TypeError("a tensor of the GPU has no numpy array")
        if marked and not places and func not in MIXED:
            foreign = [each for each in given if each.dim() > 0 and not is_marked(each)]
            assert not foreign, f"{func.__name__} of tensors of the GPU and of the host"
        result = func(*(on_host(each) for each in args), **{k: on_host(v) for k, v in kwargs.items()})
        if places:
            return mark(result) if places[0] == GPU else result
        return mark(result) if marked else result


@dataclass(frozen=True, eq=False)
class GpuGroup:
    """Stands for a group of NCCL; `carrier` is one of gloo with the same ranks."""

    carrier: dist.ProcessGroup


@dataclass(frozen=True, eq=False)
class LateWork:
    """An exchange that is made when it is waited for, as late as may be."""

    make: Callable[[], None]

    def wait(self) -> None:
        self.make()


@dataclass
class StrictDist:
    """What `process_ranks` calls of torch.distributed, checked as NCCL checks it, and more."""

    carrier: dist.ProcessGroup
    calls: Counter[tuple[str, str]] = field(default_factory=Counter)  # by group and kind

    def get_rank(self, group: Any) -> int:
        return dist.get_rank(self.carrier)

    def get_world_size(self, group: Any) -> int:
        return dist.get_world_size(self.carrier)

    def all_reduce(self, tensor: Tensor, group: Any) -> None:
        self._check(group, "all_reduce", [tensor], (tuple(tensor.shape),))
        dist.all_reduce(tensor, group=self.carrier)

    def all_gather(self, parts: list[Tensor], tensor: Tensor, group: Any) -> None:
        assert all(part.shape == tensor.shape for part in parts), "NCCL gathers as much of each"
        self._check(group, "all_gather", [tensor, *parts], (tuple(tensor.shape),))
        dist.all_gather(parts, tensor, group=self.carrier)

    def all_to_all_single(
        self,
        got: Tensor,
        sent: Tensor,
        received: Sequence[int] | None = None,
        given: Sequence[int] | None = None,
        *,
        group: Any,
        async_op: bool = False,
    ) -> LateWork | None:
        num = dist.get_world_size(self.carrier)
        received = [len(got) // num] * num if received is None else received
        given = [len(sent) // num] * num if given is None else given
        assert len(received) == len(given) == num and min(*received, *given) >= 0
        assert sum(received) == len(got) and sum(given) == len(sent), "splits add up to the rows"
        assert got.data_ptr() != sent.data_ptr() or got.numel() == 0, "NCCL does not exchange in place"
        self._check(group, "all_to_all", [got, sent], (tuple(sent.shape[1:]),))
        if async_op:
            got.fill_(math.nan)
            return LateWork(lambda: self._exchange(got, sent, received, given))
        self._exchange(got, sent, received, given)
        return None

    def _exchange(self, got: Tensor, sent: Tensor, received: Sequence[int], given: Sequence[int]) -> None:
        num = dist.get_world_size(self.carrier)
        told = torch.tensor([list(given), list(received)])
        tables = [torch.zeros_like(told) for _ in range(num)]
        dist.all_gather(tables, told, group=self.carrier)
        both = torch.stack(tables, dim=1)  # [2, num, num]: what each gives to each, and gets of each
        assert torch.equal(both[0], both[1].t()), f"{both[0].t().tolist()} rows come for {both[1].tolist()}"
        dist.all_to_all_single(got, sent, list(received), list(given), group=self.carrier)

    def _check(self, group: Any, kind: str, tensors: Sequence[Tensor], shape: tuple[Any, ...]) -> None:
        of_gpus = isinstance(group, GpuGroup)
        for tensor in tensors:
            assert is_marked(tensor) == of_gpus, f"{kind} in the wrong group for {tensor.dtype}"
            assert tensor.is_contiguous(), f"{kind} of a tensor with gaps"
            assert not (of_gpus and tensor.requires_grad), f"{kind} of what gradients go through"
            assert not of_gpus or tensor.dtype in NCCL_DTYPES, f"{kind} of {tensor.dtype}"
        self.calls["GPU" if of_gpus else "host", kind] += 1
        said = f"{of_gpus} {kind} {tensors[0].dtype} {shape}"
        number = int.from_bytes(hashlib.sha256(said.encode()).digest()[:7], "little")
        everybody = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size(self.carrier))]
        dist.all_gather(everybody, torch.tensor([number]), group=self.carrier)
        assert len({int(each) for each in everybody}) == 1, f"another rank does something else than {said}"


@contextmanager
def pretended(ranks: Ranks) -> Iterator[tuple[Ranks, StrictDist]]:
    """Let ranks have GPUs: give those to train on and what has counted what they exchange."""
    carrier: dist.ProcessGroup = ranks._group  # type: ignore[attr-defined]
    strict, has_kernel, code = StrictDist(carrier), ops.has_kernel, render.stages_for.__code__
    process_ranks.dist = strict  # type: ignore[assignment]
    # The host's kernels do the work, wherever `stages_for` was imported to.
    render.stages_for.__code__ = (lambda tensor: ops).__code__
    ops.has_kernel = lambda name, device_type: has_kernel(name, "cpu")
    try:
        with PretendedGpu():
            yield ProcessRanks(GpuGroup(carrier), carrier), strict  # type: ignore[arg-type]
    finally:
        process_ranks.dist, ops.has_kernel, render.stages_for.__code__ = dist, has_kernel, code
