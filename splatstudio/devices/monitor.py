"""What the GPUs are doing, or, where there are none, the processes of a training on the CPU."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import psutil
import pynvml

# What nvidia-smi topo calls PIX, PXB, PHB, NODE and SYS, in words.
PATHS = {
    pynvml.NVML_TOPOLOGY_INTERNAL: "one board",
    pynvml.NVML_TOPOLOGY_SINGLE: "one PCIe switch",
    pynvml.NVML_TOPOLOGY_MULTIPLE: "several PCIe switches",
    pynvml.NVML_TOPOLOGY_HOSTBRIDGE: "the PCIe host bridge",
    pynvml.NVML_TOPOLOGY_NODE: "the host bridges of one processor",
    pynvml.NVML_TOPOLOGY_SYSTEM: "the link between two processors",
}
SLOW_PATHS = {PATHS[pynvml.NVML_TOPOLOGY_NODE], PATHS[pynvml.NVML_TOPOLOGY_SYSTEM]}
NVLINK = "NVLink"

Field = Literal["memory_used_by_us", "memory_used_by_others", "utilization", "temperature_c", "power_w"]

_RETRY_SECONDS = 5.0  # between two attempts to reach a driver that is missing or has died


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver counts it; bytes."""

    index: int
    name: str
    free: int
    total: int
    num_nvlinks: int  # that are up


@dataclass(frozen=True)
class Link:
    """The best way between two GPUs: NVLINK, one of `PATHS`, or None where the driver does not tell."""

    pair: tuple[int, int]
    path: str | None


@dataclass(frozen=True)
class GpuMap:
    """The driver, its GPUs and the way between each two of them."""

    driver: str
    gpus: tuple[Gpu, ...]
    links: tuple[Link, ...]

    def describe_links(self) -> list[str]:
        """Return one phrase for each kind of way, with the pairs that have it: "0-1, 2-3: NVLink"."""
        kinds: dict[str | None, list[tuple[int, int]]] = {}
        for link in self.links:
            kinds.setdefault(link.path, []).append(link.pair)
        phrases: list[str] = []
        for path, pairs in kinds.items():
            all_of_them = len(kinds) == 1 and len(pairs) > 1
            between = "each two" if all_of_them else ", ".join(f"{a}-{b}" for a, b in pairs)
            phrases.append(f"{between}: {path or 'the driver does not tell'}")
        return phrases


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver: its version, the newest CUDA that it serves (None: not told), how many GPUs it has."""

    version: str
    cuda: tuple[int, int] | None  # major, minor
    num_gpus: int


@contextlib.contextmanager
def _driver_asked() -> Iterator[None]:
    """Open NVML while it lives; ValueError with one sentence where there is no driver, or no answer."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ValueError(f"none seen ({error})") from error
    try:
        yield
    except pynvml.NVMLError as error:
        raise ValueError(f"the driver does not answer ({error})") from error
    finally:
        pynvml.nvmlShutdown()


