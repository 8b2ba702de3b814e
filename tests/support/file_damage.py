"""Damage that a file may have, for hypothesis to choose: bytes, and values of JSON and of messages."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

EXTREMES = [0, 1, 2**7, 2**15, 2**31 - 1, 2**31, 2**32 - 1, 2**60, 2**64 - 1]
PLACE = st.floats(0.0, 1.0, exclude_max=True)  # of the file's length
CHANGES = st.one_of(
    st.tuples(st.just("cut"), PLACE, st.just(0)),
    st.tuples(st.just("byte"), PLACE, st.integers(0, 255)),
    st.tuples(st.just("bit"), PLACE, st.integers(0, 7)),
    st.tuples(st.just("word"), PLACE, st.sampled_from(EXTREMES)),
    st.tuples(st.just("long"), PLACE, st.sampled_from(EXTREMES)),
    st.tuples(st.just("insert"), PLACE, st.integers(0, 255)),
    st.tuples(st.just("leave out"), PLACE, st.integers(1, 64)),
    st.tuples(st.just("twice"), PLACE, st.integers(1, 64)),
    st.tuples(st.just("digit"), PLACE, st.integers(0, 9)),
)
Change = tuple[str, float, int]


def damaged(content: bytes, change: Change) -> bytes:
    """Return a file with one change, most often where a number or a structure is."""
    kind, place, value = change
    # The structure is at the ends: half of all places are in the first and last hundred bytes.
    spots = [*range(min(100, len(content))), *range(max(0, len(content) - 100), len(content))]
    at = spots[int(place * 2 * len(spots))] if place < 0.5 else int((place - 0.5) * 2 * len(content))
    if kind == "cut":
        return content[:at]
    if kind == "insert":
        return content[:at] + bytes([value]) + content[at:]
    if kind == "leave out":
        return content[:at] + content[at + value :]
    if kind == "twice":
        return content[: at + value] + content[at:]
    if kind == "digit":
        digits = [i for i, byte in enumerate(content[:2000]) if chr(byte).isdigit()]
        at = digits[int(place * len(digits))] if digits else at
        return content[:at] + str(value).encode() + content[at + 1 :]
    if kind in ("word", "long"):
        size = 4 if kind == "word" else 8
        number = (value % 2 ** (8 * size)).to_bytes(size, "little")
        return (content[:at] + number + content[at + size :])[: max(len(content), at + size)]
    byte = content[at] ^ (1 << value) if kind == "bit" else value
    return content[:at] + bytes([byte]) + content[at + 1 :]


# What may stand where a number, a text or a list is meant; texts that name files, too.
ODD_NUMBERS = [-1, 0, 2**31, 2**63, 2**64, 10**400, -0.0, 1e-320, 1e308, float("inf"), float("nan")]
ODD_TEXTS = ["", "1", "\x00", "\ud800", "../../../etc/passwd", "/dev/zero", "\x1b[2J", "x" * 5000, "é\u202e"]
ODD_GROUPS = [[], [[[]]], {}, {"a": {}}, [1e308] * 3, ["a"] * 40, [[1.0, 2.0]], {"": None}]
VALUES: st.SearchStrategy[Any] = st.sampled_from([None, True, *ODD_NUMBERS, *ODD_TEXTS, *ODD_GROUPS])
WAYS = st.sampled_from(["set", "set", "drop", "twice", "other"])
VALUE_CHANGES = st.lists(st.tuples(WAYS, PLACE, VALUES), min_size=1, max_size=3)


def changed_values(values: Any, changes: list[tuple[str, float, Any]]) -> Any:
    """Return lists and dicts with values that are others, missing, there twice or in the wrong place."""
    values = copy.deepcopy(values)
    for kind, place, value in changes:
        spots = _spots(values)
        if not spots:
            return copy.deepcopy(value)
        holder, key = spots[int(place * len(spots))]
        if kind == "drop":
            del holder[key]
        elif kind == "twice" and isinstance(holder, list):
            holder.append(copy.deepcopy(holder[key]))
        elif kind == "other":
            elsewhere, its_key = spots[int((1.0 - place) * len(spots)) - 1]
            holder[key] = copy.deepcopy(elsewhere[its_key])
        else:
            holder[key] = copy.deepcopy(value)
    return values


def _spots(values: Any) -> list[tuple[Any, Any]]:
    """Return every place in values: what holds it, and by which key."""
    if isinstance(values, dict):
        keys: Any = list(values)
    elif isinstance(values, list):
        keys = range(len(values))
    else:
        return []
    found = [(values, key) for key in keys]
    for key in keys:
        found += _spots(values[key])
    return found
