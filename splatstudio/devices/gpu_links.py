"""How the GPUs of this machine are joined, as the driver tells it: NVLink, PCIe, the processors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

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


def read_gpus() -> GpuMap:
    """Ask the driver; ValueError with one sentence where there is none."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise ValueError(f"none seen ({error})") from error
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        gpus = tuple(_gpu(index, handle) for index, handle in enumerate(handles))
        links = tuple(
            Link((a, b), _path(handles[a], handles[b])) for a, b in combinations(range(len(handles)), 2)
        )
        return GpuMap(_text(pynvml.nvmlSystemGetDriverVersion()), gpus, links)
    except pynvml.NVMLError as error:
        raise ValueError(f"the driver does not answer ({error})") from error
    finally:
        pynvml.nvmlShutdown()


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


def _ask(question: Callable[[], Any]) -> Any:
    try:
        return question()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
