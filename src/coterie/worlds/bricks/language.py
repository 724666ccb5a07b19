"""The absolute language: four tokens a brick (size, x, y, z), and which of them are legal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.rollouts import Bools, Ints, Task
from coterie.worlds.base import Constraint
from coterie.worlds.bricks.places import Legality, Places, to_bools
from coterie.worlds.bricks.structure import SIZES, Brick, print_bricks
from coterie.worlds.bricks.words import BUILD, END, caption_words, encode_caption, read_bricks

__all__ = ["BUILD", "END", "AbsoluteLanguage", "BrickConstraint", "Legality"]


@dataclass(frozen=True)
class AbsoluteLanguage:
    """Bricks at absolute places, as in BrickGPT's text; captions word by word."""

    world_dim: int = 20
    max_bricks: int = 60
    legality: Legality = "geometry"
    sizes: tuple[tuple[int, int], ...] = SIZES

    @cached_property
    def vocabulary(self) -> Sequence[str]:
        places = [f"{axis}{i}" for axis in "xyz" for i in range(self.world_dim)]
        return ["<end>", *(f"{h}x{w}" for h, w in self.sizes), *places, *caption_words(self.world_dim)]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {spelling: i for i, spelling in enumerate(self.vocabulary)}

    @cached_property
    def starts(self) -> list[int]:
        """The first token of each stage of a brick."""
        first = 1 + len(self.sizes)
        return [1, first, first + self.world_dim, first + 2 * self.world_dim]

    @property
    def end(self) -> int:
        return END

    @property
    def max_tokens(self) -> int:
        return 4 * self.max_bricks + 1

    def encode_prompt(self, prompt: str) -> list[int]:
        return encode_caption(prompt, self._ids, self.world_dim)

    def encode(self, answer: str) -> list[int]:
        tokens = []
        for b in read_bricks(answer, self.world_dim, self.max_bricks, self.sizes):
            tokens += [self._ids[s] for s in (f"{b.h}x{b.w}", f"x{b.x}", f"y{b.y}", f"z{b.z}")]
        return [*tokens, END]

    def decode(self, tokens: Sequence[int]) -> str:
        """Whole bricks only: one cut off by the length limit is left out."""
        body = [t for t in tokens if t != END]
        bricks = []
        for i in range(0, len(body) // 4 * 4, 4):
            size, x, y, z = (t - start for t, start in zip(body[i : i + 4], self.starts, strict=True))
            bricks.append(Brick(*self.sizes[size], x, y, z))
        return print_bricks(bricks)

    def constraint(self, tasks: Sequence[Task]) -> Constraint:
        return BrickConstraint(self, len(tasks))


class BrickConstraint:
    """Follows many structures at once and says which token may come next in each."""

    def __init__(self, language: AbsoluteLanguage, rows: int) -> None:
        self.language = language
        self.places = Places(rows, language.world_dim, language.sizes, language.legality)
        self.num_bricks = np.zeros(rows, np.int64)
        self.stage = 0  # 0 size or end, 1 x, 2 y, 3 z: all rows are always at the same one
        self.brick = np.zeros((rows, 4), np.int64)  # of the brick being placed: size, x, y, z

    def legal(self) -> Bools:
        mask = np.zeros((len(self.num_bricks), len(self.language.vocabulary)), np.bool_)
        allowed = self._places() if self.stage else self._sizes()
        start = self.language.starts[self.stage]
        mask[:, start : start + allowed.shape[1]] = allowed
        if self.stage == 0:
            mask[:, END] = self.num_bricks > 0
        return mask

    def _sizes(self) -> Bools:
        room = self.num_bricks < self.language.max_bricks
        return np.asarray(self.places.any_y.any(1) & room[:, None])

    def _places(self) -> Bools:
        """[rows, dim]: the legal values of the coordinate that comes next."""
        rows, everywhere = np.arange(len(self.num_bricks)), slice(None)
        size, x, y, _ = self.brick.T
        if self.stage == 1:
            spots = np.bitwise_or.reduce(self.places.any_y[rows, :, size], axis=1)
            return to_bools(spots, self.language.world_dim)
        at_x = np.uint32(1) << x.astype(np.uint32)
        if self.stage == 2:
            spots = np.bitwise_or.reduce(self.places.open(rows, everywhere, size), axis=1)
        else:
            spots = self.places.open(rows, everywhere, size, y)
        return np.asarray(spots & at_x[:, None] != 0)

    def advance(self, tokens: Ints) -> None:
        # A row that chose the end is expected to leave; until then it stays where it is.
        going = tokens != END
        chosen = tokens - self.language.starts[self.stage]
        self.brick[:, self.stage] = np.where(going, chosen, self.brick[:, self.stage])
        if self.stage == 3:
            rows = np.flatnonzero(going)
            self.places.place(rows, *self.brick[rows].T)
            self.num_bricks += going
        self.stage = (self.stage + 1) % 4

    def keep(self, rows: Ints) -> None:
        self.num_bricks, self.brick = self.num_bricks[rows], self.brick[rows]
        self.places.keep(rows)
