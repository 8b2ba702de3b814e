"""Files of torch.save from anywhere, read without running anything that they contain."""

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
from splatstudio.formats.model_arrays import NUM_SHN, ModelArrays, SplatFile, splats_read, write_file

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
        # A few numbers can pretend to be many by being counted again and again.
        if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
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
