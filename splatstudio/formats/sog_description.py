"""The meta.json of a SOG file, taken apart and found right before anything else is read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LARGEST = 3e38  # float32 ends there
# Of models that were trained anti-aliased: as PlayCanvas' programs write it, and as its specification had it.
ANTIALIASED = {"model": "antialiased", "antialias": True}


@dataclass(frozen=True)
class SogPalette:
    """Where the spherical harmonics are, and how many."""

    count: int  # entries of the palette
    degree: int
    book: list[float]  # 256 values of a coefficient
    centroids: str
    labels: str


@dataclass(frozen=True)
class SogDescription:
    """How many Gaussians there are, in which files, and what their bytes stand for."""

    count: int
    mins: list[float]  # of the logarithms of positions
    maxs: list[float]
    means: list[str]  # low bytes, high bytes
    quats: str
    scales: str
    scale_book: list[float]
    sh0: str
    color_book: list[float]
    sh: SogPalette | None
    antialiased: bool = False  # trained so


def parsed_description(path: Path, content: bytes) -> SogDescription:
    """Return what the meta.json `content` of the model at `path` says.

    Raises ValueError, naming the part, for what is missing or makes no sense.
    """
    try:
        meta = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: its meta.json is damaged") from error
    if not isinstance(meta, dict) or "means" not in meta:
        raise ValueError(f"{path} is no SOG: its meta.json does not describe splats")
    if meta.get("version") != 2:
        raise ValueError(f"{path} is SOG of another version than 2; convert it with a newer program")
    count = _whole(path, meta, "count", 2**28)
    means, scales, quats, sh0 = (_part(path, meta, name) for name in ("means", "scales", "quats", "sh0"))
    mins, maxs = _numbers(path, means, "mins", 3), _numbers(path, means, "maxs", 3)
    sh = None
    if meta.get("shN") is not None:
        part = _part(path, meta, "shN")
        centroids, labels = _files(path, part, 2)
        degree = _whole(path, part, "bands", 3)
        sh = SogPalette(
            _whole(path, part, "count", 65_536),
            degree,
            _numbers(path, part, "codebook", 256),
            centroids,
            labels,
        )
    return SogDescription(
        count=count,
        mins=mins,
        maxs=maxs,
        means=_files(path, means, 2),
        quats=_files(path, quats, 1)[0],
        scales=_files(path, scales, 1)[0],
        scale_book=_numbers(path, scales, "codebook", 256),
        sh0=_files(path, sh0, 1)[0],
        color_book=_numbers(path, sh0, "codebook", 256),
        sh=sh,
        antialiased=any(meta.get(name) == value for name, value in ANTIALIASED.items()),
    )


def _part(path: Path, meta: dict[str, Any], name: str) -> dict[str, Any]:
    part = meta.get(name)
    if not isinstance(part, dict):
        raise ValueError(f"{path}: its meta.json has no {name!r}")
    return part


def _whole(path: Path, part: dict[str, Any], name: str, most: int) -> int:
    value = part.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise ValueError(f"{path}: {name!r} in its meta.json must be a whole number from 1 to {most}")
    return value


def _numbers(path: Path, part: dict[str, Any], name: str, num: int) -> list[float]:
    values = part.get(name)
    if not isinstance(values, list) or len(values) != num:
        raise ValueError(f"{path}: {name!r} in its meta.json must be {num} numbers")
    for value in values:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (number and -LARGEST < value < LARGEST):
            raise ValueError(f"{path}: {name!r} in its meta.json must be {num} numbers")
    return [float(value) for value in values]


def _files(path: Path, part: dict[str, Any], num: int) -> list[str]:
    files = part.get("files")
    if not isinstance(files, list) or len(files) != num:
        raise ValueError(f"{path}: 'files' in its meta.json must be {num} names")
    for name in files:
        # Only what lies beside it: a description from elsewhere must not choose any file of this machine.
        if not isinstance(name, str) or not name or "/" in name or "\\" in name or name.startswith("."):
            raise ValueError(
                f"{path}: {str(name)[:60]!r} in its meta.json is not the name of a file beside it"
            )
    return files
