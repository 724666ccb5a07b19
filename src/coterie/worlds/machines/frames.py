"""Where blocks lie: six facings and whole numbers, so that touching and overlapping are never confused.

Besiege's axes are left-handed: x to the right, y up, z forward. Lengths are counted in twentieths of a
meter; every size and every face of the table is a whole number of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.worlds.machines.blocks import BLOCKS, ROOT, Vector

UNIT = 20  # to the meter
Cell = tuple[int, int, int]

# A facing's own right and up; its front is the facing itself.
FACINGS = ("z+", "z-", "x+", "x-", "y+", "y-")
_RIGHT_UP = {
    "z+": ("x+", "y+"),
    "z-": ("x-", "y+"),
    "x+": ("z-", "y+"),
    "x-": ("z+", "y+"),
    "y+": ("x+", "z-"),
    "y-": ("x+", "z+"),
}
_SIGN = {"+": 1, "-": -1}


def _vector(axis: str) -> Cell:
    x, y, z = (_SIGN[axis[1]] if axis[0] == name else 0 for name in "xyz")
    return x, y, z


# [facing, own axis, world axis]: right, up and front of each facing.
AXES: NDArray[np.int64] = np.array([[_vector(a) for a in (*_RIGHT_UP[f], f)] for f in FACINGS])


@cache
def turn(facing: int, direction: str) -> int:
    """The facing of a child on the face in this direction of a block with that facing."""
    own = {"right": (0, 1), "left": (0, -1), "up": (1, 1), "down": (1, -1), "front": (2, 1), "back": (2, -1)}
    axis, sign = own[direction]
    world = tuple(int(v) for v in sign * AXES[facing, axis])
    return next(i for i, f in enumerate(FACINGS) if _vector(f) == world)


def to_units(place: Vector) -> Cell:
    """Meters to whole units."""
    x, y, z = (round(v * UNIT) for v in place)
    assert all(abs(a - b * UNIT) < 1e-9 for a, b in zip((x, y, z), place, strict=True)), f"{place} is off the grid"
    return x, y, z


class Place(NamedTuple):
    """Where a block lies: the point it is attached at, its facing, and the box it fills."""

    base: Cell
    facing: int
    low: Cell
    high: Cell

    @property
    def middle(self) -> Vector:
        """In meters."""
        x, y, z = ((a + b) / (2 * UNIT) for a, b in zip(self.low, self.high, strict=True))
        return x, y, z


class Shape(NamedTuple):
    """A block seen from one facing: its box and its faces, relative to where it is attached."""

    low: Cell
    high: Cell
    faces: tuple[tuple[Cell, int], ...]  # place and facing of a child there


@cache
def shape_of(kind: str, facing: int) -> Shape:
    """The shape of a block of this kind that faces so."""
    block = BLOCKS[kind]
    sx, sy, sz = to_units(block.size)
    back = -sz // 2 if kind == ROOT else 0
    corners = ((-sx // 2, -sy // 2, back), (sx // 2, sy // 2, back + sz))
    one, other = (_rotate(corner, facing) for corner in corners)
    faces = tuple((_rotate(to_units(f.place), facing), turn(facing, f.direction)) for f in block.faces)
    low, high = (_cell(pick(a, b) for a, b in zip(one, other, strict=True)) for pick in (min, max))
    return Shape(low, high, faces)


def put(kind: str, base: Cell, facing: int) -> Place:
    """A block of this kind, attached there."""
    shape = shape_of(kind, facing)
    return Place(base, facing, _add(base, shape.low), _add(base, shape.high))


def face_of(kind: str, place: Place, face: int) -> tuple[Cell, int]:
    """Where a face of a block lies, and which way its child would face."""
    offset, facing = shape_of(kind, place.facing).faces[face]
    return _add(place.base, offset), facing


def overlap(a: Place, b: Place) -> bool:
    """Whether they share more than a surface."""
    return (
        a.low[0] < b.high[0]
        and b.low[0] < a.high[0]
        and a.low[1] < b.high[1]
        and b.low[1] < a.high[1]
        and a.low[2] < b.high[2]
        and b.low[2] < a.high[2]
    )


def _rotate(own: Cell, facing: int) -> Cell:
    return _cell(int(v) for v in np.array(own) @ AXES[facing])


def _add(a: Cell, b: Cell) -> Cell:
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]


def _cell(values: Iterable[int]) -> Cell:
    x, y, z = values
    return x, y, z
