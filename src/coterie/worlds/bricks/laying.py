"""Lays bricks into a shape the way a hasty builder would: mostly well, not always.

Its structures are where a policy starts from, so its faults are left in on purpose: pieces that
nothing holds, bricks forgotten or a stud off. The verifier is what teaches better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from coterie.worlds.bricks.shapes import Voxels
from coterie.worlds.bricks.structure import SIZES, Brick

# A layer is one integer: bit x * STRIDE + y is the cell (x, y). The stride leaves room beside the
# widest world for the longest brick, so that what sticks out meets no cell of the next row.
STRIDE = 40
FOOTPRINTS = {(h, w): sum(((1 << w) - 1) << (i * STRIDE) for i in range(h)) for h, w in SIZES}


@dataclass(frozen=True)
class Builder:
    """How careful the builder is."""

    care: float = 0.5  # chance that a brick is chosen with an eye to what is below it
    slip_rate: float = 0.02  # chance that a brick is forgotten or put a stud off


def lay_bricks(
    target: Voxels, builder: Builder, rng: np.random.Generator, sizes: Sequence[tuple[int, int]] = SIZES
) -> list[Brick]:
    """Fill the target layer by layer, from the ground up; a cell that no size fits stays open."""
    bricks: list[Brick] = []
    below: list[int] = []  # the cells of each brick in the layer below
    for z in range(int(np.flatnonzero(target.any((0, 1))).max(initial=-1)) + 1):
        wanted = [(int(x), int(y)) for x, y in np.argwhere(target[:, :, z])]
        missing = sum(1 << (x * STRIDE + y) for x, y in wanted)
        here: list[int] = []
        along_x = rng.random() < 0.5
        for x, y in wanted:
            if not missing >> (x * STRIDE + y) & 1:
                continue
            careful = z > 0 and rng.random() < builder.care
            size = _choose(x * STRIDE + y, missing, below if careful else [], along_x, rng, sizes)
            if size is None:
                continue
            h, w = size
            missing &= ~_cells(Brick(h, w, x, y, z))
            brick = _slip(Brick(h, w, x, y, z), here, target.shape, builder, rng)
            if brick is not None:
                missing &= ~_cells(brick)
                here.append(_cells(brick))
                bricks.append(brick)
        below = here
    return bricks


def _choose(
    corner: int,
    missing: int,
    below: list[int],
    along_x: bool,
    rng: np.random.Generator,
    sizes: Sequence[tuple[int, int]],
) -> tuple[int, int] | None:
    """The largest size that fits at this corner; of more worth, if asked for, one that joins two below."""
    fitting = [size for size in sizes if not (FOOTPRINTS[size] << corner) & ~missing]
    lots = rng.random(len(fitting)).tolist()

    def worth(place: int) -> tuple[float, ...]:
        h, w = fitting[place]
        cells = FOOTPRINTS[h, w] << corner
        joined = min(sum(1 for other in below if other & cells), 2)
        return joined, h * w, (h > w) == along_x, lots[place]

    return fitting[max(range(len(fitting)), key=worth)] if fitting else None


def _slip(
    brick: Brick, here: list[int], shape: tuple[int, ...], builder: Builder, rng: np.random.Generator
) -> Brick | None:
    """Usually the brick itself; sometimes none, or one a stud off where that is free."""
    if rng.random() >= builder.slip_rate:
        return brick
    if rng.random() < 0.5:
        return None
    moved = brick._replace(x=brick.x + int(rng.integers(-1, 2)), y=brick.y + int(rng.integers(-1, 2)))
    inside = min(moved.x, moved.y) >= 0 and moved.x + moved.h <= shape[0] and moved.y + moved.w <= shape[1]
    return moved if inside and not any(other & _cells(moved) for other in here) else brick


def _cells(brick: Brick) -> int:
    return FOOTPRINTS[brick.h, brick.w] << (brick.x * STRIDE + brick.y)
