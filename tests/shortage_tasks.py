"""Ranks of the tests that are short of memory; functions of a module, as other processes run them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splatstudio.config import TrainConfig
from splatstudio.distributed.ranks import Ranks
from splatstudio.gaussians import Gaussians
from splatstudio.scene import load_scene
from splatstudio.trainer import Trainer
from splatstudio.worker.control import Turn
from splatstudio.worker.crew import Leader, Member


@contextmanager
def replaced(owner: Any, name: str, other: Callable[..., Any]) -> Iterator[None]:
    """Put `other` in the place of what `owner` has as `name`."""
    before = getattr(owner, name)
    setattr(owner, name, other)
    try:
        yield
    finally:
        setattr(owner, name, before)


def no_memory(*_: object, **__: object) -> None:
    raise torch.OutOfMemoryError("there is no room left")


def copy_twice(ranks: Ranks, folder: Path) -> tuple[str, Gaussians | None, Gaussians]:
    """Ask for a copy of the model that rank 0 has no memory for, then for another one."""
    trainer = Trainer(load_scene(folder), TrainConfig(), ranks=ranks)
    own = trainer.gaussians.map(Tensor.clone)
    refused, model = "", None
    try:
        if ranks.rank > 0:
            member = Member(trainer, ranks)
            member.take_part(Turn.COPY, b"")
            member.take_part(Turn.COPY, b"")
            return refused, model, own
        leader = Leader(trainer, ranks, lambda *_: None)
        try:
            with replaced(Tensor, "new_empty", no_memory):
                leader.whole_model()
        except MemoryError as error:
            refused = str(error)
        return refused, leader.whole_model(), own
    finally:
        trainer.close()
