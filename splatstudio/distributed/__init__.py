"""Many processes, one model: who takes part, and what they tell each other."""

from __future__ import annotations

from splatstudio.distributed.ranks import ALONE, Ranks

__all__ = ["ALONE", "Ranks"]
