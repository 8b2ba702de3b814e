"""Files of torch.save from anywhere, read without running anything that they contain; three programs' models.

gsplat's trainer: {"step": int, "splats": {means, scales, quats, ...}}. The original trainer, chkpnt30000.pth:
((degree, xyz, ...), iteration). nerfstudio's splatfacto: {"step": int, "pipeline": {name: tensor}}.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splatstudio.error_text import first_line
from splatstudio.files.inputs import refuse_larger_than_memory
from splatstudio.formats.model_arrays import (
    NUM_SHN,
    ModelArrays,
    SplatFile,
    arrays_to_write,
    splats_read,
    write_file,
)
from splatstudio.formats.quantize import sh0_of
from splatstudio.gaussians.gaussians import Gaussians

# The order of the state that the original trainer's model returns for saving; statistics and Adam's follow.
INRIA_ORDER = ("sh_degree", "means", "sh0", "shN", "scales", "quats", "opacities")
# The names of nerfstudio's parameters behind "_model.", in versions before 1.1 without "gauss_params.".
NERFSTUDIO_NAMES = {"sh0": "features_dc", "shN": "features_rest"}
NERFSTUDIO_PREFIXES = ("_model.gauss_params.", "_model.")
# What a damaged or hostile pickle makes torch's restricted unpickler raise.
DAMAGE = (
    pickle.UnpicklingError,
    RuntimeError,
    EOFError,
    LookupError,
    TypeError,
    AttributeError,
    ValueError,
    ArithmeticError,
    AssertionError,
    MemoryError,
    NotImplementedError,
)
# Learning rates that NumPy has computed, which nerfstudio keeps; under both names that NumPy has used.
_SCALAR = np.float64(0).__reduce__()[0]
NUMBERS: list[Any] = [
    (_SCALAR, "numpy.core.multiarray.scalar"),
    (_SCALAR, "numpy._core.multiarray.scalar"),
    np.dtype,
    *(type(np.dtype(kind)) for kind in (np.float64, np.float32, np.int64)),
]
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


def load_tensors(path: Path) -> Any:
    """Return what torch.save wrote to `path`, its tensors on the CPU; only values and tensors are built.

    Raises ValueError, naming the file and the reason, when it is missing, damaged, or holds anything else.
    """
    try:
        refuse_larger_than_memory(path)
        _refuse_expanding(path)
        with torch.serialization.safe_globals(NUMBERS):
            return torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror or error}") from error
    except zipfile.BadZipFile as error:
        reason = first_line(error)[:200]
        raise ValueError(f"{path} is cut off, or not a file of PyTorch 1.6 or later: {reason}") from error
    except pickle.UnpicklingError as error:
        if "Unsupported" in str(error) or "GLOBAL" in str(error):
            raise ValueError(
                f"{path} is refused: it holds more than tensors, which could be a program"
            ) from error
        raise ValueError(f"{path} is damaged: its list of contents makes no sense") from error
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged: {first_line(error)[:200]}") from error


def _refuse_expanding(path: Path) -> None:
    """Raise ValueError when an entry of the archive is compressed: torch never does that, a bomb may."""
    with zipfile.ZipFile(path) as archive:
        for entry in archive.infolist():
            if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
                raise ValueError("an entry is compressed, which PyTorch never does")


def save_tensors(path: Path, content: Any) -> None:
    """Write `content` as torch.save does, to a file that is complete or not there; ValueError on failure."""
    buffer = io.BytesIO()
    torch.save(content, buffer)
    write_file(path, buffer.getbuffer())


def claims_too_much(tensor: Tensor) -> bool:
    """Return whether a few numbers pretend to be many by being counted again and again."""
    return tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes()


def splats_of_tensors(path: Path, tensors: Mapping[str, Any], step: int | None = None) -> SplatFile:
    """Return what the file `path` holds, with the `tensors` means, quats, scales, opacities, sh0 and shN.

    Opacities may be [N] or [N, 1]. Raises ValueError when one is missing or of a wrong type or shape.
    """
    for name in ("means", "quats", "scales", "opacities", "sh0", "shN"):
        if name not in tensors:
            raise ValueError(f"{path} has no {name!r}: it is not a model of splats with spherical harmonics")
        tensor = tensors[name]
        if not (isinstance(tensor, Tensor) and tensor.dtype in FLOATS and tensor.layout == torch.strided):
            raise ValueError(f"{path}: {name!r} is not a dense tensor of floating-point numbers")
        if tensor.device.type != "cpu" or tensor.is_quantized:
            raise ValueError(f"{path}: {name!r} has no values of its own")
        if claims_too_much(tensor):
            raise ValueError(f"{path} is damaged: {name!r} claims more numbers than it has")
    means = tensors["means"]
    num = means.shape[0] if means.ndim else 0
    if num == 0:
        raise ValueError(f"{path} holds no splats")
    expected: dict[str, Sequence[tuple[int, ...]]] = {
        "means": [(num, 3)],
        "quats": [(num, 4)],
        "scales": [(num, 3)],
        "opacities": [(num,), (num, 1)],
        "sh0": [(num, 1, 3)],
        "shN": [(num, coefficients, 3) for coefficients in NUM_SHN],
    }
    for name, shapes in expected.items():
        if tuple(tensors[name].shape) not in shapes:
            found = " x ".join(map(str, tensors[name].shape))
            wanted = " x ".join(map(str, shapes[-1] if name == "shN" else shapes[0]))
            raise ValueError(f"{path}: {name!r} is {found}, where splats need {wanted}")
    arrays: dict[str, np.ndarray] = {
        name: tensors[name].detach().to(torch.float32).contiguous().numpy() for name in expected
    }
    arrays["opacities"] = arrays["opacities"].reshape(num)
    arrays["sh0"] = arrays["sh0"].reshape(num, 3)
    return splats_read(path, ModelArrays(**arrays), step=step)


def write_gsplat_checkpoint(path: Path | str, gaussians: Gaussians, *, step: int = 0) -> None:
    """Write the Gaussians to `path`, with the `step` of training that they come from.

    gsplat's trainer and viewer load it with --ckpt. Raises ValueError, and writes nothing, when there are no
    Gaussians, a parameter is not finite or the file cannot be written.
    """
    path = Path(path)
    model = arrays_to_write(path, gaussians)
    splats = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in vars(model).items()}
    splats["sh0"] = splats["sh0"].reshape(-1, 1, 3)
    save_tensors(path, {"step": step, "splats": splats})


def is_gsplat_checkpoint(content: Any) -> bool:
    """Return whether what torch.save wrote is a checkpoint of gsplat."""
    return isinstance(content, Mapping) and isinstance(content.get("splats"), Mapping)


def splats_of_gsplat(path: Path, content: Mapping[str, Any]) -> SplatFile:
    """Return what a checkpoint holds that was read from `path`.

    Raises ValueError when a tensor is missing or wrong, naming what a model of another kind holds instead.
    """
    splats = content["splats"]
    if "features" in splats and "sh0" not in splats:
        raise ValueError(
            f"{path} was trained with an appearance network, whose colors no splat holds;"
            " train without --app_opt to get a model that others can open"
        )
    step = content.get("step")
    return splats_of_tensors(path, splats, step if type(step) is int else None)


def is_inria_checkpoint(content: Any) -> bool:
    """Return whether what torch.save wrote is a checkpoint of the original trainer."""
    return (
        isinstance(content, tuple)
        and len(content) == 2
        and isinstance(content[0], tuple)
        and len(content[0]) >= len(INRIA_ORDER)
        and isinstance(content[0][0], int)
    )


def splats_of_inria(path: Path, content: Any) -> SplatFile:
    """Return what a checkpoint holds that was read from `path`; ValueError when it is not whole."""
    state: dict[str, Any] = dict(zip(INRIA_ORDER, content[0], strict=False))
    return splats_of_tensors(path, state)


def is_nerfstudio_checkpoint(content: Any) -> bool:
    """Return whether what torch.save wrote is a checkpoint of nerfstudio."""
    return isinstance(content, Mapping) and isinstance(content.get("pipeline"), Mapping)


def splats_of_nerfstudio(path: Path, content: Mapping[str, Any]) -> SplatFile:
    """Return what a checkpoint holds that was read from `path`, in the frame in which it was trained.

    Raises ValueError for a checkpoint of another method than splatfacto, and where a tensor is wrong.
    """
    pipeline = content["pipeline"]
    prefix = next((each for each in NERFSTUDIO_PREFIXES if f"{each}means" in pipeline), None)
    if prefix is None:
        raise ValueError(
            f"{path} is a checkpoint of nerfstudio's, but not of its splatfacto: it has no splats"
        )
    wanted = ("means", "quats", "scales", "opacities", "sh0", "shN")
    found = {name: pipeline.get(prefix + NERFSTUDIO_NAMES.get(name, name)) for name in wanted}
    tensors = {name: tensor for name, tensor in found.items() if tensor is not None}
    for name in ("sh0", "shN"):
        if isinstance(tensors.get(name), torch.Tensor) and tensors[name].ndim == 2:
            tensors[name] = tensors[name][:, None]
    step = content.get("step")
    shN, sh0 = tensors.get("shN"), tensors.get("sh0")
    if isinstance(shN, torch.Tensor) and isinstance(sh0, torch.Tensor) and shN.numel() == 0:
        # Trained without view-dependent color it keeps the logits of colors.
        tensors["sh0"] = torch.from_numpy(sh0_of(torch.sigmoid(sh0.detach().float()).numpy()))
    return splats_of_tensors(path, tensors, step if type(step) is int else None)