def read_driver() -> Driver:
    """Ask for the driver alone, which is quick; ValueError with one sentence where there is none."""
    with _driver_asked():
        cuda = _ask(pynvml.nvmlSystemGetCudaDriverVersion)
        served = None if cuda is None else (cuda // 1000, cuda % 1000 // 10)
        return Driver(_text(pynvml.nvmlSystemGetDriverVersion()), served, pynvml.nvmlDeviceGetCount())


def read_gpus() -> GpuMap:
    """Ask the driver; ValueError with one sentence where there is none."""
    with _driver_asked():
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(_gpu(index, handle) for index, handle in enumerate(handles))
        links = tuple(
            Link((a, b), _path(handles[a], handles[b])) for a, b in combinations(range(len(handles)), 2)
        )
        return GpuMap(_text(pynvml.nvmlSystemGetDriverVersion()), gpus, links)


def has_nvidia_card(devices: Path = Path("/sys/bus/pci/devices")) -> bool:
    """Return whether a graphics card of NVIDIA is in this machine, with a driver or without (Linux)."""
    for device in devices.glob("*"):
        try:
            vendor, kind = (device / "vendor").read_text(), (device / "class").read_text()
        except OSError:
            continue  # it went, or may not be read
        if vendor.strip() == "0x10de" and kind.startswith("0x03"):  # display controllers
            return True
    return False


def _gpu(index: int, handle: Any) -> Gpu:
    memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    num_links = 0
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = _ask(lambda link=link: pynvml.nvmlDeviceGetNvLinkState(handle, link))
        if state is None:
            break  # there are no further ones
        num_links += state == pynvml.NVML_FEATURE_ENABLED
    name = _text(pynvml.nvmlDeviceGetName(handle))
    return Gpu(index, name, int(memory.free), int(memory.total), num_links)


def _path(one: Any, other: Any) -> str | None:
    # True for direct links and for those through an NVSwitch.
    nvlink = _ask(lambda: pynvml.nvmlDeviceGetP2PStatus(one, other, pynvml.NVML_P2P_CAPS_INDEX_NVLINK))
    if nvlink == pynvml.NVML_P2P_STATUS_OK:
        return NVLINK
    return PATHS.get(_ask(lambda: pynvml.nvmlDeviceGetTopologyCommonAncestor(one, other)))


@dataclass(frozen=True)
class DeviceReading:
    """One row of the device panel; None where the driver does not tell.

    Memory is in bytes, utilization in percent of the device (of all cores together for a CPU row).
    """

    index: int
    name: str
    memory_used_by_us: int | None = None
    memory_used_by_others: int | None = None  # and by us as well, where our own share is not known
    memory_total: int | None = None
    utilization: float | None = None
    temperature_c: float | None = None
    power_w: float | None = None


@dataclass(frozen=True, eq=False)
class DeviceHistory:
    """One quantity over the last minutes: seconds [S] since the monitor began, values [S, D] (None: NaN)."""

    names: tuple[str, ...]
    seconds: np.ndarray
    values: np.ndarray


class DeviceMonitor:
    """Reads all devices on request, and remembers the last readings for plots.

    `sample` is to be called once or twice a second, always from the same thread, and not from one that
    must not wait: a driver in trouble answers slowly. The other methods may be called from any thread.
    """

    def __init__(
        self,
        pids: Callable[[], Sequence[int]],
        *,
        history_length: int = 600,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Remember what to look at; nothing is opened before the first sample.

        Args:
            pids: returns the process ids of the ranks, rank 0 first; empty while nothing trains.
            history_length: how many samples are kept; 600 are 5 minutes at 2 Hz.
            clock: seconds that only grow.
        """
        self._pids = pids
        self._clock = clock
        self._start = clock()
        self._samples: deque[tuple[float, tuple[DeviceReading, ...]]] = deque(maxlen=history_length)
        self._gpus = _Gpus(clock)
        self._cpus = _CpuRanks()

    def sample(self) -> tuple[DeviceReading, ...]:
        """Read every GPU once; without GPUs every CPU rank, or the whole machine. Never empty."""
        pids = tuple(self._pids())
        readings = self._gpus.read(pids) or self._cpus.read(pids)
        self._samples.append((self._clock() - self._start, readings))
        return readings

    @property
    def latest(self) -> tuple[DeviceReading, ...]:
        """The readings of the newest sample; empty before the first."""
        return self._samples[-1][1] if self._samples else ()

    def history(self, field: Field) -> DeviceHistory:
        """Return one quantity of the devices of the newest sample, over all samples that are kept."""
        samples = list(self._samples)
        names = tuple(reading.name for reading in samples[-1][1]) if samples else ()
        values = np.full((len(samples), len(names)), np.nan)
        for row, (_, readings) in enumerate(samples):
            for reading in readings:
                value = getattr(reading, field)
                # A GPU that appeared later has another name than the CPU that had its place.
                if value is not None and names[reading.index : reading.index + 1] == (reading.name,):
                    values[row, reading.index] = value
        return DeviceHistory(names, np.array([seconds for seconds, _ in samples]), values)

    def close(self) -> None:
        """Let go of the driver."""
        self._gpus.close()


class _Gpus:
    """The GPUs as NVML tells them. When the driver dies their rows stay, without numbers."""

    def __init__(self, clock: Callable[[], float]):
        self._clock = clock
        self._handles: list[Any] | None = None  # None: the driver is not reached
        self._next_attempt = clock()
        self._known: tuple[DeviceReading, ...] = ()  # names and sizes, from the last time all was well

    def read(self, pids: Sequence[int]) -> tuple[DeviceReading, ...]:
        """Return a row for each GPU; empty when there has never been one."""
        if self._handles is None and self._clock() >= self._next_attempt:
            self._open()
        if self._handles is None:
            return self._known
        readings = tuple(self._reading(known, pids) for known in self._known)
        if readings == self._known:
            # No GPU told anything: the driver has died.
            self.close()
            self._next_attempt = self._clock() + _RETRY_SECONDS
        return readings

    def _open(self) -> None:
        self._next_attempt = self._clock() + _RETRY_SECONDS
        try:
            pynvml.nvmlInit()
            handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
            names = [_text(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
        except pynvml.NVMLError:
            self.close()
            return
        if not handles:
            return
        self._handles = handles
        memories = [_ask(lambda handle=handle: pynvml.nvmlDeviceGetMemoryInfo(handle)) for handle in handles]
        self._known = tuple(
            DeviceReading(index, name, memory_total=None if memory is None else int(memory.total))
            for index, (name, memory) in enumerate(zip(names, memories, strict=True))
        )

    def _reading(self, known: DeviceReading, pids: Sequence[int]) -> DeviceReading:
        assert self._handles is not None
        handle = self._handles[known.index]
        memory = _ask(lambda: pynvml.nvmlDeviceGetMemoryInfo(handle))
        ours = _ask(lambda: _memory_of(handle, pids))
        power = _ask(lambda: pynvml.nvmlDeviceGetPowerUsage(handle))
        return DeviceReading(
            index=known.index,
            name=known.name,
            memory_used_by_us=ours,
            memory_used_by_others=None if memory is None else max(int(memory.used) - (ours or 0), 0),
            memory_total=known.memory_total if memory is None else int(memory.total),
            utilization=_ask(lambda: float(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu)),
            temperature_c=_ask(
                lambda: float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU))
            ),
            power_w=None if power is None else power / 1000.0,
        )

    def close(self) -> None:
        """Let go of the driver, also of one that does not answer any more."""
        self._handles = None
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _ask(question: Callable[[], Any]) -> Any:
    """Return the answer of the driver, None where it refuses."""
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _memory_of(handle: Any, pids: Sequence[int]) -> int | None:
    """Return the bytes that some processes hold on a GPU; None when the driver does not tell."""
    processes = pynvml.nvmlDeviceGetComputeRunningProcesses(handle)
    ours = [process for process in processes if process.pid in pids]
    if any(process.usedGpuMemory is None for process in ours):
        return None
    if not ours and any(not psutil.pid_exists(process.pid) for process in processes):
        # In a container the driver tells the process ids of the machine around it: ours may be among them.
        return None
    return sum(int(process.usedGpuMemory) for process in ours)


def _text(name: str | bytes) -> str:
    return name.decode() if isinstance(name, bytes) else name


class _CpuRanks:
    """The processes of a training that runs on the CPU."""

    def __init__(self) -> None:
        self._processes: dict[int, psutil.Process] = {}
        psutil.cpu_percent()  # it tells what happened since it was last asked

    def read(self, pids: Sequence[int]) -> tuple[DeviceReading, ...]:
        """Return a row for each process; one for the whole machine when there is none."""
        memory = psutil.virtual_memory()
        used = memory.total - memory.available
        self._processes = {pid: process for pid, process in self._processes.items() if pid in pids}
        if not pids:
            return (DeviceReading(0, "CPU", 0, used, memory.total, utilization=psutil.cpu_percent()),)
        rows = [self._rank(pid) for pid in pids]
        ours = sum(resident or 0 for resident, _ in rows)
        return tuple(
            DeviceReading(rank, f"CPU rank {rank}", resident, max(used - ours, 0), memory.total, utilization)
            for rank, (resident, utilization) in enumerate(rows)
        )

    def _rank(self, pid: int) -> tuple[int | None, float | None]:
        """Return the resident bytes and the CPU share in percent of one process; None once it is gone."""
        try:
            process = self._processes.get(pid)
            if process is None or not process.is_running():  # or another one has got its number
                process = self._processes[pid] = psutil.Process(pid)
                process.cpu_percent()
                return process.memory_info().rss, None
            return process.memory_info().rss, process.cpu_percent() / (psutil.cpu_count() or 1)
        except psutil.Error:
            self._processes.pop(pid, None)
            return None, None
