"""Which places are open to bricks of each size, in many structures at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from coterie.rollouts import Bools, Ints

# format: it parses; geometry: also in bounds and without overlap; attached: also held, when it is
# put down, by the ground or by a brick that is already there.
Legality = Literal["format", "geometry", "attached"]

Words = NDArray[np.uint32]
ALL = ~np.uint32(0)


class Places:
    """Bit x of a word at [row, z, size, y] is about a brick of that size put at (x, y, z).

    So placing a brick touches three layers, and whether any place is open is an OR over a few
    words. A place is open if it is free and held.
    """

    def __init__(self, rows: int, world_dim: int, sizes: Sequence[tuple[int, int]], legality: Legality) -> None:
        assert world_dim <= 32, "a line of places is one 32-bit word"
        self.world_dim, self.legality = world_dim, legality
        h, w = np.array(sizes).T  # [S]
        stud = np.arange(world_dim)
        fits = (stud[:, None] + w[:, None, None] <= world_dim) & (stud + h[:, None, None] <= world_dim)  # [S, Y, X]
        line = to_words(fits | (legality == "format"))
        self.free = np.broadcast_to(line, (rows, world_dim, *line.shape)).copy()  # [rows, Z, S, Y]
        self.held = np.full_like(self.free, ALL)
        if legality == "attached":
            self.held[:, 1:] = 0
        # Of a brick put down, by its size and place: which places of each size it meets.
        self.meets_x = to_words(_meets(h, world_dim))  # [S, X, S]
        self.meets_y = to_masks(_meets(w, world_dim))  # [S, Y, S, Y]
        # What is open in a layer, kept because only three layers change with a brick.
        self.any_y = np.bitwise_or.reduce(self.open(), axis=3)  # [rows, Z, S]
        self.any_size = np.bitwise_or.reduce(self.open(), axis=2)  # [rows, Z, Y]

    def open(self, *index: Any) -> Words:
        """The places that are open, or those at an index into [rows, Z, S, Y]."""
        return np.asarray(self.free[index] & self.held[index])

    def place(self, rows: Ints, size: Ints, x: Ints, y: Ints, z: Ints) -> None:
        """Put a brick down in each of these rows."""
        if self.legality == "format":
            return
        shadow = self.meets_x[size, x][:, :, None] & self.meets_y[size, y]  # [rows, S, Y]
        self.free[rows, z] &= ~shadow
        for step in (-1, 0, 1) if self.legality == "attached" else (0,):
            near = np.flatnonzero((z + step >= 0) & (z + step < self.world_dim))
            layer = rows[near], z[near] + step
            if step:
                self.held[layer] |= shadow[near]
            spots = self.open(*layer)
            self.any_y[layer] = np.bitwise_or.reduce(spots, axis=2)
            self.any_size[layer] = np.bitwise_or.reduce(spots, axis=1)

    def keep(self, rows: Ints) -> None:
        """Only these rows go on, in this order."""
        self.free, self.held = self.free[rows], self.held[rows]
        self.any_y, self.any_size = self.any_y[rows], self.any_size[rows]


def _meets(lengths: Ints, world_dim: int) -> Bools:
    """[S, place, S, place]: along one axis, does a brick of this size here meet one of that size there?"""
    stud = np.arange(world_dim)
    begins_before_end = stud < (stud + lengths[:, None])[:, :, None, None]
    ends_after_begin = stud + lengths[:, None] > stud[:, None, None]
    return np.asarray(begins_before_end & ends_after_begin)


def to_words(bools: Bools) -> Words:
    """The last axis as the bits of a word."""
    bits = bools.astype(np.uint32) << np.arange(bools.shape[-1], dtype=np.uint32)
    return np.asarray(np.bitwise_or.reduce(bits, axis=-1))


def to_masks(bools: Bools) -> Words:
    """A full word for each that is true."""
    return np.where(bools, ALL, np.uint32(0))


def to_bools(words: Words, count: int) -> Bools:
    """The inverse of `to_words`."""
    return np.asarray((words[..., None] >> np.arange(count, dtype=np.uint32)) & 1 == 1)
