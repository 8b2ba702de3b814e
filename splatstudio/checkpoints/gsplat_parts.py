"""What the content of gsplat's checkpoint files, one a rank, must be to be joined into one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from splatstudio.checkpoints.rank_parts import GSPLAT_NAME
from splatstudio.formats.torch_file import FLOATS

MOMENTS = ("exp_avg", "exp_avg_sq")
# What differs between ranks; all else each of them holds whole.
SPLIT = ("splats", "optimizers")
DEEPEST = 20  # levels of nesting in a state_dict: more is no state_dict


def check_part(file: Path, content: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the file, unless its splats and optimisers are what gsplat writes."""
    step = content.get("step", 0)
    if type(step) is not int or not step >= 0:
        raise ValueError(f"{file} is damaged: its 'step' is {_shown(step)}, not a number of steps")
    _check_splats(file, content["splats"])
    if "optimizers" in content:
        _check_optimizers(file, content["optimizers"], content["splats"])


def check_step(file: Path, content: Mapping[str, Any]) -> None:
    """Raise ValueError when a file holds another step than its name tells."""
    named = GSPLAT_NAME.fullmatch(file.name)
    if named is not None and content.get("step", int(named[1])) != int(named[1]):
        raise ValueError(
            f"{file} was renamed or mixed up: it holds step {content['step']}, not {int(named[1])}"
        )


def check_alike(first_file: Path, first: Mapping[str, Any], file: Path, content: Mapping[str, Any]) -> None:
    """Raise ValueError unless two parts are of one step, of the same shapes, and share what is not split."""
    steps = [first.get("step"), content.get("step")]
    if steps[0] != steps[1]:
        raise ValueError(
            f"the steps do not agree: {first_file} holds step {steps[0]}, {file} step {steps[1]}"
        )
    for ours, theirs in [
        (first, content),
        (first["splats"], content["splats"]),
        (first.get("optimizers", {}), content.get("optimizers", {})),
    ]:
        if ours.keys() != theirs.keys():
            names = ", ".join(sorted(str(name) for name in ours.keys() ^ theirs.keys()))
            raise ValueError(f"{first_file} and {file} do not hold the same: {names} is in one alone")
    for name, tensor in first["splats"].items():
        _check_row(name, first_file, tensor, file, content["splats"][name])
    for name in first:
        if name not in SPLIT and not _same(first[name], content[name]):
            raise ValueError(
                f"{first_file} and {file} are not parts of one training: {name!r}, which all ranks share,"
                " differs"
            )


def check_distinct(files: Sequence[Path], contents: Sequence[Mapping[str, Any]]) -> None:
    """Raise ValueError where the parts hold nothing, or two of them the same: ranks share no Gaussian."""
    means = [content["splats"]["means"] for content in contents]
    if sum(map(len, means)) == 0:
        raise ValueError(f"{files[0]} and the parts with it hold no splats")
    for index, later in enumerate(means):
        for other in range(index):
            if len(later) > 0 and torch.equal(means[other], later):
                raise ValueError(
                    f"{files[other]} and {files[index]} hold the same splats: one was copied over the"
                    " part of another rank"
                )


def _check_splats(file: Path, splats: Mapping[str, Any]) -> None:
    """Raise ValueError unless these are dense tensors with one row for each Gaussian."""
    if "means" not in splats:
        raise ValueError(f"{file} has no 'means': it is not a model of splats")
    for name, tensor in splats.items():
        if not _is_dense(tensor) or tensor.ndim == 0:
            raise ValueError(f"{file}: {name!r} is not a dense tensor of floating-point numbers")
        if _claims_too_much(tensor):
            raise ValueError(f"{file} is damaged: {name!r} claims more numbers than it has")
        num = len(splats["means"])
        if len(tensor) != num:
            raise ValueError(f"{file} is damaged: {name!r} has {len(tensor)} rows, the means {num}")
        finite = tensor.isfinite()
        if not bool(finite.all()):
            row = int((~finite).nonzero()[0, 0])
            raise ValueError(f"{file} is damaged: {name!r} of splat {row} is no finite number")


