"""What the header of a PLY file says of its tables, as Turk's format of 1994 has them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

PLY = (b"ply\n", b"ply\r", b"ply ", b"ply\t")  # what a file begins with
LONGEST_HEADER = 1 << 20  # bytes; comments included, real ones have a few kilobytes
Direction = tuple[float, float, float]  # a unit vector
MOST_DIGITS = 20  # of a count; more cannot be meant, and would only flood the message
UNKNOWN = "unknown"  # the type of a property that no reader knows
TYPES = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1", "short": "i2", "int16": "i2", "ushort": "u2",
    "uint16": "u2", "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4", "float": "f4", "float32": "f4",
    "double": "f8", "float64": "f8", "half": "f2", "float16": "f2",
}  # fmt: skip
ANTIALIASED = "SplatRenderMode: mip"  # the comment by which brush and splat-transform tell
# The comments by which programs tell that splats are anti-aliased, or are not: the last one holds.
_RENDER_MODES = {
    "splatrendermode": {"mip": True, "default": False},
    "postshot.anti_aliasing": {"1": True, "0": False},
    "antialiased": {"1": True, "0": False},
}
UPRIGHT = "Placement: upright"  # the comment of a model that was turned away from its scene's coordinates
VERTICAL_AXIS = "Vertical axis"  # the comment by which Brush and nerfstudio tell where up is
BYTE_ORDERS = {"binary_little_endian": "<", "binary_big_endian": ">", "ascii": ""}


@dataclass(frozen=True)
class Orientation:
    """How splats lie in their file, as far as that says it."""

    up: Direction | None = None
    upright: bool = False  # turned from the coordinates of the scene's files, as `export_transform` does


UNSAID = Orientation()


@dataclass(frozen=True)
class Element:
    """One table of a PLY: `count` rows of properties with numpy types, "list" and UNKNOWN for others."""

    name: str
    count: int
    properties: dict[str, str]

    def row_type(self, byte_order: str) -> np.dtype:
        """Return the packed type of a row; the element must hold no lists."""
        return np.dtype([(name, byte_order + code) for name, code in self.properties.items()])

    @property
    def has_lists(self) -> bool:
        """Return whether rows differ in size, or nobody knows it."""
        return not {"list", UNKNOWN}.isdisjoint(self.properties.values())


@dataclass(frozen=True)
class PlyHeader:
    """What a PLY file says of itself."""

    byte_order: str  # "<", ">", or "" for text
    elements: tuple[Element, ...]
    num_bytes: int  # where the data begin
    comments: tuple[str, ...] = ()

    @property
    def antialiased(self) -> bool:
        """Return whether a comment says that the Gaussians were trained anti-aliased."""
        told = False
        for comment in self.comments:
            words = comment.lower().replace(":", " ").replace("=", " ").split()
            if len(words) == 2:
                told = _RENDER_MODES.get(words[0], {}).get(words[1], told)
        return told

    @property
    def orientation(self) -> Orientation:
        """Return what comments say of how the splats lie."""
        up = None
        for comment in self.comments:
            name, _, said = comment.partition(":")
            if name.strip().lower() == VERTICAL_AXIS.lower():
                up = _direction(said.split()) or up
        return Orientation(up, UPRIGHT in self.comments)


def direction(vector: Sequence[float] | np.ndarray) -> Direction:
    """Return the unit vector along `vector` [3], which must have a length."""
    x, y, z = (float(part) for part in vector)
    length = math.hypot(x, y, z)
    return x / length, y / length, z / length


def comments_on(orientation: Orientation, *, antialiased: bool) -> list[str]:
    """Return the comments of a file by which a reader learns how its splats lie and how they were trained."""
    comments = [ANTIALIASED] if antialiased else []
    if orientation.up is not None:
        comments.append(
            f"{VERTICAL_AXIS}: " + " ".join(f"{round(part, 5) + 0.0:g}" for part in orientation.up)
        )
    return [*comments, UPRIGHT] if orientation.upright else comments


def _direction(words: list[str]) -> Direction | None:
    """Return the unit vector of three numbers, or of the z axis, which nerfstudio names.

    Of other letters nothing follows: "y" is what Brush says of a file whose up it does not know.
    """
    if words[:1] in (["z"], ["Z"]):
        return 0.0, 0.0, 1.0
    try:
        x, y, z = (float(word) for word in words)
    except ValueError:
        return None
    return direction((x, y, z)) if 0 < math.hypot(x, y, z) < math.inf else None


def parse_header(path: Path, start: bytes) -> PlyHeader:
    """Return the header at the `start` of the file `path` (its first LONGEST_HEADER bytes suffice).

    Raises ValueError, naming the file and the line, for anything that is not a PLY header.
    """
    if start[:4] not in PLY or start[:80].splitlines()[0].strip() != b"ply":
        raise ValueError(f"{path} is not a PLY file: it does not begin with the line 'ply'")
    byte_order, elements, comments = None, [], []
    position = 0
    for number, line in enumerate(start.splitlines(keepends=True), 1):
        position += len(line)
        words = line.decode("ascii", errors="replace").split()
        if not line.endswith((b"\n", b"\r")):
            break
        if words == ["end_header"]:
            if byte_order is None:
                raise ValueError(f"{path}: the PLY header has no line 'format'")
            return PlyHeader(byte_order, tuple(elements), position, tuple(comments))
        try:
            if words[:1] == ["format"]:
                byte_order = BYTE_ORDERS[words[1]]
            elif words[:1] == ["element"]:
                elements.append(_element(words))
            elif words[:1] == ["property"]:
                _add_property(elements[-1], words, is_first=len(elements) == 1)
            elif words[:1] == ["comment"]:
                comments.append(" ".join(words[1:]))
            elif words and words[0] not in ("ply", "obj_info"):
                raise ValueError(words[0])
        except (ValueError, KeyError, IndexError):
            text = " ".join(words)[:60]
            raise ValueError(f"{path}: line {number} of the PLY header makes no sense: {text!r}") from None
    raise ValueError(f"{path} ends within its PLY header: the file is damaged, export it again")


def _element(words: list[str]) -> Element:
    _, name, count = words
    if not (count.isascii() and count.isdigit() and len(count) <= MOST_DIGITS):
        raise ValueError(count)
    return Element(name, int(count), {})


def _add_property(element: Element, words: list[str], *, is_first: bool) -> None:
    """Add a property; of what follows the first table types may be unknown, which nobody reads then."""
    if words[1] == "list":
        _, _, count_type, item_type, name = words
        code = "list" if {count_type, item_type} <= TYPES.keys() else UNKNOWN
    else:
        _, type_name, name = words
        code = TYPES.get(type_name, UNKNOWN)
    if is_first and code == UNKNOWN:
        raise ValueError(words[1])
    if name in element.properties:
        raise ValueError(name)
    element.properties[name] = code
