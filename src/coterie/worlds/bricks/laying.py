"""Lays bricks into a shape the way a hasty builder would: mostly well, not always.

Its structures are where a policy starts from, so its faults are left in on purpose: pieces that
nothing holds, bricks forgotten or a stud off. The verifier is what teaches better.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coterie.worlds.bricks.shapes import Voxels
from coterie.worlds.bricks.structure import SIZES, Brick


@dataclass(frozen=True)
class Builder:
    """How careful the builder is."""

    care: float = 0.5  # chance that a brick is chosen with an eye to what is below it
    slip_rate: float = 0.02  # chance that a brick is forgotten or put a stud off


def lay_bricks(target: Voxels, builder: Builder, rng: np.random.Generator) -> list[Brick]:
    """Fill the target layer by layer, from the ground up."""
    open_cells = target.copy()
    owner = np.full(target.shape, -1, np.int32)
    bricks: list[Brick] = []
    for z in range(target.shape[2]):
        along_x = rng.random() < 0.5
        for x, y in np.argwhere(target[:, :, z]):
            if not open_cells[x, y, z]:
                continue
            brick = _choose(open_cells, owner, Brick(1, 1, int(x), int(y), z), along_x, builder, rng)
            placed = _slip(brick, owner, builder, rng)
            for b in (brick, placed or brick):
                open_cells[b.x : b.x + b.h, b.y : b.y + b.w, z] = False
            if placed is not None:
                owner[placed.x : placed.x + placed.h, placed.y : placed.y + placed.w, z] = len(bricks)
                bricks.append(placed)
    return bricks


def _choose(
    open_cells: Voxels,
    owner: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    at: Brick,
    along_x: bool,
    builder: Builder,
    rng: np.random.Generator,
) -> Brick:
    """A brick for the open cell nearest the origin: the largest, or the best held one."""
    _, _, x, y, z = at
    fitting = [
        (h, w)
        for h, w in SIZES
        if x + h <= open_cells.shape[0] and y + w <= open_cells.shape[1] and open_cells[x : x + h, y : y + w, z].all()
    ]
    careful = z > 0 and rng.random() < builder.care

    def worth(size: tuple[int, int]) -> tuple[float, ...]:
        h, w = size
        joined = 0
        if careful:
            below = owner[x : x + h, y : y + w, z - 1]
            joined = min(len(np.unique(below[below >= 0])), 2)
        return (joined, h * w, (h > w) == along_x, rng.random())

    h, w = max(fitting, key=worth)
    return Brick(h, w, x, y, z)


def _slip(
    brick: Brick,
    owner: np.ndarray[tuple[int, ...], np.dtype[np.int32]],
    builder: Builder,
    rng: np.random.Generator,
) -> Brick | None:
    """Usually the brick itself; sometimes none, or one a stud off where that is free."""
    if rng.random() >= builder.slip_rate:
        return brick
    if rng.random() < 0.5:
        return None
    moved = brick._replace(x=brick.x + int(rng.integers(-1, 2)), y=brick.y + int(rng.integers(-1, 2)))
    inside = min(moved.x, moved.y) >= 0 and moved.x + moved.h <= owner.shape[0] and moved.y + moved.w <= owner.shape[1]
    free = inside and (owner[moved.x : moved.x + moved.h, moved.y : moved.y + moved.w, moved.z] < 0).all()
    return moved if free else brick
