"""Fixtures of the tests of kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(scope="module", autouse=True)
def two_threads() -> Iterator[None]:
    """Let kernels part their work between threads, whatever is left to other tests."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)
