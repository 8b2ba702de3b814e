"""What the command line says about devices; it answers `--help` without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from splatstudio.rank_devices import RankDevices


@dataclass(frozen=True)
class DeviceOptions:
    """What trains.

    Args:
        gpus: Numbers of the GPUs to train on, one process each, as 0,1; all visible ones by default.
        ranks: Train on the CPU, in this many processes, which share its cores.
    """

    gpus: str | None = None
    ranks: int | None = None

    def chosen(self) -> RankDevices:
        """Return where to train; ValueError with one sentence for what is no list of GPUs, or not there."""
        from splatstudio.rank_devices import choose_devices

        if self.gpus is None:
            return choose_devices(ranks=self.ranks)
        try:
            gpus = tuple(int(number) for number in self.gpus.split(","))
        except ValueError:
            raise ValueError(f"--gpus needs numbers with commas between, as 0,1, not {self.gpus!r}") from None
        return choose_devices(gpus, self.ranks)


AS_FOUND = DeviceOptions()
