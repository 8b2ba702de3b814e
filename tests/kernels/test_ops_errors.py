"""What the error of a kernel that fails on a GPU says."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from splatstudio.distributed.failures import is_out_of_memory
from splatstudio.kernels import ops, ops_training

FAILED = (
    "project_fwd failed on cuda:1: CUDA error: an illegal memory access was encountered; an earlier kernel"
    " may be the cause, CUDA_LAUNCH_BLOCKING=1 in the environment finds the one"
)


def operators(monkeypatch: pytest.MonkeyPatch, error: Exception) -> ops._Operators:
    """Return the operators with one, `project_fwd`, that fails."""

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(ops.torch.ops, "splatstudio", SimpleNamespace(project_fwd=fail), raising=False)
    return ops._Operators(without_cuda=None)


def test_a_failed_kernel_tells_operator_device_shapes_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    native = operators(monkeypatch, RuntimeError(FAILED + "\nException raised from check at launch.cuh"))
    radii = torch.zeros(7, 2, dtype=torch.int32)
    with pytest.raises(RuntimeError) as caught:
        native.project_fwd(torch.zeros(7, 3), None, [radii, torch.zeros(7)], [1.0, 2.0], 4)
    assert str(caught.value) == (FAILED + "; project_fwd was given float32 [7, 3], int32 [7, 2], float32 [7]")


def test_other_errors_pass_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    error = torch.OutOfMemoryError("CUDA out of memory")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        operators(monkeypatch, error).project_fwd(torch.zeros(3))
    assert caught.value is error


def test_the_kernels_say_so_in_these_words() -> None:
    source = (Path(ops.__file__).parents[2] / "csrc" / "cuda" / "launch.cuh").read_text()
    assert '" failed on cuda:"' in source and "CUDA_LAUNCH_BLOCKING=1" in source


@pytest.mark.skipif(not ops.is_available(), reason="the native kernels are not built")
def test_memory_that_torch_does_not_give_an_operator_is_told_as_such() -> None:
    # More than there are addresses for. Of torch's own error an operator only hears that a call has failed.
    wanted = "can't allocate memory on the CPU for 16777216 x 16777216 x 3 numbers"
    with pytest.raises(RuntimeError, match=wanted) as caught:
        ops_training.area_means(torch.zeros(4, 4, 3), width=2**24, height=2**24)
    assert is_out_of_memory(caught.value)
