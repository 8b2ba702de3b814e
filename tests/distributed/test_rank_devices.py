"""Where a training runs, and what is said of it: no GPU may go unused in silence."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from splatstudio.devices.monitor import Driver, has_nvidia_card
from splatstudio.distributed import rank_devices
from splatstudio.distributed.rank_devices import DeviceUse, RankDevices, choose_devices, device_use
from splatstudio.kernels import ops

CPU = RankDevices((None,))


@pytest.fixture
def four_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four GPUs of two kinds, of which the kernels know one."""
    capabilities = [(9, 0), (9, 0), (7, 0), (9, 0)]
    monkeypatch.setattr(ops, "has_cuda_kernels", lambda: True)
    monkeypatch.setattr(ops, "cuda_architectures", lambda: ("80-real", "90-real"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capabilities[gpu])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100")


@pytest.mark.usefixtures("four_gpus")
def test_one_gpu_trains_unless_others_are_named() -> None:
    assert choose_devices().gpus == (0,)
    assert choose_devices("all").gpus == (0, 1, 3)
    assert choose_devices(gpus=(3, 0)).gpus == (3, 0)
    assert choose_devices(ranks=3).gpus == (None, None, None)
    assert choose_devices(gpus=(3, 0)).alone().gpus == (3,)


@pytest.mark.usefixtures("four_gpus")
def test_the_gpus_in_use_are_named_and_that_there_are_others() -> None:
    use = device_use(choose_devices(), asked=False)
    assert use.text == "GPU: NVIDIA H100 (sm_90); 2 more can be used: --gpus all" and not use.idle_gpu
    assert device_use(choose_devices(gpus=(0,)), asked=True).text == "GPU: NVIDIA H100 (sm_90)"
    assert device_use(choose_devices("all"), asked=True).text == "GPUs 0, 1, 3: NVIDIA H100 (sm_90)"


@pytest.mark.usefixtures("four_gpus")
def test_gpus_that_are_not_there_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    wanted = r"no GPU 4: 0, 1, 3 can be used with CUDA_VISIBLE_DEVICES=4,5,6,7"
    with pytest.raises(ValueError, match=wanted):
        choose_devices(gpus=(0, 4))
    with pytest.raises(ValueError, match="no GPU 2"):  # there are no kernels for it
        choose_devices(gpus=(2,))
    with pytest.raises(ValueError, match="each GPU once"):
        choose_devices(gpus=(1, 1))
    with pytest.raises(ValueError, match="one of them"):
        choose_devices(gpus=(1,), ranks=2)
    with pytest.raises(ValueError, match="at least 1"):
        choose_devices(ranks=0)


def test_without_gpus_one_process_trains_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "has_cuda_kernels", lambda: False)
    monkeypatch.setattr(rank_devices, "_driver_with_gpus", lambda: None)
    monkeypatch.setattr(rank_devices, "has_nvidia_card", lambda: False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert choose_devices() == CPU
    use = device_use(CPU, asked=False)
    assert use.text == "CPU: no NVIDIA GPU is here" and not use.idle_gpu
    assert device_use(RankDevices((None, None)), asked=True).text == "CPU: 2 processes"
    for gpus in ((0,), "all"):
        with pytest.raises(ValueError, match=r"none can be used, as no NVIDIA GPU is here; without --gpus"):
            choose_devices(gpus)  # type: ignore[arg-type]


@pytest.fixture
def a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver shows a GPU, and torch has CUDA 13; nothing else is known yet."""
    monkeypatch.setattr(rank_devices, "read_driver", lambda: Driver("580.65", (13, 0), 1))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 9))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "RTX 4090")
    monkeypatch.setattr(ops, "has_cuda_kernels", lambda: False)
    monkeypatch.setattr(ops, "without_cuda_kernels", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


OLD_DRIVER = Driver("550.54", (12, 4), 1)


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(
    ("owner", "name", "value", "told"),
    [
        (torch.version, "cuda", None, "has no CUDA; take one that has"),
        (
            rank_devices,
            "read_driver",
            lambda: OLD_DRIVER,
            "driver 550.54 is too old for CUDA 13 of this torch; install 580 or newer",
        ),
        (torch.cuda, "is_available", lambda: False, "torch sees no GPU although driver 580.65 does"),
        (
            ops,
            "without_cuda_kernels",
            lambda: "nvcc of CUDA 13 was not found",
            "nvcc of CUDA 13 was not found; ",
        ),
        (ops, "cuda_architectures", lambda: ("90",), "compiled for sm_90 and not for RTX 4090 (sm_89)"),
    ],
    ids=["torch without CUDA", "old driver", "torch sees none", "no nvcc", "other architecture"],
)
def test_a_gpu_that_goes_unused_is_a_warning_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, value: Any, told: str
) -> None:
    monkeypatch.setattr(owner, name, value)
    use = device_use(CPU, asked=False)
    assert use.idle_gpu and use.text.startswith("CPU: ") and told in use.text and "\n" not in use.text
    with pytest.raises(ValueError, match="none can be used"):
        choose_devices("all")


def test_a_warning_is_yellow_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    warning, said = DeviceUse("CPU: no nvcc", idle_gpu=True), DeviceUse("CPU: no GPU")
    assert warning.for_terminal() == warning.text
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert warning.for_terminal() == "\033[33mCPU: no nvcc\033[0m" and said.for_terminal() == said.text
    monkeypatch.setenv("NO_COLOR", "1")
    assert warning.for_terminal() == warning.text


@pytest.mark.usefixtures("a_gpu")
def test_who_hides_the_gpus_is_not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    use = device_use(CPU, asked=False)
    assert use.text == "CPU: CUDA_VISIBLE_DEVICES= hides all GPUs" and not use.idle_gpu


def test_a_card_without_a_driver_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name, vendor, kind in (
        ("0", "0x10de", "0x030000"),
        ("1", "0x10de", "0x040300"),
        ("2", "0x8086", "0x03"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "vendor").write_text(vendor + "\n")
        (tmp_path / name / "class").write_text(kind + "\n")
    assert has_nvidia_card(tmp_path)
    (tmp_path / "0" / "vendor").unlink()
    assert not has_nvidia_card(tmp_path)  # its sound, and another's graphics
    monkeypatch.setattr(ops, "has_cuda_kernels", lambda: False)
    monkeypatch.setattr(rank_devices, "_driver_with_gpus", lambda: None)
    monkeypatch.setattr(rank_devices, "has_nvidia_card", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    use = device_use(CPU, asked=False)
    assert use.idle_gpu and "its driver does not answer" in use.text


@pytest.mark.parametrize(
    ("capability", "architectures", "runs"),
    [
        ((8, 9), ("75-real", "80-real"), True),  # of the same major version, and not older
        ((8, 0), ("86-real",), False),
        ((9, 0), ("80-real",), False),
        ((9, 0), ("80",), True),  # by PTX
        ((9, 0), ("80-virtual",), True),
        ((8, 0), ("80-virtual",), True),
        ((12, 0), ("90-real", "120"), True),
        ((7, 0), ("75-real", "120"), False),
    ],
)
def test_kernels_run_on_what_they_were_compiled_for(
    capability: tuple[int, int], architectures: tuple[str, ...], runs: bool
) -> None:
    assert ops.compiled_for(capability, architectures) == runs
