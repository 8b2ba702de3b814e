"""How much memory this process may have: the machine's, its control group's, or what a limit leaves of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil

from splatstudio.operating_system import address_space

_GROUPS = Path("/sys/fs/cgroup")


def memory_limit() -> int:
    """Return the most bytes that this process may ever have: the machine's memory, or its control group's."""
    limits = [int(text) for group in _control_groups() if (text := _text(group / "memory.max")).isdigit()]
    return min([psutil.virtual_memory().total, *limits])


def free_memory() -> int:
    """Return how many bytes this process may still take without pushing others out."""
    free = [psutil.virtual_memory().available]
    for group in _control_groups():
        limit, used = _text(group / "memory.max"), _text(group / "memory.current")
        if limit.isdigit() and used.isdigit():
            # Cached files count as used, but give way.
            words = _text(group / "memory.stat").split()
            cached = dict(zip(words[::2], words[1::2], strict=False)).get("inactive_file", "0")
            free.append(int(limit) - int(used) + int(cached))
    if (limit := address_space()) is not None:
        free.append(limit - psutil.Process().memory_info().vms)
    return max(0, min(free))


def _control_groups() -> Iterator[Path]:
    """Yield the folders of this process's control group and of those around it; none but in version 2."""
    own = next((line[3:] for line in _text(Path("/proc/self/cgroup")).splitlines() if line[:3] == "0::"), "/")
    group = _GROUPS / own.lstrip("/")
    while group.is_relative_to(_GROUPS):
        yield group
        group = group.parent


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""  # not Linux, or not limited
