"""What the command line says about devices; it answers `--help` without loading torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from splatstudio.distributed.rank_devices import DeviceUse, RankDevices
    from splatstudio.scene.scene import Scene
    from splatstudio.settings.config import TrainConfig


@dataclass(frozen=True)
class DeviceOptions:
    """What trains, and how much fits there.

    Args:
        gpus: Numbers of the GPUs to train on, one process each, as 0,1, or all; one by default.
        ranks: Train on the CPU, in this many processes, which share its cores.
        max_splats: No splats are added above this number; "auto": as many as fit into the memory.
        fit_batch: Of the photos of a step (--accumulate N) as many at once as fit into the memory, the
            rest in further rounds (--batch-size auto).
        attach: Under torchrun or Slurm: HOST:PORT on rank 0's machine at which `splatstudio attach` watches
            and steers; port 0 takes a free one.
        attach_via: The same, at an address that is said in the store at HOST:PORT, that of `open --nodes`.
        nodes: Open the studio for a training on this many machines: what to start on each is printed, with
            a rank on every GPU, or --ranks of them.
        nodes_at: HOST:PORT of this machine, as the others see it, at which they meet.
    """

    gpus: str | None = None
    ranks: int | None = None
    max_splats: int | Literal["auto"] | None = None
    fit_batch: bool = False
    attach: str | None = None
    attach_via: str | None = None
    nodes: int = 1
    nodes_at: str | None = None

    @property
    def may_be_several(self) -> bool:
        """Return whether these may ask for more than one rank; `chosen` is sure of it, but needs torch."""
        return (self.ranks or 1) > 1 or self.gpus == "all" or "," in (self.gpus or "")

    @property
    def attach_at(self) -> tuple[str, int] | None:
        """Return host and port to be watched at, None: nowhere; ValueError for what is no address."""
        return None if self.attach is None else _address("--attach", self.attach)

    @property
    def store_at(self) -> tuple[str, int] | None:
        """Return host and port of the store to be found by, None: none; ValueError for what is no address."""
        return None if self.attach_via is None else _address("--attach-via", self.attach_via)

    @property
    def meeting_at(self) -> tuple[str, int]:
        """Return host and port at which several machines meet; ValueError for what is no address."""
        return _address("--nodes-at", self.nodes_at or "")

    def check_alone(self) -> None:
        """Raise ValueError with one sentence for what means nothing to a training of this machine alone."""
        if self.attach is not None or self.attach_via is not None:
            option = "--attach" if self.attach is not None else "--attach-via"
            raise ValueError(
                f"{option} is for trainings that torchrun or Slurm starts; this one is here alone"
            )
        if self.nodes_at is not None or self.nodes < 1:
            raise ValueError("--nodes-at is where several machines meet: --nodes says how many, 2 or more")

    def check_spread(self) -> None:
        """Raise ValueError with one sentence for what means nothing to a training on several machines."""
        if self.max_splats == "auto" or self.fit_batch:
            raise ValueError(
                "a rank of torchrun or Slurm does not know the memory of the other machines: give"
                " --max-splats and --batch-size as numbers"
            )

    def chosen(self) -> RankDevices:
        """Return where to train; ValueError with one sentence for what is no list of GPUs, or not there."""
        from splatstudio.distributed.rank_devices import choose_devices

        if self.gpus is None:
            return choose_devices(ranks=self.ranks)
        if self.gpus == "all":
            return choose_devices("all", self.ranks)
        try:
            gpus = tuple(int(number) for number in self.gpus.split(","))
        except ValueError:
            raise ValueError(
                f"--gpus needs numbers with commas between, as 0,1, or all, not {self.gpus!r}"
            ) from None
        return choose_devices(gpus, self.ranks)

    def use_of(self, chosen: RankDevices) -> DeviceUse:
        """Return what is said of the devices that were chosen: what trains, and why."""
        from splatstudio.distributed.rank_devices import device_use

        return device_use(chosen, asked=self.gpus is not None or self.ranks is not None)

    def fitted(self, config: TrainConfig, scene: Scene, devices: RankDevices) -> tuple[TrainConfig, str]:
        """Return the settings as they were asked to fit, and a sentence on what they need; see `fitted`."""
        from splatstudio.training.memory_plan import fitted

        return fitted(config, scene, devices, max_splats=self.max_splats, fit_batch=self.fit_batch)


def _address(option: str, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"{option} needs HOST:PORT, not {text!r}")
    return host, int(port)


def with_fit_batch(arguments: Sequence[str]) -> list[str]:
    """Return a command's arguments with `--fit-batch` for `--batch-size auto`, as numbers are elsewhere."""
    text = "\0".join(arguments)
    for form in ("--batch-size\0auto", "--batch-size=auto", "--batch_size\0auto", "--batch_size=auto"):
        text = text.replace(form, "--fit-batch")
    return text.split("\0") if text else []


AS_FOUND = DeviceOptions()
