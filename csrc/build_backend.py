"""What pip calls to build splatstudio from source: scikit-build-core, where this machine can do it.

Where it cannot, one sentence says why instead of a page of CMake's, before torch is fetched for its headers.
"""

from __future__ import annotations

import os
import shutil
import struct
import sys
import sysconfig
from typing import Any

from scikit_build_core import build
from scikit_build_core.build import (
    build_sdist,
    get_requires_for_build_sdist,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

TORCH = "torch>=2.11"  # the headers to compile against, and two libraries to link with
COMPILERS = ("c++", "g++", "clang++")


def why_not() -> str | None:
    """Return a sentence on why splatstudio cannot be built or run here and what to do, or None."""
    if sys.platform != "linux":
        return (
            "splatstudio runs on Linux; on Windows install it inside of WSL 2 (wsl --install), on a Mac in a "
            "Linux container or virtual machine."
        )
    if struct.calcsize("P") < 8:
        return "This Python is a 32-bit one, for which there is no torch: install a 64-bit Python."
    if "musl" in (sysconfig.get_config_var("SOABI") or "") or "musl" in (sysconfig.get_platform()):
        return (
            "This system has the C library musl, as Alpine Linux, for which there is no torch: use one with "
            "glibc, such as Debian, Ubuntu or Fedora."
        )
    named = os.environ.get("CXX", "").split()[:1]
    if not any(map(shutil.which, named or COMPILERS)):
        missing = f"the compiler that CXX names, {named[0]}, was not found" if named else "none was found"
        return (
            "No wheel of splatstudio fits this Python and system, and building it needs a C++ compiler: "
            f"{missing}. On Debian and Ubuntu: apt install g++. On x86-64 Linux with glibc 2.28 or newer and "
            "pip 20.3 or newer a wheel fits: pip install --upgrade pip."
        )
    return None


def _refuse() -> None:
    if (sentence := why_not()) is not None:
        sys.exit(sentence)


def get_requires_for_build_wheel(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return what the build needs, after a look at whether it is possible at all."""
    _refuse()
    return [*build.get_requires_for_build_wheel(config_settings), TORCH]


def get_requires_for_build_editable(config_settings: dict[str, Any] | None = None) -> list[str]:
    """Return the same of an installation that stays in its checkout."""
    _refuse()
    return [*build.get_requires_for_build_editable(config_settings), TORCH]


def build_wheel(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build a wheel and return its name."""
    _refuse()
    return build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(
    wheel_directory: str,
    config_settings: dict[str, Any] | None = None,
    metadata_directory: str | None = None,
) -> str:
    """Build the wheel of an installation that stays in its checkout, and return its name."""
    _refuse()
    return build.build_editable(wheel_directory, config_settings, metadata_directory)
