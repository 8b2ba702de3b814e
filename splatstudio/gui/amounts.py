"""Amounts as people say them; without viser, so that the start page has them at once."""

from __future__ import annotations


def size(num_bytes: float) -> str:
    """Return a number of bytes as people say it."""
    for unit in ("B", "kB", "MB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} {unit}" if unit != "MB" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.2f} GB"


def counted(num: int, noun: str) -> str:
    """Return a number of things: "1 change", "2 changes"."""
    return f"{num:,} {noun}" if num == 1 else f"{num:,} {noun}s"
