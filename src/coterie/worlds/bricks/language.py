"""The absolute language: four tokens a brick (size, x, y, z), and which of them are legal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from coterie.rollouts import Bools, Ints, Task
from coterie.worlds.base import Constraint, LanguageError
from coterie.worlds.bricks.shapes import KINDS, Shape
from coterie.worlds.bricks.structure import SIZES, Brick, BrickError, parse_bricks, print_bricks

# format: it parses; geometry: also in bounds and without overlap; attached: also held, when it is
# put down, by the ground or by a brick that is already there.
Legality = Literal["format", "geometry", "attached"]

END = 0
BUILD = "<build>"


@dataclass(frozen=True)
class AbsoluteLanguage:
    """Bricks at absolute places, as in BrickGPT's text; captions word by word."""

    world_dim: int = 20
    max_bricks: int = 60
    legality: Legality = "geometry"

    @cached_property
    def vocabulary(self) -> Sequence[str]:
        places = [f"{axis}{i}" for axis in "xyz" for i in range(self.world_dim)]
        words = {word for kind in KINDS for caption in Shape(kind, 1, 1, 1).captions for word in caption.split()}
        numbers = map(str, range(self.world_dim + 1))
        spoken = sorted(word for word in words if not word.isdigit())
        return ["<end>", *(f"{h}x{w}" for h, w in SIZES), *places, BUILD, *numbers, *spoken]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {spelling: i for i, spelling in enumerate(self.vocabulary)}

    @property
    def end(self) -> int:
        return END

    @property
    def max_tokens(self) -> int:
        return 4 * self.max_bricks + 1

    def encode_prompt(self, prompt: str) -> list[int]:
        words = re.sub(r"[,.;]", " ", prompt).split()
        first_word = self._ids[BUILD] + 1
        for word in words:
            if self._ids.get(word, 0) < first_word:
                known = ", ".join(w for w in self.vocabulary[first_word:] if not w.isdigit())
                raise LanguageError(
                    f"{word!r} is not a word this world knows; use numbers up to {self.world_dim} and: {known}"
                )
        return [*(self._ids[word] for word in words), self._ids[BUILD]]

    def encode(self, answer: str) -> list[int]:
        try:
            bricks = parse_bricks(answer)
        except BrickError as error:
            raise LanguageError(str(error)) from error
        if len(bricks) > self.max_bricks:
            raise LanguageError(f"{len(bricks)} bricks are more than max_bricks = {self.max_bricks}")
        tokens = []
        for number, b in enumerate(bricks, 1):
            if max(b.x, b.y, b.z) >= self.world_dim:
                raise LanguageError(f"line {number}: {b} lies outside a world of {self.world_dim} studs")
            tokens += [self._ids[s] for s in (f"{b.h}x{b.w}", f"x{b.x}", f"y{b.y}", f"z{b.z}")]
        return [*tokens, END]

    def decode(self, tokens: Sequence[int]) -> str:
        """Whole bricks only: one cut off by the length limit is left out."""
        body = [t for t in tokens if t != END]
        dim = self.world_dim
        first = 1 + len(SIZES)
        return print_bricks(
            Brick(SIZES[s - 1][0], SIZES[s - 1][1], x - first, y - first - dim, z - first - 2 * dim)
            for s, x, y, z in zip(*(body[i : len(body) // 4 * 4 : 4] for i in range(4)), strict=True)
        )

    def constraint(self, tasks: Sequence[Task]) -> Constraint:
        return BrickConstraint(self, len(tasks))


class BrickConstraint:
    """Follows many structures at once and says which token may come next in each.

    `free` and `held` are bit fields: bit x of [row, z, size, y] is about a brick of that size put
    at (x, y, z). So placing a brick touches three layers, and a mask is an OR over a few words.
    """

    def __init__(self, language: AbsoluteLanguage, rows: int) -> None:
        dim, self.language = language.world_dim, language
        assert dim <= 32, "a row of places is one 32-bit word"
        self.h, self.w = np.array(SIZES).T  # [S]
        self.num_bricks = np.zeros(rows, np.int64)
        self.stage = 0  # 0 size or end, 1 x, 2 y, 3 z: all rows are always at the same one
        self.brick = np.zeros((rows, 4), np.int64)  # of the brick being placed: size, x, y, z
        inside = np.arange(dim)[None, :] + self.w[:, None] <= dim  # [S, Y]
        fits = np.where(inside, _low_bits(dim - self.h + 1)[:, None], np.uint32(0))  # [S, Y]
        self.free = np.broadcast_to(fits, (rows, dim, *fits.shape)).copy()  # [rows, Z, S, Y]
        self.held = np.zeros_like(self.free)
        self.held[:, 0] = ~np.uint32(0)

    def legal(self) -> Bools:
        dim, rows = self.language.world_dim, len(self.num_bricks)
        mask = np.zeros((rows, len(self.language.vocabulary)), np.bool_)
        begin = 1 + len(SIZES) + dim * (self.stage - 1)
        if self.stage == 0:
            mask[:, END] = self.num_bricks > 0
            mask[:, 1 : 1 + len(SIZES)] = (self.num_bricks < self.language.max_bricks)[:, None] & self._sizes()
        else:
            mask[:, begin : begin + dim] = self._places()
        return mask

    def _open(self) -> NDArray[np.uint32]:
        return self.free & self.held if self.language.legality == "attached" else self.free

    def _sizes(self) -> Bools:
        if self.language.legality == "format":
            return np.ones((len(self.num_bricks), len(SIZES)), np.bool_)
        return np.asarray(self._open().any(axis=(1, 3)))

    def _places(self) -> Bools:
        """[rows, dim]: the legal values of the coordinate that comes next."""
        dim, rows = self.language.world_dim, np.arange(len(self.num_bricks))
        if self.language.legality == "format":
            return np.ones((len(rows), dim), np.bool_)
        size, x, y, _ = self.brick.T
        spots = self.free[rows, :, size]  # [rows, Z, Y]
        if self.language.legality == "attached":
            spots = spots & self.held[rows, :, size]
        if self.stage == 1:
            return _bits(np.bitwise_or.reduce(spots, axis=(1, 2)), dim)
        at_x = (spots >> x[:, None, None].astype(np.uint32)) & 1 == 1  # [rows, Z, Y]
        return np.asarray(at_x.any(1) if self.stage == 2 else at_x[rows, :, y])

    def advance(self, tokens: Ints) -> None:
        # A row that chose the end is expected to leave; until then it stays where it is.
        dim, going = self.language.world_dim, tokens != END
        offset = 1 if self.stage == 0 else 1 + len(SIZES) + dim * (self.stage - 1)
        self.brick[:, self.stage] = np.where(going, tokens - offset, self.brick[:, self.stage])
        if self.stage == 3:
            self.num_bricks += going
            if self.language.legality != "format":
                self._place(np.flatnonzero(going))
        self.stage = (self.stage + 1) % 4

    def _place(self, rows: Ints) -> None:
        size, x, y, z = self.brick[rows].T
        dim = self.language.world_dim
        # Where a brick of each size would overlap the new one, seen from above.
        below = np.maximum(x[:, None] - self.h + 1, 0)
        columns = _low_bits(np.minimum(x + self.h[size], dim))[:, None] & ~_low_bits(below)  # [rows, S]
        level = np.arange(dim)
        lines = (level > (y[:, None] - self.w)[:, :, None]) & (level < (y + self.w[size])[:, None, None])
        shadow = np.where(lines, columns[:, :, None], np.uint32(0))  # [rows, S, Y]
        self.free[rows, z] &= ~shadow
        if self.language.legality == "attached":
            for step in (-1, 1):
                near = (z + step >= 0) & (z + step < dim)
                self.held[rows[near], z[near] + step] |= shadow[near]

    def keep(self, rows: Ints) -> None:
        self.num_bricks, self.brick = self.num_bricks[rows], self.brick[rows]
        self.free, self.held = self.free[rows], self.held[rows]


def _low_bits(count: NDArray[np.int64]) -> NDArray[np.uint32]:
    """A word with this many of its lowest bits set."""
    return ((np.uint64(1) << count.astype(np.uint64)) - np.uint64(1)).astype(np.uint32)


def _bits(words: NDArray[np.uint32], count: int) -> Bools:
    return np.asarray((words[:, None] >> np.arange(count, dtype=np.uint32)) & 1 == 1)
