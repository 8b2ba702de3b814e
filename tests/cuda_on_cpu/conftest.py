"""Without the emulated kernels, which `make cuda-on-cpu` builds, there is nothing to test here."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the tests of this folder where the emulated kernels are not those that are loaded."""
    if os.environ.get("SPLATSTUDIO_EXTENSION", "").endswith(("emulated.so", "races.so")):
        return
    reason = "needs the emulated CUDA kernels: make cuda-on-cpu"
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))
