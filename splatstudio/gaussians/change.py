"""What a strategy changed about the number of Gaussians; a message carries it, so it needs no torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Change:
    """What a strategy did after a step."""

    cloned: int = 0
    split: int = 0
    pruned: int = 0
    opacities_reset: bool = False
    relocated: int = 0  # transparent ones that went to where there is more
    capped: int = 0  # Gaussians that should have grown, but for the limit on their number
    short: tuple[int, ...] = ()  # ranks without memory for a change, which was left out on all
    left_out: str = "a change of their number was left out"  # what there was no memory for, in words

    @property
    def num_changed(self) -> int:
        """Return how many Gaussians were born of others or removed."""
        return self.cloned + self.split + self.pruned + self.relocated

    def __str__(self) -> str:
        parts = []
        if self.relocated:
            parts.append(f"{self.cloned} added, {self.relocated} moved")
        elif self.num_changed:
            parts.append(f"{self.cloned} cloned, {self.split} split, {self.pruned} removed")
        if self.capped:
            parts.append(f"{self.capped} not grown: the limit is reached")
        if self.short:
            parts.append("a change left out: no memory")
        if self.opacities_reset:
            parts.append("opacities reset")
        return "; ".join(parts) or "nothing to change"
