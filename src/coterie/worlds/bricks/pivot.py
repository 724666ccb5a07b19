"""The two-step language: choose a pivot among the placed bricks, then an offset from it and a size.

Five tokens a brick: pivot, z, size, x, y, in the order in which exact masks are cheapest. From a
brick the offset is at most `max_offset_distance` along each axis (`dz+1`, `dx-2`, `dy+0`). The
first brick has no pivot but the world's origin, from which every place is in reach (`z0`, `x7`,
`y3`). The origin remains a choice: about one laid structure in a hundred has a brick, on the far
end of a long one, that no placed brick reaches. So both languages write the same structures.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np

from coterie.rollouts import Bools, Ints, Task
from coterie.worlds.base import Constraint
from coterie.worlds.bricks.places import Legality, Places, Words, to_bools, to_masks, to_words
from coterie.worlds.bricks.structure import SIZES, Brick, print_bricks
from coterie.worlds.bricks.words import END, caption_words, encode_caption, read_bricks

ORIGIN = "<origin>"


@dataclass(frozen=True)
class PivotLanguage:
    """Bricks relative to bricks that are already there; captions word by word."""

    world_dim: int = 20
    max_bricks: int = 60
    legality: Legality = "geometry"
    sizes: tuple[tuple[int, int], ...] = SIZES
    max_offset_distance: int = 5

    def __post_init__(self) -> None:
        if self.max_offset_distance < 1:
            raise ValueError(f"max_offset_distance is {self.max_offset_distance}; write 1 or more")

    @cached_property
    def _stages(self) -> list[list[str]]:
        """The spelling of the tokens of each stage of a brick."""
        offsets = range(-self.max_offset_distance, self.max_offset_distance + 1)
        x, y, z = (
            [*(f"{axis}{i}" for i in range(self.world_dim)), *(f"d{axis}{i:+d}" for i in offsets)] for axis in "xyz"
        )
        return [[ORIGIN, *(f"p{i}" for i in range(self.max_bricks))], z, [f"{h}x{w}" for h, w in self.sizes], x, y]

    @cached_property
    def vocabulary(self) -> Sequence[str]:
        return ["<end>", *(token for stage in self._stages for token in stage), *caption_words(self.world_dim)]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {spelling: i for i, spelling in enumerate(self.vocabulary)}

    @cached_property
    def starts(self) -> list[int]:
        """The first token of each stage of a brick, and the first after the last."""
        return list(accumulate(map(len, self._stages), initial=1))

    @cached_property
    def place_of(self) -> Ints:
        """[pivot, token]: where along an axis a token leads; the world's dim if nowhere.

        The pivot is where along this axis the pivot brick lies; the last row is the origin's.
        """
        dim, reach = self.world_dim, self.max_offset_distance
        places = np.full((dim + 1, dim + 2 * reach + 1), dim)
        places[:dim, dim:] = np.arange(dim)[:, None] + np.arange(-reach, reach + 1)
        places[(places < 0) | (places > dim)] = dim
        places[dim, :dim] = np.arange(dim)
        return places

    @property
    def end(self) -> int:
        return END

    @property
    def max_tokens(self) -> int:
        return 5 * self.max_bricks + 1

    def encode_prompt(self, prompt: str) -> list[int]:
        return encode_caption(prompt, self._ids, self.world_dim)

    def encode(self, answer: str) -> list[int]:
        bricks = read_bricks(answer, self.world_dim, self.max_bricks, self.sizes)
        spelled: list[str] = []
        for number, b in enumerate(bricks):
            pivot = self._choose_pivot(bricks[:number], b)
            if pivot is None:
                spelled += [ORIGIN, f"z{b.z}", f"{b.h}x{b.w}", f"x{b.x}", f"y{b.y}"]
            else:
                p = bricks[pivot]
                spelled += [f"p{pivot}", f"dz{b.z - p.z:+d}", f"{b.h}x{b.w}", f"dx{b.x - p.x:+d}", f"dy{b.y - p.y:+d}"]
        return [*(self._ids[token] for token in spelled), END]

    def _choose_pivot(self, placed: Sequence[Brick], brick: Brick) -> int | None:
        """The latest brick in reach that holds this one; if none does, the latest in reach."""
        latest = None
        for i in range(len(placed) - 1, -1, -1):
            p = placed[i]
            if max(abs(brick.x - p.x), abs(brick.y - p.y), abs(brick.z - p.z)) <= self.max_offset_distance:
                meet = -brick.h < brick.x - p.x < p.h and -brick.w < brick.y - p.y < p.w
                if meet and abs(brick.z - p.z) == 1:
                    return i
                if latest is None:
                    latest = i
        return latest

    def decode(self, tokens: Sequence[int]) -> str:
        """Whole bricks only: one cut off by the length limit is left out."""
        body = [t for t in tokens if t != END]
        bricks: list[Brick] = []
        for i in range(0, len(body) // 5 * 5, 5):
            pivot, z, size, x, y = (t - start for t, start in zip(body[i : i + 5], self.starts[:5], strict=True))
            at = bricks[pivot - 1][2:] if pivot else (self.world_dim,) * 3
            x, y, z = self.place_of[at, (x, y, z)].tolist()
            bricks.append(Brick(*self.sizes[size], x, y, z))
        return print_bricks(bricks)

    def constraint(self, tasks: Sequence[Task]) -> Constraint:
        return PivotConstraint(self, len(tasks))


class PivotConstraint:
    """Follows many structures at once and says which token may come next in each."""

    def __init__(self, language: PivotLanguage, rows: int) -> None:
        dim, self.language = language.world_dim, language
        self.places = Places(rows, dim, language.sizes, language.legality)
        self.num_bricks = np.zeros(rows, np.int64)
        self.pivots = np.zeros((rows, 1 + language.max_bricks, 3), np.int64)  # x, y, z of each
        self.pivots[:, 0] = dim  # the origin, as `place_of` knows it
        self.stage = 0  # 0 pivot or end, 1 z, 2 size, 3 x, 4 y: all rows are always at the same one
        # Of the brick being placed:
        self.pivot = np.zeros((rows, 3), np.int64)
        self.size, self.x, self.y, self.z = np.zeros((4, rows), np.int64)
        near = (language.place_of[:, :, None] == np.arange(dim)).any(1)  # [pivot, place] bool
        self.near_x, self.near_y = to_words(near), to_masks(near)

    def legal(self) -> Bools:
        start, stop = self.language.starts[self.stage : self.stage + 2]
        mask = np.zeros((len(self.num_bricks), len(self.language.vocabulary)), np.bool_)
        mask[:, start:stop] = (self._pivots, self._z, self._sizes, self._x, self._y)[self.stage]()
        if self.stage == 0:
            mask[:, END] = self.num_bricks > 0
        return mask

    def _pivots(self) -> Bools:
        """[rows, 1 + max_bricks]: those from which some place is open."""
        spots, reach = self.places.any_size, self.language.max_offset_distance  # [rows, Z, Y]
        around = _spread(_spread(spots, reach, 1), reach, 2)
        x, y, z = np.moveaxis(self.pivots[:, 1:], 2, 0)
        rows = np.arange(len(spots))[:, None]
        bricks = around[rows, z, y] & self.near_x[x] != 0
        bricks &= np.arange(self.language.max_bricks) < self.num_bricks[:, None]
        room = self.num_bricks < self.language.max_bricks
        return np.asarray(np.column_stack([spots.any((1, 2)), bricks]) & room[:, None])

    def _near(self, spots: Words) -> Words:
        """[rows, n, Y] -> [rows, n]: along x, what is open near the pivot on any line near it."""
        x, y, _ = self.pivot.T
        lines = np.bitwise_or.reduce(spots & self.near_y[y][:, None], axis=2)
        return np.asarray(lines & self.near_x[x][:, None])

    def _z(self) -> Bools:
        return self._tokens(self._near(self.places.any_size) != 0, axis=2)

    def _sizes(self) -> Bools:
        return np.asarray(self._near(self.places.open(np.arange(len(self.z)), self.z)) != 0)

    def _line(self) -> Words:
        """[rows, Y]: the open places of the chosen size at the chosen height."""
        return self.places.open(np.arange(len(self.z)), self.z, self.size)

    def _x(self) -> Bools:
        spots = self._near(self._line()[:, None])[:, 0]
        return self._tokens(to_bools(spots, self.language.world_dim), axis=0)

    def _y(self) -> Bools:
        at_x = np.uint32(1) << self.x.astype(np.uint32)
        return self._tokens(self._line() & at_x[:, None] != 0, axis=1)

    def _tokens(self, places: Bools, axis: int) -> Bools:
        """[rows, dim] -> [rows, tokens of an axis]: those that lead from the pivot to one of these places."""
        nowhere = np.zeros((len(places), 1), np.bool_)
        leads_to = self.language.place_of[self.pivot[:, axis]]
        return np.take_along_axis(np.concatenate([places, nowhere], axis=1), leads_to, axis=1)

    def advance(self, tokens: Ints) -> None:
        # A row that chose the end is expected to leave; until then it is led to the world's corner.
        going = tokens != END
        chosen = np.where(going, tokens - self.language.starts[self.stage], 0)
        place_of = self.language.place_of
        if self.stage == 0:
            self.pivot = self.pivots[np.arange(len(chosen)), chosen]
        elif self.stage == 1:
            self.z = place_of[self.pivot[:, 2], chosen]
        elif self.stage == 2:
            self.size = chosen
        elif self.stage == 3:
            self.x = place_of[self.pivot[:, 0], chosen]
        else:
            self.y = place_of[self.pivot[:, 1], chosen]
            self._place(np.flatnonzero(going))
        self.stage = (self.stage + 1) % 5

    def _place(self, rows: Ints) -> None:
        size, x, y, z = self.size[rows], self.x[rows], self.y[rows], self.z[rows]
        self.places.place(rows, size, x, y, z)
        self.num_bricks[rows] += 1
        self.pivots[rows, self.num_bricks[rows]] = np.column_stack([x, y, z])

    def keep(self, rows: Ints) -> None:
        self.places.keep(rows)
        self.num_bricks, self.pivots, self.pivot = self.num_bricks[rows], self.pivots[rows], self.pivot[rows]
        self.size, self.x, self.y, self.z = self.size[rows], self.x[rows], self.y[rows], self.z[rows]


def _spread(words: Words, distance: int, axis: int) -> Words:
    """Each word OR those up to this distance before and after it."""
    source = np.moveaxis(words, axis, 0)
    spread = source.copy()
    for step in range(1, min(distance, len(source) - 1) + 1):
        spread[step:] |= source[:-step]
        spread[:-step] |= source[step:]
    return np.moveaxis(spread, 0, axis)
