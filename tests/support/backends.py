"""The implementations of the renderer's stages, for tests that hold for every one of them."""

from __future__ import annotations

import os
from types import ModuleType

import pytest

from splatstudio.kernels import ops, reference

BACKENDS = ["reference", "ops"]


def backend_module(name: str) -> ModuleType:
    """Return the module of a backend; skip the test only where the native extension was never built."""
    if name == "reference":
        return reference
    if not ops.is_available() and not os.environ.get("CI"):
        pytest.skip("the native extension is not built")
    return ops
