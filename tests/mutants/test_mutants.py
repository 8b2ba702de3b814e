"""The faults of `run.py` stand where they are looked for; whether tests find them takes that program."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest
from mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]


@cache
def functions_in(file: str) -> frozenset[str]:
    tree = ast.parse((ROOT / file).read_text())
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_can_be_planted_and_its_tests_are_there(mutant: Mutant) -> None:
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.new != mutant.old
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert (ROOT / file).is_file()
        assert not name or name.partition("[")[0] in functions_in(file), test