def _check_optimizers(file: Path, optimizers: Any, splats: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless these are the state_dicts of an Adam for each of some of the splats."""
    if not isinstance(optimizers, Mapping):
        raise ValueError(f"{file} is damaged: its 'optimizers' are {_shown(optimizers)}, not one by name")
    for name, optimizer in optimizers.items():
        states = optimizer.get("state") if isinstance(optimizer, Mapping) else None
        state = states.get(0) if isinstance(states, Mapping) else None
        if not isinstance(state, Mapping) or name not in splats:
            raise ValueError(f"{file} is damaged: the optimiser {name!r} has no state of one of the splats")
        for moment in MOMENTS:
            tensor = state.get(moment)
            if not _is_dense(tensor) or _claims_too_much(tensor) or tensor.shape != splats[name].shape:
                raise ValueError(
                    f"{file} is damaged: {moment} of the optimiser {name!r} is not a tensor of the shape of"
                    f" {name!r}"
                )
        if not _is_count(state.get("step", 0)):
            raise ValueError(
                f"{file} is damaged: the step of the optimiser {name!r} is {_shown(state['step'])},"
                " not a number of steps"
            )


def _check_row(name: str, first_file: Path, ours: Tensor, file: Path, theirs: Tensor) -> None:
    shapes = [tuple(tensor.shape[1:]) for tensor in (ours, theirs)]
    if shapes[0] != shapes[1]:
        found = [" x ".join(map(str, shape)) for shape in shapes]
        why = ": the degrees of their spherical harmonics differ" if name == "shN" else ""
        raise ValueError(
            f"{name!r} has {found[0]} numbers for each splat in {first_file}, but {found[1]} in {file}{why}"
        )
    if ours.dtype != theirs.dtype:
        raise ValueError(f"{name!r} is {ours.dtype} in {first_file}, {theirs.dtype} in {file}")


def _is_dense(tensor: Any) -> TypeGuard[Tensor]:
    return (
        isinstance(tensor, Tensor)
        and tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in FLOATS
        and not tensor.is_quantized
    )


def _claims_too_much(tensor: Tensor) -> bool:
    """Return whether a few numbers pretend to be many by being counted again and again."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def _is_count(step: Any) -> bool:
    """Return whether this is a number of steps as Adam keeps it: a number, or a tensor of one."""
    if isinstance(step, Tensor):
        if (
            step.numel() != 1
            or step.layout != torch.strided
            or step.device.type != "cpu"
            or step.is_complex()
        ):
            return False
        step = step.item()
    return type(step) in (int, float) and 0 <= step < 2**62


def _same(ours: Any, theirs: Any, depth: int = 0) -> bool:
    """Return whether two state_dicts, or values in them, are equal; NaN equals itself."""
    if depth > DEEPEST or type(ours) is not type(theirs):
        return False
    if isinstance(ours, Tensor):
        return _same_tensor(ours, theirs)
    if isinstance(ours, Mapping):
        return ours.keys() == theirs.keys() and all(_same(ours[k], theirs[k], depth + 1) for k in ours)
    if isinstance(ours, (list, tuple)):
        pairs = zip(ours, theirs, strict=False)
        return len(ours) == len(theirs) and all(_same(one, other, depth + 1) for one, other in pairs)
    return bool(ours == theirs or (ours != ours and theirs != theirs))


def _same_tensor(ours: Tensor, theirs: Tensor) -> bool:
    if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
        return False
    if any(
        one.layout != torch.strided or one.is_quantized or one.device.type != "cpu" for one in (ours, theirs)
    ):
        return False
    if _claims_too_much(ours) or _claims_too_much(theirs):
        return False
    return bool(torch.all((ours == theirs) | ((ours != ours) & (theirs != theirs))))


def _shown(value: Any) -> str:
    text = repr(value).splitlines()[0] if isinstance(value, (int, float, str)) else type(value).__name__
    return text if len(text) <= 40 else f"{text[:37]}..."
