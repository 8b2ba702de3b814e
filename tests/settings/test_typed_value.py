"""Values become the declared type, or a sentence says what is wanted."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from splatstudio.settings.setting import typed_value

COLOR = tuple[float, float, float]
CHOICE = Literal["auto", "fp32"]


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (float, 3, 3.0),
        (int | None, None, None),
        (COLOR, [0, 0.5, 1], (0.0, 0.5, 1.0)),
        (tuple[str, ...], ("a", "b"), ("a", "b")),
        (CHOICE, "auto", "auto"),
    ],
)
def test_values_of_the_declared_type_are_taken(kind: Any, value: Any, expected: Any) -> None:
    result = typed_value(kind, value, "it")
    assert result == expected and type(result) is type(expected)


@pytest.mark.parametrize(
    ("kind", "value", "wanted"),
    [
        (int, 1.0, "a whole number"),
        (int, True, "a whole number"),
        (float, "1", "a number"),
        (bool, 1, "true or false"),
        (str, 1, "a text"),
        (COLOR, [0.0, 1.0], "3 numbers"),
        (tuple[int, ...], [1, "a"], "whole numbers"),
        (CHOICE, "fp16", "one of auto, fp32"),
        (int | CHOICE, "many", "a whole number or one of auto, fp32"),
    ],
)
def test_others_are_refused_with_what_is_wanted(kind: Any, value: Any, wanted: str) -> None:
    with pytest.raises(ValueError, match="must be") as caught:
        typed_value(kind, value, "setting it")
    assert str(caught.value) == f"setting it must be {wanted}, not {value!r}"


def test_what_somebody_typed_stands_for_what_it_spells() -> None:
    assert typed_value(int, "12", "it", as_typed=True) == 12
    assert typed_value(float, "1e-3", "it", as_typed=True) == 1e-3
    assert typed_value(int | CHOICE, "auto", "it", as_typed=True) == "auto"
    with pytest.raises(ValueError, match=r"it must be a whole number, not '1\.5'"):
        typed_value(int, "1.5", "it", as_typed=True)
