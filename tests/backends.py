"""The implementations of the renderer's stages, for tests that hold for every one of them."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from types import ModuleType

import pytest

import splatstudio
from splatstudio import reference

BACKENDS = ["reference", "ops"]


def backend_module(name: str) -> ModuleType:
    """Return the module of a backend; skip the test only where the native extension was never built."""
    if name == "reference":
        return reference
    try:
        return importlib.import_module("splatstudio.ops")
    except (ImportError, OSError) as error:
        if os.environ.get("CI") or _extension_files():
            raise
        pytest.skip(f"the native extension is not built: {error}")


def _extension_files() -> list[Path]:
    folders = [Path(folder) for folder in splatstudio.__path__]
    return [path for folder in folders for path in folder.rglob("*.so")]
