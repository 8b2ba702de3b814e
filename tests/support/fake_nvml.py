"""A fake of pynvml that answers from a record of 8 GPUs, in tests/data."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import psutil
import pynvml
import pytest

from splatstudio.devices import monitor as devices

RECORD = json.loads((Path(__file__).parents[1] / "data" / "nvml_8_gpus.json").read_text())


class FakeNvml(types.SimpleNamespace):
    """Answers from the record as pynvml would; calls named in `refused` and all calls when `dead` fail."""

    NVMLError = pynvml.NVMLError
    NVML_TEMPERATURE_GPU = pynvml.NVML_TEMPERATURE_GPU

    def __init__(self) -> None:
        super().__init__(gpus=json.loads(json.dumps(RECORD["gpus"])))
        self.refused: set[str | tuple[str, int]] = set()
        self.dead = False
        self.opened = 0

    def _answer(self, call: str, index: int, value: Any) -> Any:
        if self.dead or self.opened == 0:
            raise pynvml.NVMLError(
                pynvml.NVML_ERROR_GPU_IS_LOST if self.dead else pynvml.NVML_ERROR_UNINITIALIZED
            )
        if call in self.refused or (call, index) in self.refused:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return types.SimpleNamespace(**value) if isinstance(value, dict) else value

    def nvmlInit(self) -> None:
        if self.dead:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        self.opened += 1

    def nvmlShutdown(self) -> None:
        if self.opened == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.65.06"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return self._answer("count", 0, len(self.gpus))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return self._answer("handle", index, index)

    def nvmlDeviceGetName(self, handle: int) -> str:
        return self._answer("name", handle, self.gpus[handle]["name"])

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return self._answer("memory", handle, self.gpus[handle]["memory"])

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._answer("utilization", handle, self.gpus[handle]["utilization"])

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        return self._answer("temperature", handle, self.gpus[handle]["temperature"])

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._answer("power", handle, self.gpus[handle]["power_mw"])

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[Any]:
        processes = self._answer("processes", handle, self.gpus[handle]["processes"])
        return [types.SimpleNamespace(**process) for process in processes]


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setattr(devices, "pynvml", fake)
    # The processes of the record exist on the machine that it describes.
    pids = {process["pid"] for gpu in fake.gpus for process in gpu["processes"]}
    monkeypatch.setattr(psutil, "pid_exists", lambda pid: pid in pids)
    return fake
